"""Callbacks: your own code on the host between iterations. They read everything and may set coefficients.

This one lowers the learning rate where evaluations stop improving. Coefficients are traced values in the learner's
state, so changing them compiles nothing again, and they are saved with it. Run this file, or, in its folder,

    covey train callbacks=[callbacks:LowerOnPlateau]
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import covey
from covey.experiment.running.console import Summary
from covey.experiment.running.training import Training


class LowerOnPlateau:
    """Halves the learning rate after `patience` evaluations without a new best. Every method is optional."""

    def __init__(self, patience: int = 2):
        self.patience = patience
        self.best = -np.inf
        self.waited = 0

    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
        """After every iteration, with its metrics."""
        if metrics["agents/entropy"] < 0.01:
            print(f"{training.frames:,} frames: the policy hardly explores any more")

    def on_evaluation(self, training: Training, values: Mapping[str, np.ndarray]) -> None:
        """After every evaluation, with one value per episode."""
        mean = float(values["mean_return"].mean())
        self.waited = 0 if mean > self.best else self.waited + 1
        self.best = max(mean, self.best)
        if self.waited >= self.patience:
            lr = training.coefficients["agents"]["lr"] / 2
            training.set_coefficient("lr", lr)
            print(f"{training.frames:,} frames: no better for {self.waited} evaluations, lr becomes {lr:.2g}")
            self.waited = 0

    def on_end(self, training: Training, summary: Summary) -> None:
        print(f"the best evaluation was {self.best:.3f}; all is in {summary.run_directory}")


def main() -> None:
    # By name, `module:Class`, the run directory stores it, and `covey resume` makes it again. An object works as well,
    # here LowerOnPlateau(patience=3), but only until the run is interrupted.
    experiment = covey.Experiment(
        task="probe/copy",
        callbacks=["callbacks:LowerOnPlateau"],
        fields={
            "model.layers": [32],
            "algorithm.lr_schedule": "constant",  # schedules scale the coefficient; here the callback alone sets it
            "algorithm.num_minibatches": 2,
            "experiment.frames": 20_000,
            "experiment.num_envs": 32,
            "experiment.rollout_length": 8,
            "experiment.evaluation_interval": 2_000,
        },
    )
    experiment.run()


if __name__ == "__main__":
    main()
