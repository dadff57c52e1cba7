"""Every registered algorithm on every kind of task: it learns there, or refuses in one line. Never anything else."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from covey import registry
from covey.errors import UsageError
from covey.experiment.build import build
from covey.experiment.compose import compose

KINDS = {
    "discrete": "probe/copy",
    "masked": "probe/masked",
    "multi-discrete": "probe/choices",
    "continuous": "probe/target",
    "rows": "probe/rows",
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
            return algorithm not in ("ippo", "mappo")
        case _:
            return algorithm in ONLY_CONTINUOUS


@pytest.mark.parametrize(("algorithm", "kind"), [pair for pair in PAIRS if is_refused(*pair)])
def test_what_an_algorithm_cannot_do_is_refused(algorithm, kind):
    config = compose([f"algorithm={algorithm}", f"task={KINDS[kind]}", "experiment.devices=1"])
    with pytest.raises(UsageError, match="group '"):
        build(config, jax.devices()[:1])


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kind"), [pair for pair in PAIRS if not is_refused(*pair)])
def test_two_iterations(fresh, algorithm, kind):
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
