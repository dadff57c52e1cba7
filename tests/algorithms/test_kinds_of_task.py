"""Every registered algorithm on every kind of task: it learns there, or refuses in one line. Never anything else."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from conftest import MakeTeam

from covey import metrics, registry
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose
from covey.experiment.running.build import build
from covey.networks.models import MlpConfig

KINDS = {
    "discrete": "probe/copy",
    "masked": "probe/masked",
    "multi-discrete": "probe/choices",
    "continuous": "probe/target",
    "rows": "probe/rows",
    "dictionary": "probe/image_and_vector",
    "several groups": "probe/groups",
    "global state": "probe/two_step",
    "deaths": "probe/death",
}
ONLY_DISCRETE = {"iql", "vdn", "qmix", "pqn"}
ONLY_CONTINUOUS = {"iddpg", "maddpg", "itd3", "matd3"}
ALGORITHMS = [entry.name for entry in registry.algorithms]
PAIRS = [(name, kind) for name in ALGORITHMS for kind in KINDS]


def is_refused(algorithm: str, kind: str) -> bool:
    match kind:
        case "continuous":
            return algorithm in ONLY_DISCRETE
        case "multi-discrete":
            return algorithm not in ("ippo", "mappo", "impala")
        case _:
            return algorithm in ONLY_CONTINUOUS


@pytest.mark.parametrize(("algorithm", "kind"), [pair for pair in PAIRS if is_refused(*pair)])
def test_what_an_algorithm_cannot_do_is_refused(algorithm: str, kind: str) -> None:
    config = compose([f"algorithm={algorithm}", f"task={KINDS[kind]}", "experiment.devices=1"])
    with pytest.raises(UsageError, match="group '"):
        build(config, jax.devices()[:1])


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kind"), [pair for pair in PAIRS if not is_refused(*pair)])
def test_two_iterations(fresh: MakeTeam, algorithm: str, kind: str) -> None:
    replay = registry.algorithms[algorithm].loop == "replay"
    team = fresh(
        KINDS[kind],
        *(("buffer.batch_size=16",) if replay else ()),
        algorithm=algorithm,
        iterations=2,
        num_envs=4,
        rollout_length=16,
    )
    for name, values in team.metrics.items():
        if not name.startswith("collection/"):  # there, NaN is an episode that has not ended
            assert np.isfinite(values).all(), name


# ---------------------------------------------------------------------------------------------------------- models

FAMILIES = {
    "mappo": "probe/copy",
    "impala": "probe/copy",
    "pqn": "probe/copy",
    "qmix": "probe/copy",
    "masac": "probe/target",
    "maddpg": "probe/target",
}
MODELS = [
    entry.name for entry in registry.models if entry.name not in ("mlp", "cnn")
]  # of these, the rest of the tests
NEEDED = {"sequence": ("model.stages={see:{model:mlp},meet:{model:gnn},keep:{model:gru}}",)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_every_family_takes_every_model(algorithm: str, model: str) -> None:
    """Building traces an iteration, update included."""
    words = [f"algorithm={algorithm}", f"task={FAMILIES[algorithm]}", f"model={model}", *NEEDED.get(model, ())]
    build(compose([*words, "experiment.devices=1"]), jax.devices()[:1])


def test_the_metrics_of_updates_are_those_that_are_described() -> None:
    given: set[str] = set()
    for algorithm, task in FAMILIES.items():
        parts = build(compose([f"algorithm={algorithm}", f"task={task}", "experiment.devices=1"]), jax.devices()[:1])
        state = jax.eval_shape(parts.loop.init, jax.random.key(0))
        names = jax.eval_shape(parts.loop.advance, state, np.int32(1))[1]
        [group] = parts.env.spec.groups
        given |= {name.removeprefix(f"{group}/") for name in names if name.startswith(f"{group}/")}
    assert given == set(metrics.UPDATE)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_two_iterations_with_every_model(fresh: MakeTeam, algorithm: str, model: str) -> None:
    fields = ("buffer.batch_size=16",) if registry.algorithms[algorithm].loop == "replay" else ()
    shapes = {"iterations": 2, "num_envs": 4, "rollout_length": 32}
    team = fresh(FAMILIES[algorithm], *NEEDED.get(model, ()), *fields, algorithm=algorithm, model=model, **shapes)
    for name, values in team.metrics.items():
        if not name.startswith("collection/"):
            assert np.isfinite(values).all(), name


def test_a_global_state_is_not_cut_into_agents() -> None:
    """SMAX's has 120 numbers for 5 agents, of which none owns 24."""
    common = ["algorithm=mappo", "task=smax/2s3z", "critic_model=attention", "experiment.devices=1"]
    parts = build(compose(common), jax.devices()[:1])  # auto: the joint observation
    assert parts.env.spec.state_shape == (120,)
    with pytest.raises(UsageError, match="reads the agents' observations, not a global state"):
        build(compose([*common, "algorithm.critic_sees=state"]), jax.devices()[:1])


UNFIT = {
    ("algorithm=ippo", "model=deepsets"): (
        "model 'deepsets' needs observations [F] over agents, not [4, 4]",
        "2 of the last axis are agent ids; algorithm.agent_ids=false omits them",
        "try model.over=rows, or model=mlp",
    ),
    ("algorithm=ippo", "model=deepsets", "algorithm.agent_ids=false"): (
        "needs observations [F] over agents, not [4, 2]; try model.over=rows, or model=mlp",
    ),
    ("algorithm=mappo", "model=deepsets", "model.over=rows"): (
        "the critic's model 'deepsets' needs observations [N, F] over rows, not [32], which is what a central critic",
        "critic_model.rows=[first, number, size], or critic_model=mlp",
    ),
    ("algorithm=masac", "model=attention", "model.over=rows"): ("the critic's model 'attention'", "critic_model=mlp"),
    ("algorithm=ippo", "model=gnn"): ("model 'gnn' needs observations [F], not [4, 4]", "try model=mlp"),
    ("algorithm=ippo", "critic_model=cnn"): ("the critic's model 'cnn'", "try critic_model=mlp"),
    ("algorithm=ippo", "model=sequence", "model.stages={see:{model:deepsets}}"): (
        "model 'deepsets'",
        "try model.stages.see.over=rows, or model=mlp",
    ),
}


@pytest.mark.parametrize("words", UNFIT, ids=" ".join)
def test_a_model_that_cannot_take_its_input_says_whose_it_is_and_what_helps(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        build(compose([*words, "task=probe/rows", "experiment.devices=1"]), jax.devices()[:1])
    for part in UNFIT[words]:
        assert part in str(caught.value)


def test_the_author_of_a_model_is_told_how_it_takes_dictionaries() -> None:
    words = ["algorithm=ippo", "task=probe/image_and_vector", "experiment.devices=1"]
    registry.register_model("arrays_only", print, config=MlpConfig, description="test")
    try:
        with pytest.raises(UsageError) as caught:
            build(compose([*words, "model=arrays_only"]), jax.devices()[:1])
    finally:
        registry.models._entries.pop("arrays_only")
    assert "register it with takes_dictionaries=True" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        build(compose([*words, "model=gnn"]), jax.devices()[:1])
    assert "takes_dictionaries" not in str(caught.value) and "agent ids" not in str(caught.value)


def test_a_rollout_must_fit_into_the_buffer() -> None:
    config = compose(
        ["algorithm=iql", "task=probe/copy", "buffer.size=256", "experiment.num_envs=64", "experiment.devices=1"]
    )
    with pytest.raises(UsageError, match="leaves 4 steps for each environment, fewer than rollout_length=8"):
        build(config, jax.devices()[:1])
