"""Every registered algorithm on every kind of task: it learns there, or refuses in one line. Never anything else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import registry

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
PAIRS = [pytest.param(name, kind, id=f"{name}-{kind}") for name in ALGORITHMS for kind in KINDS]


def is_refused(algorithm: str, kind: str) -> bool:
    match kind:
        case "continuous":
            return algorithm in ONLY_DISCRETE
        case "multi-discrete":
            return algorithm not in ("ippo", "mappo")
        case _:
            return algorithm in ONLY_CONTINUOUS


@pytest.mark.parametrize(("algorithm", "kind"), PAIRS)
def test_an_iteration_is_traced_or_refused(fresh, algorithm, kind):
    options = {"algorithm": algorithm, "num_envs": 4, "rollout_length": 16}
    if is_refused(algorithm, kind):
        with pytest.raises(ValueError, match="group '"):
            fresh(KINDS[kind], iterations=0, **options)
        return
    team = fresh(KINDS[kind], iterations=0, **options)
    jax.eval_shape(team.loop.run_chunk, team.state, jnp.int32(2))


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kind"), [pair for pair in PAIRS if not is_refused(*pair.values)])
def test_two_iterations_are_finite(fresh, algorithm, kind):
    team = fresh(
        KINDS[kind],
        "buffer.batch_size=16" if registry.algorithms[algorithm].loop == "replay" else "seed=0",
        algorithm=algorithm,
        iterations=2,
        num_envs=4,
        rollout_length=16,
    )
    for name, values in team.metrics.items():
        if not name.startswith("collection/"):  # there, NaN is an episode that has not ended
            assert np.isfinite(values).all(), name
