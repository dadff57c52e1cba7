"""A loop of your own: evolution strategies (Salimans et al., 2017), complete.

    θ ← θ + α / 2n Σ_i (A_i⁺ − A_i⁻) ε_i,   ε_i ~ N(0, I),   A the standardised reward of θ ± σ ε_i

A loop is how experience reaches the learner. This one never calls the algorithm's `update`: it plays with disturbed
parameters and moves towards those that earned more. Evaluation, checkpoints, resuming and reports work as with every
other loop. Run this file, or, in its folder,

    covey train experiment.loop=evolution imports=[custom_loop] task=probe/copy algorithm=ippo

Differences from the paper: rewards are standardised and not ranked, because ranks of equal rewards are noise.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import covey
from covey.algorithms.seats import learned_part, played_by_team, taken_groups, with_learned_part
from covey.checks import at_least
from covey.envs.batch import BatchedEnv
from covey.loops.base import DEVICE_AXIS, Loop, LoopInputs, StatePart, repeat
from covey.loops.config import ExperimentConfig
from covey.loops.rollout import episode_means, init_actor, unroll
from covey.metrics import scored_groups
from covey.types import Array, Key, PyTree, pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolutionConfig(ExperimentConfig):
    """The fields of `experiment` in this loop, besides those of every loop."""

    num_pairs: int = 32  # disturbances in an iteration; each is tried in both directions
    sigma: float = 0.1  # standard deviation of the disturbances
    step_size: float = 0.2  # of the parameters, towards what earned more
    num_envs: int = 4  # environments that each disturbed team plays in
    rollout_length: int = 32  # steps taken in each of them, from a fresh start

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_pairs", "num_envs", "rollout_length")

    @property
    def frames_per_iteration(self) -> int:
        return 2 * self.num_pairs * self.num_envs * self.rollout_length

    @property
    def split_over_devices(self) -> dict[str, int]:
        return {"num_pairs": self.num_pairs}

    @property
    def why_one_seed(self) -> str:
        return "the evolution loop is written for one seed"


@pytree
class EvolutionState:
    """All that training needs to continue: equal states continue equally."""

    learner: PyTree
    key: Key
    iteration: Array


def make_evolution(inputs: LoopInputs) -> Loop:
    config: EvolutionConfig = inputs.config
    env, algorithm = inputs.env, inputs.algorithm
    batched = BatchedEnv(env=env, num_envs=config.num_envs, compile_steps=inputs.compile_steps)
    scored = scored_groups(env.spec.cooperating, taken_groups(algorithm, env.spec))  # those in `mean_return`
    mesh = Mesh(inputs.devices, (DEVICE_AXIS,))

    def play(learner: PyTree, key: Key) -> tuple[Array, Any]:
        """The mean reward of a step, and the episodes that ended."""
        key_reset, key_play = jax.random.split(key)
        actor = init_actor(batched, algorithm, key_reset)
        _, steps, sums = unroll(batched, algorithm, algorithm.acting(learner), actor, key_play, config.rollout_length)
        own = played_by_team({group: part.extras for group, part in steps.items()})
        earned = [jnp.where(steps[g].alive & own.get(g, True), steps[g].reward, 0.0).mean() for g in scored]
        return jnp.stack(earned).mean(), sums

    def try_pair(learner: PyTree, key: Key) -> tuple[Array, Any]:
        """What θ + σε and θ − σε earn, `[2]`, in the same episodes."""
        key_noise, key_play = jax.random.split(key)
        noise = draw_noise(parameters(learner), key_noise)
        moved = jnp.asarray([config.sigma, -config.sigma])
        return jax.vmap(lambda scale: play(moved_by(learner, noise, scale), key_play))(moved)

    # Devices try different pairs. Everything else is the same on each.
    try_pairs = jax.shard_map(
        jax.vmap(try_pair, in_axes=(None, 0)),
        mesh=mesh,
        in_specs=(P(), P(DEVICE_AXIS)),
        out_specs=P(DEVICE_AXIS),
        check_vma=False,
    )

    def iterate(state: EvolutionState) -> tuple[EvolutionState, dict[str, Array]]:
        keys = jax.random.split(jax.random.fold_in(state.key, state.iteration), config.num_pairs)
        earned, sums = try_pairs(state.learner, keys)
        direction = ascent_direction(parameters(state.learner), earned, jax.vmap(jax.random.split)(keys)[:, 0])
        means = episode_means(jax.tree.map(lambda x: x.sum(axis=(0, 1)), sums), scored)
        metrics = {"reward": earned.mean()} | {f"collection/{name}": value for name, value in means.items()}
        if inputs.hooks.metrics:
            metrics = inputs.hooks.metrics(metrics)
        learner = moved_by(state.learner, direction, config.step_size)
        return dataclasses.replace(state, learner=learner, iteration=state.iteration + 1), metrics

    def init(key: Key) -> EvolutionState:
        key_learner, key_train = jax.random.split(key)
        return EvolutionState(learner=algorithm.init(key_learner), key=key_train, iteration=jnp.zeros((), jnp.int32))

    def advance(state: EvolutionState, num_iterations: Array) -> tuple[EvolutionState, dict[str, Array]]:
        return repeat(iterate, state, num_iterations, max_iterations)

    everywhere = NamedSharding(mesh, P())
    max_iterations = 32
    return Loop(
        init=jax.jit(init, out_shardings=everywhere),
        advance=jax.jit(advance, donate_argnums=0, out_shardings=everywhere),
        learner=lambda state: state.learner,
        with_learner=lambda state, learner: dataclasses.replace(state, learner=learner),
        saved=saved,
        restored=restored,
        parts={"learner": StatePart(label="learner"), "clock": StatePart(label="clock")},
        shardings=everywhere,
        max_iterations=max_iterations,
        frames_per_iteration=config.frames_per_iteration,
    )


def parameters(learner: PyTree) -> dict[str, PyTree]:
    """By group. Partners, who do not learn, have no part in them."""
    return {group: part.params for group, part in learned_part(learner).items()}


def moved_by(learner: PyTree, direction: dict[str, PyTree], scale: Array | float) -> PyTree:
    """The learner with parameters θ + scale · direction."""
    moved = jax.tree.map(lambda p, d: p + scale * d, parameters(learner), direction)
    own = {group: dataclasses.replace(part, params=moved[group]) for group, part in learned_part(learner).items()}
    return with_learned_part(learner, own)


def draw_noise(like: PyTree, key: Key) -> PyTree:
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten([jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])


def ascent_direction(like: PyTree, earned: Array, keys: Array) -> PyTree:
    """1 / 2n Σ_i (A_i⁺ − A_i⁻) ε_i, from `earned [n, 2]` and the keys `[n]` that the ε were drawn with."""
    standardised = (earned - earned.mean()) / (earned.std() + 1e-8)
    weights = (standardised[:, 0] - standardised[:, 1]) / 2
    noise = jax.vmap(lambda key: draw_noise(like, key))(keys)
    return jax.tree.map(lambda eps: jnp.tensordot(weights, eps, axes=1) / len(weights), noise)


def saved(state: EvolutionState) -> dict[str, PyTree]:
    """What checkpoints hold, by part."""
    return {"learner": learned_part(state.learner), "clock": {"key": state.key, "iteration": state.iteration}}


def restored(state: EvolutionState, trees: dict[str, PyTree]) -> EvolutionState:
    learner = with_learned_part(state.learner, trees["learner"]) if "learner" in trees else state.learner
    return dataclasses.replace(state, learner=learner, **trees.get("clock", {}))


covey.register_loop(
    "evolution",
    make_evolution,
    config=EvolutionConfig,
    description="evolution strategies over the parameters",
    like="online",  # algorithms that learn in the loop `online` can be used here
)


def main() -> None:
    experiment = covey.Experiment(
        algorithm="ippo",
        task="probe/copy",
        imports=["custom_loop"],
        fields={
            "model.layers": [16],
            "experiment.loop": "evolution",
            "experiment.frames": 200_000,
            "experiment.rollout_length": 8,
            "experiment.evaluation_interval": 0,
        },
    )
    [summary] = experiment.run()
    after = sum(summary.returns_after) / len(summary.returns_after)
    assert after > 0.9, f"chance is 0.5 and the best is 1; this reached {after}"


if __name__ == "__main__":
    main()
