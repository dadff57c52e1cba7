"""The host's side of training one seed: dispatches chunks, and evaluates, logs and saves while the device works.

What happens at an iteration depends only on its number, never on the clock: metrics are recorded for every iteration,
evaluations and checkpoints fall on fixed ones, and only the size of chunks follows the machine's speed. So a run that
was killed and resumed leaves the same files as one that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from covey import metrics as names
from covey import results as marl_eval
from covey.errors import CoveyError, Interrupted
from covey.experiment.build import Parts, Programs
from covey.experiment.checkpoint import Checkpoints, host_copy
from covey.experiment.config import CollectingConfig, Config, ReplayConfig, to_dict
from covey.experiment.console import Console, Summary
from covey.experiment.loggers import LoggerTeam
from covey.experiment.run_directory import RunDirectory
from covey.loops.online import TrainState
from covey.types import Array, EnvSpec, PyTree

SECONDS_PER_CHUNK = 1.0  # what a chunk aims to take: short enough for a live progress bar and a quick Ctrl-C
ABSOLUTE_ROUNDS = 10  # the absolute metric plays this many times an evaluation's episodes


class Callback(Protocol):
    """A user's own code between chunks; all methods are optional. It may read everything and set coefficients."""

    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None: ...
    def on_evaluation(self, training: Training, values: Mapping[str, np.ndarray]) -> None: ...
    def on_end(self, training: Training, summary: Summary) -> None: ...


@dataclasses.dataclass
class Progress:
    """What a checkpoint stores besides arrays."""

    best_score: float = -math.inf
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_compiling: float = 0.0
    metrics_offset: int = 0
    devices: int = 1


