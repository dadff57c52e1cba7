from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.ops.schedules import Schedule, factor, scheduled

PROGRESS = jnp.array([-0.5, 0.0, 0.25, 0.5, 1.0, 1.5])
WANTED = {
    Schedule.constant: [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    Schedule.linear: [1.0, 1.0, 0.75, 0.5, 0.0, 0.0],
    Schedule.cosine: [1.0, 1.0, 0.5 + np.sqrt(0.125), 0.5, 0.0, 0.0],
}


@pytest.mark.parametrize("schedule", list(Schedule), ids=lambda schedule: schedule.name)
def test_schedules_by_hand(schedule: Schedule) -> None:
    np.testing.assert_allclose(factor(schedule, PROGRESS), WANTED[schedule], atol=1e-6)
    np.testing.assert_allclose(jax.jit(factor, static_argnums=0)(schedule, PROGRESS), WANTED[schedule], atol=1e-6)


def test_only_what_is_scheduled_is_scaled() -> None:
    coefficients = {"lr": jnp.float32(0.4), "gamma": jnp.float32(0.9), "entropy_coef": jnp.float32(0.2)}
    now = scheduled(coefficients, jnp.float32(0.25), lr=Schedule.linear, entropy_coef=Schedule.constant)
    assert now.keys() == coefficients.keys()
    assert float(now["lr"]) == pytest.approx(0.3) and now["gamma"] is coefficients["gamma"]
    assert float(now["entropy_coef"]) == pytest.approx(0.2)
