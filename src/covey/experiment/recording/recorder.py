"""What one seed leaves behind while it trains: metrics, results and checkpoints in its run directory, and its loggers.

`Training` drives the device, for one seed or for several at once; each seed has a `Recorder`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey import metrics as names
from covey import results as marl_eval
from covey.errors import CoveyError
from covey.experiment.configuration.config import Config, to_dict
from covey.experiment.configuration.partners import taken_whole
from covey.experiment.recording.checkpoint import Checkpoints, Restored
from covey.experiment.recording.lease import LeaseLost
from covey.experiment.recording.loggers import LoggerTeam
from covey.experiment.recording.mirror import (
    find_step,
    read_intact,
    records_with_evaluations,
    results_from_records,
    step_checksum,
)
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.console import Returns, Summary
from covey.files import to_json
from covey.ops.random import host_fold_in, host_key
from covey.types import EnvSpec, Key, PyTree


@dataclasses.dataclass
class Progress:
    """What a checkpoint stores besides arrays."""

    best_score: float = -math.inf
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_compiling: float = 0.0
    metrics_offset: int = 0
    metrics_checksum: int | None = None  # of metrics.jsonl up to there; earlier versions stored none
    results: str = ""  # a copy of results.json; earlier versions stored none
    devices: int = 1
    # what `Training.set_field` changed, by the field's path; earlier versions stored none
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


class Diverged(CoveyError):
    """A metric is not finite. The seed it belongs to has recorded that it failed."""


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
        self.checkpoints = Checkpoints(
            run.checkpoints, keep=experiment.checkpoint_keep, warn=warn, check=run.check_lease
        )
        self._latest_returns: dict[str, float] = {}
        self._warn = warn
        self._spec = spec
        self._frames_per_iteration = frames_per_iteration
        self._loggers = LoggerTeam(experiment.loggers, experiment.logger_options, warn=warn)
        self._results = marl_eval.make_results(config.task.name, config.algorithm.label, config.seed)
        self._key_evaluate = host_key(config.seed ^ 0x9E3779B9)

    def training_key(self) -> Key:
        """The key that all of the seed's training is derived from."""
        return host_key(self.config.seed)

    def evaluation_key(self, iteration: int) -> Key:
        return host_fold_in(self._key_evaluate, iteration)

    def absolute_key(self, number: int) -> Key:
        """The key of one round of the absolute metric."""
        return host_fold_in(host_fold_in(self._key_evaluate, 2**31 - 1), number)

    # --------------------------------------------------------------------------------------------- start and end

    def begin(self) -> None:
        """Forgets what a run without a checkpoint may have written."""
        self.run_directory.check_lease()
        self.run_directory.clear_failure()
        self.run_directory.metrics.cut(0)

    def continue_from(self, restored: Restored) -> None:
        """Cuts the files back to where a checkpoint was, and rebuilds those that are missing or damaged."""
        self.run_directory.check_lease()
        self.run_directory.clear_failure()
        now, self.progress = self.progress, Progress(**restored.meta)
        self.progress.seconds_compiling += now.seconds_compiling
        self.progress.devices = now.devices
        frames = restored.iteration * self._frames_per_iteration
        self._continue_results(frames)
        self._continue_metrics(restored.iteration, frames)

    def _continue_results(self, frames: int) -> None:
        path = self.run_directory.path / "results.json"
        known, why = None, "is missing"
        try:
            found = self.run_directory.read_results()
            known = None if found is None else marl_eval.cut_steps(found, frames)
        except (CoveyError, KeyError, TypeError) as error:  # no JSON; no frames in a step; no step
            why = f"is damaged ({' '.join(str(error).split())[:200]})"
        stored = json.loads(self.progress.results) if self.progress.results else None
        if known is not None and stored in (None, known):
            self._results = known
            return
        if stored is not None:
            why = why if known is None else "is not as covey wrote it: edited or damaged"
            self._results = stored
            again = "its evaluations are taken from the checkpoint"
        else:
            records, _ = read_intact(self.run_directory.metrics.path)
            records = [record for record in records if record[names.FRAMES] <= frames]
            self._results = marl_eval.cut_steps(results_from_records(self._results, records), frames)
            again = "it is rebuilt from metrics.jsonl, with means in place of single episodes"
        self._warn(f"{path} {why}; {again}{_set_aside(path)}")
        self.run_directory.write_results(self._results)

    def _continue_metrics(self, iteration: int, frames: int) -> None:
        metrics = self.run_directory.metrics
        if metrics.is_intact(self.progress.metrics_offset, self.progress.metrics_checksum):
            metrics.cut(self.progress.metrics_offset)
            return
        why = "is damaged" if metrics.path.exists() else "is missing"
        found, _ = read_intact(metrics.path)
        # The absolute metric comes after the last checkpoint, and is played again.
        records = [
            record for record in found if record[names.FRAMES] <= frames and record[names.KIND] != names.ABSOLUTE
        ]
        lost = iteration - sum(record[names.KIND] == names.TRAIN for record in records)
        aside = _set_aside(metrics.path)
        metrics.rewrite(records_with_evaluations(records, self._results))
        of_training = f"the records of {lost:,} of {iteration:,} iterations are lost" if lost else "no record is lost"
        self._warn(f"{metrics.path} {why}: {of_training}, those of evaluations are in results.json{aside}")

    def start_loggers(self, frames: int) -> None:
        self._loggers.start(self.run_directory, to_dict(self.config), frames)

    def finish_loggers(self, timeout: float) -> None:
        self._loggers.finish(timeout)

    # -------------------------------------------------------------------------------------------------- recording

    @property
    def evaluated(self) -> bool:
        return bool(marl_eval.steps(self._results))

    def record_chunk(self, chunk: Mapping[str, np.ndarray], iteration: int, rate: float) -> dict[str, float]:
        """Metrics `[n]` of the n iterations up to `iteration`; returns the last one's.

        What an iteration without updates does not have is left out of its record.
        """
        size = len(next(iter(chunk.values())))
        absent = without_updates(chunk)
        record: dict[str, float] = {}
        for i in range(size):
            number = iteration - size + i + 1
            record = {name: float(values[i]) for name, values in chunk.items() if not absent[name][i]}
            record = {names.ITERATION: number, **record, names.FRAMES_PER_SECOND: rate}
            self._record(names.TRAIN, record, number * self._frames_per_iteration)
        return record

    def latest_returns(self, chunk: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The latest returns by group that are known after a chunk of iterations; "" has `mean_return`."""
        for group, name in self._shown_returns().items():
            values = chunk.get(f"collection/{name}", [math.nan])  # a user's hook may drop it
            if math.isfinite(values[-1]):
                self._latest_returns[group] = float(values[-1])
        return self._latest_returns

    def evaluated_returns(self) -> dict[str, float]:
        """The means of the latest evaluation by group; "" has `mean_return`. Empty before the first."""
        latest = next(reversed(marl_eval.steps(self._results).values()), None)
        if latest is None:
            return {}
        return {group: float(np.mean(latest[name])) for group, name in self._shown_returns().items() if name in latest}

    def _shown_returns(self) -> dict[str, str]:
        """The metric of each group that is shown by itself, and under "" `mean_return`."""
        opponents = taken_whole(self.config.partners, self._spec.groups)
        groups = names.shown_groups(self._spec.cooperating, opponents)
        return {"": names.MEAN_RETURN, **{group: names.group_return(group) for group in groups}}

    def record_evaluation(self, values: Mapping[str, np.ndarray], iteration: int) -> bool:
        """Records an evaluation. True if its parameters are the best so far; a tie counts."""
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
        self.run_directory.check_lease()
        self.progress.metrics_offset = self.run_directory.metrics.sync()
        self.progress.metrics_checksum = self.run_directory.metrics.checksum
        self.progress.results = to_json(self._results)
        self.checkpoints.save(iteration, tree, dataclasses.asdict(self.progress))

    def check_finite(self, chunk: Mapping[str, np.ndarray], iteration: int, also: str = "") -> None:
        """Raises Diverged if a metric is not finite, with `also` at the end of the message.

        The means of collection do not count: they are NaN where no episode ended. Nor do metrics of updates in
        iterations that make none."""
        absent = without_updates(chunk)
        for name, values in chunk.items():
            if name.startswith("collection/"):
                continue
            bad = np.flatnonzero(~(np.isfinite(values) | absent[name]))
            if bad.size:
                self.checkpoints.wait()
                saved = self.checkpoints.iterations()
                path = self.run_directory.path
                where = f"the last good checkpoint is in {path}" if saved else f"{path} has no checkpoint yet"
                number = iteration + int(bad[0]) + 1
                what = f"iteration {number}: {name} is {values[bad[0]]}"
                self.record_failure(what, number)
                raise Diverged(f"{what}; training stopped, {where}{also}")

    def record_failure(self, error: str, iteration: int) -> None:
        """Notes in the run directory that the run failed. If that cannot be written, or another process has the run by
        now, the error itself is still reported."""
        with contextlib.suppress(OSError, LeaseLost):
            self.run_directory.write_failure(error, iteration * self._frames_per_iteration)

    def summary(
        self, absolute: Mapping[str, np.ndarray] | None, iteration: int, seconds: Mapping[str, float]
    ) -> Summary:
        steps = list(marl_eval.steps(self._results).values())
        frames = iteration * self._frames_per_iteration
        by_group = {
            group: Returns(
                before=steps[0][name],
                after=steps[-1][name],
                absolute=None if absolute is None else absolute[name].tolist(),
            )
            for group, name in self._shown_returns().items()
        }
        whole = by_group.pop("")
        return Summary(
            title=f"{self.config.algorithm.label} on {self.config.task.name}, seed {self.config.seed}",
            returns_before=whole.before,
            returns_after=whole.after,
            returns_absolute=whole.absolute,
            by_group=by_group,
            frames=frames,
            frames_per_second=frames / max(self.progress.seconds_training, 1e-9),
            seconds=seconds,
            run_directory=self.run_directory.path,
        )

    def _record(self, kind: str, record: Mapping[str, float], frames: int) -> None:
        head = {names.KIND: kind, names.FRAMES: frames, names.ELAPSED_SECONDS: self._elapsed()}
        self.run_directory.check_lease()
        step = None if kind == names.TRAIN else find_step(self._results, kind, frames)
        checksum = {} if step is None else {names.RESULTS_CHECKSUM: step_checksum(self._results, step)}
        self.run_directory.metrics.append({**head, **record, **checksum})
        self._loggers.log(kind, record, frames)

    def _elapsed(self) -> float:
        return self.progress.seconds_training + self.progress.seconds_evaluating


def finish_all(recorders: Sequence[Recorder], seconds: float = 30.0) -> None:
    """Waits for checkpoints, and at most `seconds` for all loggers together; then raises the first error."""
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


def without_updates(chunk: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The iterations `[n]` of a chunk in which each metric is absent, because no update was made that would give it.

    It is NaN there. The means of collection are never absent.
    """
    size = len(next(iter(chunk.values())))
    idle = chunk.get(names.UPDATES, np.ones(size)) == 0  # a loop that does not count always updates
    return {name: idle & np.isnan(values) & (not name.startswith("collection/")) for name, values in chunk.items()}


def _set_aside(path: Path) -> str:
    """Keeps a damaged file under another name; returns the end of a sentence that says so.

    It is a copy, so a process that is killed before it has written a new file has lost nothing.
    """
    if not path.exists():
        return ""
    (shutil.copyfile if path.is_file() else os.replace)(path, path.with_name(f"{path.name}.damaged"))
    return f" (the damaged file is kept as {path.name}.damaged)"


def rate(values: Mapping[str, np.ndarray], best_by: str, spec: EnvSpec) -> float:
    """The score of an evaluated team by the metric `best_by`: the higher, the better."""
    metric = spec.metrics.get(best_by)
    mean = float(values[best_by].mean())
    return mean if metric is None or metric.higher_is_better else -mean
