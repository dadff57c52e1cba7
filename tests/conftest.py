"""What the suite shares: two one-threaded CPU devices, a compilation cache, and small teams trained once.

The settings are made before anything imports JAX. `JAX_COMPILATION_CACHE_DIR` says where compiled programs are kept
(default: `.cache/jax` in the repository), so that a second run of the suite is much faster; subprocesses inherit it.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

FLAGS = "--xla_cpu_multi_thread_eigen=false"
if "COVEY_TESTS_OPTIMISED" not in os.environ:  # with it, programs are as users run them and take long to compile
    FLAGS += (
        " --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
        " --xla_llvm_disable_expensive_passes=true"
    )
if FLAGS not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, here and in what tests start
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parents[1] / ".cache" / "config")  # for keys (trust.py)

import jax
import jax.numpy as jnp
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.devices()  # starts JAX now: a command that a test runs in this process must not choose for those after it
gc.freeze()  # what is imported stays: collections need not look at it again and again
gc.set_threshold(50_000, 20, 50)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

TINY = {
    "mlp": ("model.layers=[32]",),
    "cnn": (),
    "gru": ("model.layers=[16]", "model.hidden_size=16", "model.layers_after=[]"),
    "lstm": ("model.layers=[16]", "model.hidden_size=16", "model.layers_after=[]"),
    "gnn": ("model.layers=[16]", "model.hidden_size=16", "model.layers_after=[]"),
    "attention": ("model.hidden_size=16", "model.layers_after=[]"),
    "deepsets": ("model.layers=[16]", "model.layers_after=[16]"),
    "sequence": (),
}
TINY_LOOP = {
    "online": (
        "algorithm.lr=3e-3",
        "algorithm.num_minibatches=2",
        "algorithm.epochs=4",
        "algorithm.lr_schedule=constant",
    ),
    "replay": (
        "algorithm.lr=3e-3",
        "algorithm.tau=0.05",
        "experiment.updates=8",
        "experiment.random_frames=0",
        "buffer.size=2048",
        "buffer.batch_size=64",
    ),
}


MOST_RESIDENT = 3_000_000_000  # bytes that a process of the suite keeps


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Drops compiled programs after a module that leaves too many: three processes of 6 GB fill a small machine."""
    yield
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_RESIDENT:
        jax.clear_caches()
        gc.collect()


@dataclasses.dataclass(frozen=True)
class Team:
    """A small team and what its training left; the rest is played on demand."""

    env: Any
    algorithm: Any
    loop: Any
    state: Any  # the train state at the end
    metrics: dict[str, np.ndarray]  # [iterations]

    @property
    def learner(self) -> Any:
        return self.state.learner

    def transitions(self, *, num_envs: int = 8, num_steps: int = 12, seed: int = 3) -> Any:
        """Fresh transitions `[T, B, …]` by group, acted by the team as it is now."""
        from covey.envs.batch import BatchedEnv
        from covey.loops.rollout import init_actor, unroll

        batched = BatchedEnv(env=self.env, num_envs=num_envs)

        @jax.jit
        def play(learner: Any, key: Any) -> Any:
            actor = init_actor(batched, self.algorithm, key)
            return unroll(batched, self.algorithm, self.algorithm.acting(learner), actor, key, num_steps)[1]

        key = jax.random.key(seed)
        return jax.device_get(play(self.learner, key))

    def values(self, group: str = "agents", **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """What the agents of a group see first in an observation, and what the critic says it is worth `[T, B, A]`."""
        played = self.transitions(**options)[group]
        return played.observation[..., 0], played.extras["value"]

    def returns(self, *, num_episodes: int = 512, deterministic: bool = True) -> dict[str, float]:
        """Mean over episodes of each group's return."""
        from covey.loops.evaluate import play_episodes

        @jax.jit
        def play(learner: Any, key: Any) -> Any:
            acting = self.algorithm.acting(learner)
            return play_episodes(
                self.env, self.algorithm, acting, key, num_episodes=num_episodes, deterministic=deterministic
            )

        key = jax.random.key(17)
        episodes = play(self.learner, key)
        return {group: float(value.mean()) for group, value in episodes.returns.items()}


def make_team(
    task: str,
    *overrides: str,
    algorithm: str = "ippo",
    model: str = "mlp",
    iterations: int = 50,
    num_envs: int = 32,
    rollout_length: int = 8,
    num_devices: int = 1,
    hooks: Any = None,
    env: Any = None,
) -> Team:
    """Trains for some iterations (none: only initialised). `overrides` are as on the command line."""
    from covey import registry
    from covey.algorithms.base import Hooks
    from covey.algorithms.base import make_team as join_groups
    from covey.experiment.configuration.compose import compose
    from covey.experiment.running.build import build_env, build_group
    from covey.loops.base import DEVICE_AXIS
    from covey.loops.config import ReplayConfig
    from covey.loops.learning import make_learning
    from covey.loops.online import make_online_loop

    tiny = (*TINY[model], *TINY_LOOP[registry.algorithms[algorithm].loop])
    if any(text.startswith("algorithm.minibatch_size=") for text in overrides):  # only one of the two may be given
        tiny = tuple(text for text in tiny if not text.startswith("algorithm.num_minibatches="))
    shape = (f"experiment.num_envs={num_envs}", f"experiment.rollout_length={rollout_length}")
    config = compose([f"task={task}", f"algorithm={algorithm}", f"model={model}", *shape, *tiny, *overrides])
    env = build_env(config) if env is None else env
    hooks = hooks or Hooks()
    axis = DEVICE_AXIS if num_devices > 1 else None
    groups = {group: build_group(config, env.spec, group, hooks, axis) for group in env.spec.groups}
    team_algorithm = join_groups(groups, hooks)
    stored = config.experiment.stored_frames
    loop = make_online_loop(
        env,
        team_algorithm,
        num_envs=num_envs,
        rollout_length=rollout_length,
        schedule_frames=max(1, iterations) * num_envs * rollout_length,
        replay_learning=make_learning(cast(ReplayConfig, config.experiment), team_algorithm, num_devices)
        if stored
        else None,
        hooks=hooks,
        devices=jax.devices()[:num_devices],
        max_iterations=max(1, iterations),
    )
    state = loop.init(jax.random.key(0))
    metrics: dict[str, Any] = {}
    if iterations:
        state, metrics = loop.advance(state, jnp.int32(iterations))
    return Team(env=env, algorithm=team_algorithm, loop=loop, state=state, metrics=jax.device_get(metrics))


MakeTeam = Callable[..., Team]
SameBits = Callable[[Any, Any], None]


@pytest.fixture(scope="session")
def trained() -> MakeTeam:
    """`make_team`, each distinct team trained once per process."""
    return functools.cache(make_team)


@pytest.fixture(scope="session")
def fresh() -> MakeTeam:
    """`make_team` where teams take arguments that cannot be remembered, such as hooks."""
    return make_team


def assert_same_bits(one: Any, other: Any) -> None:
    """Every leaf of two trees is equal to the bit, NaN included."""
    structure: Any  # of whose comparison JAX's types say nothing
    leaves, structure = jax.tree.flatten(jax.device_get(jax.tree.map(_key_data, one)))
    others, other_structure = jax.tree.flatten(jax.device_get(jax.tree.map(_key_data, other)))
    assert structure == other_structure
    for a, b in zip(leaves, others, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def _key_data(leaf: Any) -> Any:
    is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


@pytest.fixture(scope="session")
def same_bits() -> SameBits:
    return assert_same_bits