class Training:
    """One seed's training, from a fresh start or a checkpoint to the end."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        programs: Programs,
        run: RunDirectory,
        console: Console,
        callbacks: Sequence[Callback] = (),
        initial_learner: Callable[[PyTree], PyTree] | None = None,
    ):
        experiment = config.experiment
        assert isinstance(experiment, CollectingConfig)
        self.config = config
        self.parts = parts
        self.run_directory = run
        self.console = console
        self.callbacks = callbacks
        self.frames_per_iteration = parts.loop.frames_per_iteration
        self.num_iterations = self._iterations(experiment.frames)
        self.evaluation_interval = self._iterations(experiment.evaluation_interval)
        self.checkpoint_interval = self._iterations(experiment.checkpoint_interval)
        self.progress = Progress(seconds_compiling=programs.seconds, devices=experiment.devices or 1)
        self.state: TrainState  # these three from `_start` on
        self.best: PyTree
        self.iteration: int
        self._programs = programs
        self._initial_learner = initial_learner
        self._checkpoints = Checkpoints(run.checkpoints, keep=experiment.checkpoint_keep, warn=console.warn)
        self._loggers = LoggerTeam(experiment.loggers, experiment.logger_options, warn=console.warn)
        self._results = marl_eval.make_results(config.task.name, config.algorithm.label, config.seed)
        self._key_evaluate = jax.random.key(jnp.uint32(config.seed) ^ jnp.uint32(0x9E3779B9))
        self._chunk_size = 1
        self._latest_return: float | None = None

    # --------------------------------------------------------------------------------------------- what users read

    @property
    def frames(self) -> int:
        return self.iteration * self.frames_per_iteration

    @property
    def coefficients(self) -> dict[str, dict[str, float]]:
        """The bases that schedules scale, by group."""
        return {
            group: {k: float(v) for k, v in part.coefficients.items()} for group, part in self.state.learner.items()
        }

    def set_coefficient(self, name: str, value: float) -> None:
        """Sets a coefficient (`lr`, `entropy_coef`) of every group that has it, from the next iteration on."""
        learner = dict(self.state.learner)
        for group, part in learner.items():
            if name not in part.coefficients:
                raise CoveyError(f"group {group} has no coefficient '{name}', only {', '.join(part.coefficients)}")
            old = part.coefficients[name]
            changed = part.coefficients | {name: jax.device_put(np.asarray(value, old.dtype), old.sharding)}
            learner[group] = dataclasses.replace(part, coefficients=changed)
        self.state = dataclasses.replace(self.state, learner=learner)

    # ------------------------------------------------------------------------------------------------------ running

    def run(self) -> Summary:
        """Trains to the end; raises Interrupted, with everything saved, on SIGINT and SIGTERM."""
        with _signals() as received:
            self._received = received
            self._start()
            self._loggers.start(self.run_directory, to_dict(self.config), self.frames)
            try:
                if self.iteration == 0 and not marl_eval.steps(self._results):
                    self._log_evaluation(self._evaluate())
                self._train()
                summary = self._finish()
                if self._received:  # the run is done, but not what was to follow, such as the next seed
                    self._interrupt()
            finally:
                self._checkpoints.wait()
                self._loggers.finish()
        self._call("on_end", summary)
        return summary

    def _start(self) -> None:
        """A fresh state, or the newest checkpoint's; files are cut back to where that was."""
        self.state = self._programs.init(jax.random.key(self.config.seed))
        self.best = _copy(self.state.learner)
        self.iteration = 0
        parts = self._parts_to_save()
        restored = self._checkpoints.restore({name: parts[name] for name in ("learner", "clock", "best")})
        if restored is None:
            self.run_directory.metrics.cut(0)
            if self._initial_learner:
                learner = self._initial_learner(self.state.learner)
                self.state = dataclasses.replace(self.state, learner=learner)
                self.best = _copy(learner)
            return
        devices = self.progress.devices
        self.progress = Progress(**restored.meta)
        if self.progress.devices == devices:
            split = self._checkpoints.restore({name: parts[name] for name in ("actor", "buffer") if name in parts})
            assert split is not None
            restored.tree.update(split.tree)
            if self._has_buffer and "buffer" not in parts:
                self.console.warn("the buffer was left out of checkpoints: it fills anew, and the bits will differ")
        else:  # environments are split over devices, and do not fit another number of them
            afresh = "environments and buffer" if self._has_buffer else "environments"
            self.console.warn(f"another number of devices: {afresh} start afresh, and the bits will differ")
            self.progress.devices = devices
        found = {name: _put_like(tree, parts[name]) for name, tree in restored.tree.items()}
        self.best = found.pop("best")
        self.state = dataclasses.replace(self.state, **found.pop("clock"), **found)
        self.iteration = restored.iteration
        self.progress.seconds_compiling += self._programs.seconds
        self.run_directory.metrics.cut(self.progress.metrics_offset)
        known = self.run_directory.read_results()
        if known is not None:
            self._results = marl_eval.cut_steps(known, self.frames)
        self.console.line(f"resumed at {self.frames:,} frames")

    def _parts_to_save(self) -> dict[str, PyTree]:
        """The train state and the best parameters, in parts that can be restored alone."""
        clock = {"key": self.state.key, "iteration": self.state.iteration}
        parts = {"learner": self.state.learner, "actor": self.state.actor, "clock": clock, "best": self.best}
        experiment = self.config.experiment
        if isinstance(experiment, ReplayConfig) and experiment.buffer.in_checkpoints:
            parts["buffer"] = self.state.buffer
        return parts

    @property
    def _has_buffer(self) -> bool:
        return isinstance(self.config.experiment, ReplayConfig)

    def _train(self) -> None:
        """Chunk after chunk. With callbacks, each is finished before the next is sent, so that they can steer it."""
        pending = self._dispatch() if self.iteration < self.num_iterations else None
        while pending is not None:
            size, history, started = pending
            chunk = {name: np.asarray(values)[:size] for name, values in history.items()}  # waits for the device
            seconds = time.monotonic() - started
            self.progress.seconds_training += seconds
            self._check_finite(chunk)
            self.iteration += size
            self._chunk_size = _next_chunk_size(size, seconds, self.parts.loop.max_iterations)
            evaluation = self._dispatch_evaluation() if self._is_due(self.evaluation_interval) else None
            interrupted = bool(self._received)  # looked at once: a signal that comes later waits for the next chunk
            save = self._is_due(self.checkpoint_interval) or interrupted
            # Callbacks may set coefficients, which are saved too: with them, the state is copied afterwards.
            saved_state = self._checkpoint_tree() if save and not self.callbacks else None
            iteration = self.iteration
            pending = None if interrupted or self.callbacks else self._dispatch()

            self._log_chunk(chunk, iteration, seconds)
            if evaluation is not None:
                values = self._wait_for_evaluation(evaluation)
                if pending is not None:
                    pending = (pending[0], pending[1], time.monotonic())  # it could only begin after the evaluation
                improved = self._log_evaluation((values, evaluation[1]), iteration)
                if improved and saved_state is not None:
                    saved_state["best"] = host_copy(self.best)
            if save:
                self._save(saved_state or self._checkpoint_tree(), iteration)
            if interrupted:
                self._interrupt()
            if pending is None:
                pending = self._dispatch()

    def _dispatch(self) -> tuple[int, dict[str, Array], float] | None:
        """Sends the next chunk to the device and does not wait; None at the end."""
        ends = [self.num_iterations]
        for interval in (self.evaluation_interval, self.checkpoint_interval):
            if interval:
                ends.append((self.iteration // interval + 1) * interval)
        # Callbacks see every iteration: how often they are called must not depend on the machine's speed.
        size = min(min(ends) - self.iteration, 1 if self.callbacks else self._chunk_size)
        if size <= 0:
            return None
        started = time.monotonic()
        self.state, history = self._programs.run_chunk(self.state, jnp.int32(size))
        return size, history, started

    def _is_due(self, interval: int) -> bool:
        return self.iteration == self.num_iterations or bool(interval and self.iteration % interval == 0)

    # --------------------------------------------------------------------------------------------------- evaluating

    def _dispatch_evaluation(self) -> tuple[dict[str, Array], PyTree, float]:
        """Sent before the next chunk, which takes the parameters' memory: hence the copy."""
        learner = _copy(self.state.learner)
        key = jax.random.fold_in(self._key_evaluate, self.iteration)
        started = time.monotonic()
        return self._programs.evaluate(learner, key), learner, started

    def _wait_for_evaluation(self, evaluation: tuple[dict[str, Array], PyTree, float]) -> dict[str, np.ndarray]:
        outputs, _, started = evaluation
        values = {name: np.asarray(value) for name, value in outputs.items()}
        self.progress.seconds_evaluating += time.monotonic() - started
        return values

    def _evaluate(self) -> tuple[dict[str, np.ndarray], PyTree]:
        evaluation = self._dispatch_evaluation()
        return self._wait_for_evaluation(evaluation), evaluation[1]

    def _log_evaluation(self, evaluated: tuple[dict[str, np.ndarray], PyTree], iteration: int | None = None) -> bool:
        """Records an evaluation; True if its parameters are the best so far (of equals, the later)."""
        values, learner = evaluated
        frames = (self.iteration if iteration is None else iteration) * self.frames_per_iteration
        score = rate(values, self.config.experiment.best_by, self.parts.env.spec)
        improved = score >= self.progress.best_score
        if improved:
            self.progress.best_score, self.best = score, learner
        self._results = marl_eval.add_step(
            self._results, frames=frames, elapsed_seconds=self._elapsed(), metrics=values
        )
        self.run_directory.write_results(self._results)
        self._record(names.EVALUATION, {name: float(value.mean()) for name, value in values.items()}, frames)
        self._call("on_evaluation", values)
        return improved

    def _absolute(self) -> dict[str, np.ndarray]:
        """The absolute metric: the best parameters over ten times the episodes."""
        started = time.monotonic()
        rounds = []
        for number in range(ABSOLUTE_ROUNDS):
            key = jax.random.fold_in(jax.random.fold_in(self._key_evaluate, 2**31 - 1), number)
            rounds.append(self._programs.evaluate(self.best, key))
        values = {name: np.concatenate([np.asarray(r[name]) for r in rounds]) for name in rounds[0]}
        self.progress.seconds_evaluating += time.monotonic() - started
        self._results = marl_eval.set_absolute_metrics(self._results, values)
        self.run_directory.write_results(self._results)
        means = {name: float(value.mean()) for name, value in values.items()}
        self._record(names.ABSOLUTE, means | self._costs(), self.frames)
        return values

    def _costs(self) -> dict[str, float]:
        """Seconds by what they were spent on, under the names of the metrics."""
        seconds = {f"{part}_seconds": value for part, value in self._seconds.items()}
        return {name: value for name, value in seconds.items() if name in names.WALL_CLOCK}

    @functools.cached_property
    def _seconds(self) -> dict[str, float]:
        """Seconds by what they were spent on, once training is over."""
        training = self._split_training_time()
        return {
            "compiling": self.progress.seconds_compiling,
            **training,
            "evaluating": self.progress.seconds_evaluating,
        }

    # ------------------------------------------------------------------------------------------ logging and saving

    def _log_chunk(self, chunk: dict[str, np.ndarray], iteration: int, seconds: float) -> None:
        size = len(next(iter(chunk.values())))
        rate = size * self.frames_per_iteration / max(seconds, 1e-9)
        record: dict[str, float] = {}
        for i in range(size):
            number = iteration - size + i + 1
            record = {name: float(values[i]) for name, values in chunk.items()}
            record = {names.ITERATION: number, **record, names.FRAMES_PER_SECOND: rate}
            self._record(names.TRAIN, record, number * self.frames_per_iteration)
        value = record.get(f"collection/{names.MEAN_RETURN}", math.nan)  # a user's hook may drop it
        self._latest_return = value if math.isfinite(value) else self._latest_return
        self.console.progress(
            iteration * self.frames_per_iteration, mean_return=self._latest_return, frames_per_second=rate
        )
        self._call("on_iteration", record)

    def _record(self, kind: str, record: Mapping[str, float], frames: int) -> None:
        head = {names.KIND: kind, names.FRAMES: frames, names.ELAPSED_SECONDS: self._elapsed()}
        self.run_directory.metrics.append({**head, **record})
        self._loggers.log(kind, record, frames)

    def _check_finite(self, chunk: dict[str, np.ndarray]) -> None:
        """Collection's means are NaN where no episode ended; anything else that is not finite is the end."""
        for name, values in chunk.items():
            if name.startswith("collection/"):
                continue
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                self._checkpoints.wait()
                raise CoveyError(
                    f"iteration {self.iteration + int(bad[0]) + 1}: {name} is {values[bad[0]]}; training stopped, "
                    f"the last good checkpoint is in {self.run_directory.path}"
                )

    def _checkpoint_tree(self) -> dict[str, PyTree]:
        return host_copy(self._parts_to_save())

    def _save(self, tree: dict[str, PyTree], iteration: int) -> None:
        self.progress.metrics_offset = self.run_directory.metrics.sync()
        self._checkpoints.save(iteration, tree, dataclasses.asdict(self.progress))

    def _interrupt(self) -> None:
        self._checkpoints.wait()
        self.console.line(
            f"interrupted: saved at {self.frames:,} frames; `covey resume {self.run_directory.path}` goes on"
        )
        raise Interrupted(self._received[0])

    def _finish(self) -> Summary:
        absolute = self._absolute() if self.config.experiment.absolute_metric else None
        steps = list(marl_eval.steps(self._results).values())
        return Summary(
            title=f"{self.config.algorithm.label} on {self.config.task.name}, seed {self.config.seed}",
            returns_before=steps[0][names.MEAN_RETURN],
            returns_after=steps[-1][names.MEAN_RETURN],
            returns_absolute=None if absolute is None else absolute[names.MEAN_RETURN].tolist(),
            frames=self.frames,
            frames_per_second=self.frames / max(self.progress.seconds_training, 1e-9),
            seconds=self._seconds,
            run_directory=self.run_directory.path,
        )

    def _split_training_time(self) -> dict[str, float]:
        """Collecting and updating are one program; their shares come from timing collection alone, afterwards."""
        total = self.progress.seconds_training
        if total < 10.0 or not self.config.jit:  # not worth compiling another program for
            return {"collecting and updating": total}
        with self.console.compiling("collection, to time it"):
            collect = self.parts.loop.collect.lower(self.state).compile()
        jax.block_until_ready(collect(self.state))
        started, repeats = time.monotonic(), 0
        while time.monotonic() - started < 0.5:
            jax.block_until_ready(collect(self.state))
            repeats += 1
        per_iteration = (time.monotonic() - started) / repeats
        collecting = min(total, per_iteration * self.num_iterations)
        return {"collecting": collecting, "updating": total - collecting}

    # ---------------------------------------------------------------------------------------------------- odds, ends

    def _iterations(self, frames: int) -> int:
        return math.ceil(frames / self.frames_per_iteration)

    def _elapsed(self) -> float:
        return self.progress.seconds_training + self.progress.seconds_evaluating

    def _call(self, name: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, name, None)
            if method:
                method(self, *arguments)


def _next_chunk_size(size: int, seconds: float, largest: int) -> int:
    """At most doubles, so that one slow or fast chunk does not mislead."""
    wanted = int(size * SECONDS_PER_CHUNK / max(seconds, 1e-3))
    return max(1, min(wanted, 2 * size, largest))


def _copy(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


def _put_like(values: PyTree, like: PyTree) -> PyTree:
    """Host arrays to where the arrays of `like` are."""
    return jax.tree.map(lambda value, old: jax.device_put(value, old.sharding), values, like)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second one does what it always did."""
    received: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, previous[number])

    try:
        for caught in (signal.SIGINT, signal.SIGTERM):
            previous[caught] = signal.getsignal(caught)
            signal.signal(caught, note)
    except ValueError:  # not in the main thread: signals are somebody else's
        pass
    try:
        yield received
    finally:
        for number, handler in previous.items():
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)


def rate(values: Mapping[str, np.ndarray], best_by: str, spec: EnvSpec) -> float:
    """What an evaluation says of its parameters by one of its metrics: the higher, the better."""
    metric = spec.metrics.get(best_by)
    mean = float(values[best_by].mean())
    return mean if metric is None or metric.higher_is_better else -mean
