"""What one seed leaves behind while it trains: metrics, results and checkpoints in its run directory, and its loggers.

`Training` drives the device, for one seed or for several at once; each seed has a `Recorder`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from covey import metrics as names
from covey import results as marl_eval
from covey.errors import CoveyError
from covey.experiment.checkpoint import Checkpoints, Restored
from covey.experiment.config import Config, to_dict
from covey.experiment.console import Summary
from covey.experiment.loggers import LoggerTeam
from covey.experiment.run_directory import RunDirectory
from covey.types import EnvSpec, Key, PyTree


@dataclasses.dataclass
class Progress:
    """What a checkpoint stores besides arrays."""

    best_score: float = -math.inf
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_compiling: float = 0.0
    metrics_offset: int = 0
    devices: int = 1


class Recorder:
    """One seed's files and loggers, and how far it is."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        spec: EnvSpec,
        frames_per_iteration: int,
        seconds_compiling: float,
        warn: Callable[[str], None],
    ):
        experiment = config.experiment
        self.config = config
        self.run_directory = run
        self.progress = Progress(seconds_compiling=seconds_compiling, devices=experiment.devices or 1)
        self.checkpoints = Checkpoints(run.checkpoints, keep=experiment.checkpoint_keep, warn=warn)
        self.latest_return: float | None = None
        self._spec = spec
        self._frames_per_iteration = frames_per_iteration
        self._loggers = LoggerTeam(experiment.loggers, experiment.logger_options, warn=warn)
        self._results = marl_eval.make_results(config.task.name, config.algorithm.label, config.seed)
        self._key_evaluate = jax.random.key(jnp.uint32(config.seed) ^ jnp.uint32(0x9E3779B9))

    def training_key(self) -> Key:
        """What all of the seed's training is derived from."""
        return jax.random.key(self.config.seed)

    def evaluation_key(self, iteration: int) -> Key:
        return jax.random.fold_in(self._key_evaluate, iteration)

    def absolute_key(self, number: int) -> Key:
        """Of the absolute metric's rounds."""
        return jax.random.fold_in(jax.random.fold_in(self._key_evaluate, 2**31 - 1), number)

    # --------------------------------------------------------------------------------------------- start and end

    def begin(self) -> None:
        """Forgets what a run without a checkpoint may have written."""
        self.run_directory.metrics.cut(0)

    def go_on(self, restored: Restored) -> None:
        """Cuts the files back to where a checkpoint was."""
        now, self.progress = self.progress, Progress(**restored.meta)
        self.progress.seconds_compiling += now.seconds_compiling
        self.progress.devices = now.devices
        self.run_directory.metrics.cut(self.progress.metrics_offset)
        known = self.run_directory.read_results()
        if known is not None:
            self._results = marl_eval.cut_steps(known, restored.iteration * self._frames_per_iteration)

    def start_loggers(self, frames: int) -> None:
        self._loggers.start(self.run_directory, to_dict(self.config), frames)

    def finish_loggers(self, timeout: float) -> None:
        self._loggers.finish(timeout)

    # -------------------------------------------------------------------------------------------------- recording

    @property
    def evaluated(self) -> bool:
        return bool(marl_eval.steps(self._results))

    def record_chunk(self, chunk: Mapping[str, np.ndarray], iteration: int, rate: float) -> dict[str, float]:
        """Metrics `[n]` of the n iterations up to `iteration`; returns the last one's."""
        size = len(next(iter(chunk.values())))
        record: dict[str, float] = {}
        for i in range(size):
            number = iteration - size + i + 1
            record = {name: float(values[i]) for name, values in chunk.items()}
            record = {names.ITERATION: number, **record, names.FRAMES_PER_SECOND: rate}
            self._record(names.TRAIN, record, number * self._frames_per_iteration)
        value = record.get(f"collection/{names.MEAN_RETURN}", math.nan)  # a user's hook may drop it
        self.latest_return = value if math.isfinite(value) else self.latest_return
        return record

    def record_evaluation(self, values: Mapping[str, np.ndarray], iteration: int) -> bool:
        """True if the parameters of this evaluation are the best so far (of equals, the later)."""
        frames = iteration * self._frames_per_iteration
        score = rate(values, self.config.experiment.best_by, self._spec)
        improved = score >= self.progress.best_score
        if improved:
            self.progress.best_score = score
        self._results = marl_eval.add_step(
            self._results, frames=frames, elapsed_seconds=self._elapsed(), metrics=values
        )
        self.run_directory.write_results(self._results)
        self._record(names.EVALUATION, {name: float(value.mean()) for name, value in values.items()}, frames)
        return improved

    def record_absolute(self, values: Mapping[str, np.ndarray], iteration: int, seconds: Mapping[str, float]) -> None:
        """The absolute metric, and with it what the run cost: `seconds` by what they were spent on."""
        self._results = marl_eval.set_absolute_metrics(self._results, values)
        self.run_directory.write_results(self._results)
        means = {name: float(value.mean()) for name, value in values.items()}
        costs = {f"{part}_seconds": value for part, value in seconds.items()}
        costs = {name: value for name, value in costs.items() if name in names.WALL_CLOCK}
        self._record(names.ABSOLUTE, means | costs, iteration * self._frames_per_iteration)

    def save(self, tree: dict[str, PyTree], iteration: int) -> None:
        self.progress.metrics_offset = self.run_directory.metrics.sync()
        self.checkpoints.save(iteration, tree, dataclasses.asdict(self.progress))

    def check_finite(self, chunk: Mapping[str, np.ndarray], iteration: int, also: str = "") -> None:
        """Collection's means are NaN where no episode ended; anything else that is not finite is the end.

        `also` ends the message."""
        for name, values in chunk.items():
            if name.startswith("collection/"):
                continue
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                self.checkpoints.wait()
                raise CoveyError(
                    f"iteration {iteration + int(bad[0]) + 1}: {name} is {values[bad[0]]}; training stopped, "
                    f"the last good checkpoint is in {self.run_directory.path}{also}"
                )

    def summary(
        self, absolute: Mapping[str, np.ndarray] | None, iteration: int, seconds: Mapping[str, float]
    ) -> Summary:
        steps = list(marl_eval.steps(self._results).values())
        frames = iteration * self._frames_per_iteration
        return Summary(
            title=f"{self.config.algorithm.label} on {self.config.task.name}, seed {self.config.seed}",
            returns_before=steps[0][names.MEAN_RETURN],
            returns_after=steps[-1][names.MEAN_RETURN],
            returns_absolute=None if absolute is None else absolute[names.MEAN_RETURN].tolist(),
            frames=frames,
            frames_per_second=frames / max(self.progress.seconds_training, 1e-9),
            seconds=seconds,
            run_directory=self.run_directory.path,
        )

    def _record(self, kind: str, record: Mapping[str, float], frames: int) -> None:
        head = {names.KIND: kind, names.FRAMES: frames, names.ELAPSED_SECONDS: self._elapsed()}
        self.run_directory.metrics.append({**head, **record})
        self._loggers.log(kind, record, frames)

    def _elapsed(self) -> float:
        return self.progress.seconds_training + self.progress.seconds_evaluating


def finish_all(recorders: Sequence[Recorder], seconds: float = 30.0) -> None:
    """Waits for what is being written, and for all loggers together so long at most; then raises what went wrong."""
    errors = []
    for recorder in recorders:
        try:
            recorder.checkpoints.wait()
        except CoveyError as error:
            errors.append(error)
    deadline = time.monotonic() + seconds
    for recorder in recorders:
        recorder.finish_loggers(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]


def rate(values: Mapping[str, np.ndarray], best_by: str, spec: EnvSpec) -> float:
    """What an evaluation says of its parameters by one of its metrics: the higher, the better."""
    metric = spec.metrics.get(best_by)
    mean = float(values[best_by].mean())
    return mean if metric is None or metric.higher_is_better else -mean
