"""Learning from a source by hand: what is sampled, updated, and given back as priorities."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.data.source import Sample, Source
from covey.loops.learning import learn_from
from covey.types import Algorithm, Batch, Key


def counting() -> Algorithm:
    """Each update adds `progress` to the learner, whose number before it is the loss; two groups say their errors."""

    def update(learner: Any, batch: Batch, key: Key, progress: Any) -> tuple[Any, Any, Any]:
        metrics = {"loss": learner, "seen": batch.weight, "drawn": jax.random.uniform(key)}
        return learner + progress, metrics, {"one": learner, "other": 3.0 * learner}

    return Algorithm(
        init=lambda key: None, initial_carry=lambda n: (), act=lambda *_: (None, None, None), update=update
    )


SOURCE = Source(  # shows the sum of all priorities so far
    sample=lambda data, key: Sample(batch=Batch(transitions={}, weight=data), indices=None),
    set_priorities=lambda data, sample, priorities: data + priorities,
)


def test_each_round_samples_what_the_one_before_left() -> None:
    """The learner is 1, 2, 3; the groups' mean errors are 2, 4, 6; so the source shows 0, 2 and 6, and ends at 12."""
    key = jax.random.key(7)
    learned = learn_from(SOURCE, counting(), jnp.float32(1), jnp.float32(0), key, jnp.float32(1), jnp.int32(3))
    learner, data, metrics = learned
    assert (float(learner), float(data)) == (4.0, 12.0)
    assert float(metrics["loss"]) == pytest.approx((1 + 2 + 3) / 3)
    assert float(metrics["seen"]) == pytest.approx((0 + 2 + 6) / 3)
    drawn = [float(jax.random.uniform(jax.random.split(jax.random.fold_in(key, i))[1])) for i in range(3)]
    assert float(metrics["drawn"]) == pytest.approx(np.mean(drawn)) and len(set(drawn)) == 3


def test_without_a_round_nothing_changes_and_metrics_are_nan() -> None:
    key = jax.random.key(7)
    learned = learn_from(SOURCE, counting(), jnp.float32(1), jnp.float32(5), key, jnp.float32(1), jnp.int32(0))
    assert (float(learned[0]), float(learned[1])) == (1.0, 5.0)
    assert np.isnan([float(value) for value in learned[2].values()]).tolist() == [True, True, True]
