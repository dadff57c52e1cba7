from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.ops.schedules import Schedule, factor

PROGRESS = jnp.array([-0.5, 0.0, 0.25, 0.5, 1.0, 1.5])
WANTED = {
    Schedule.constant: [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    Schedule.linear: [1.0, 1.0, 0.75, 0.5, 0.0, 0.0],
    Schedule.cosine: [1.0, 1.0, 0.5 + np.sqrt(0.125), 0.5, 0.0, 0.0],
}


@pytest.mark.parametrize("schedule", list(Schedule), ids=lambda schedule: schedule.name)
def test_schedules_by_hand(schedule):
    np.testing.assert_allclose(factor(schedule, PROGRESS), WANTED[schedule], atol=1e-6)
    np.testing.assert_allclose(jax.jit(factor, static_argnums=0)(schedule, PROGRESS), WANTED[schedule], atol=1e-6)
