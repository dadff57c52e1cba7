"""The host's side of training: dispatches chunks, and evaluates, logs and saves while the device works.

What happens at an iteration depends only on its number, never on the clock: metrics are recorded for every iteration,
evaluations and checkpoints fall on fixed ones, and only the size of chunks follows the machine's speed. So a run that
was killed and resumed leaves the same files as one that was not.

Several seeds at once advance in step in one program (loops/online.py), and each leaves its own run directory.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.seats import SeatedActing, learned_part, with_learned_part
from covey.errors import CoveyError, Interrupted
from covey.experiment.configuration.config import Config
from covey.experiment.recording.checkpoint import Restored, host_copy
from covey.experiment.recording.lease import LeaseLost
from covey.experiment.recording.recorder import Diverged, Progress, Recorder, finish_all
from covey.experiment.recording.run_directory import RunDirectory
from covey.experiment.running.build import Parts
from covey.experiment.running.changes import Variant, changes_with, describe_changes
from covey.experiment.running.console import Console, Summary
from covey.experiment.running.programs import Programs, values_of
from covey.loops.base import join_seeds, of_seed
from covey.process import Received, Stopped, collected_signals
from covey.types import Array, Key, PyTree

SECONDS_PER_CHUNK = 1.0  # what a chunk aims to take: short enough for a live progress bar and a quick Ctrl-C
ABSOLUTE_ROUNDS = 10  # the absolute metric plays this many times an evaluation's episodes


class Callback(Protocol):
    """A user's own code between iterations; all methods are optional. It may read everything, set coefficients, and
    set fields that are `changeable`."""

    def on_iteration(self, training: Training, metrics: Mapping[str, float]) -> None:
        """After each iteration, with its metrics by name."""
        ...

    def on_evaluation(self, training: Training, values: Mapping[str, np.ndarray]) -> None:
        """After each evaluation, with every metric's values by episode."""
        ...

    def on_end(self, training: Training, summary: Summary) -> None:
        """Once, after the last iteration."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """The parameters to evaluate, the key to use, and the iteration that the parameters are from."""

    learner: PyTree
    key: Key
    iteration: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation that the device may still be busy with."""

    plan: EvaluationPlan
    outputs: Any  # of `Programs.evaluation`
    started: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Iterations that the device may still be busy with.

    size      how many they are
    history   metrics by name, [max_iterations, …] of which the first `size` count
    started   when they were sent, or could begin, by the monotonic clock
    seconds   what they took, where sending them waits for them, as it does with actors
    """

    size: int
    history: dict[str, Array]
    started: float
    seconds: float | None = None


class Training:
    """Training from a fresh start or a checkpoint to the end, of one seed, or of several at once: `parts.num_seeds`.

    Of several, `state` and `best` have an axis of seeds (loops/online.py). Callbacks see one seed.
    """

    def __init__(
        self,
        seeds: Sequence[tuple[Config, RunDirectory]],
        parts: Parts,
        programs: Programs,
        console: Console,
        callbacks: Sequence[Callback] = (),
        initial_learner: Callable[[PyTree], PyTree] | None = None,
    ):
        assert len(seeds) == parts.num_seeds and not (callbacks and len(seeds) > 1)
        self.config, self.run_directory = seeds[0]
        self._as_begun = Variant(config=self.config, parts=parts, programs=programs)
        experiment = self.config.experiment
        self.parts = parts
        self._loop = parts.loop
        self.console = console
        self.callbacks = callbacks
        self.frames_per_iteration = self._loop.frames_per_iteration
        self.num_iterations = self._iterations(experiment.frames)
        self.evaluation_interval = self._iterations(experiment.evaluation_interval)
        self.checkpoint_interval = self._iterations(experiment.checkpoint_interval)
        self.state: PyTree  # set by `_start`, and so is `best`
        self.best: PyTree
        self.iteration = 0
        self._programs = programs
        self._initial_learner = initial_learner
        self._recorders = [
            Recorder(
                config, run, parts.env.spec, self.frames_per_iteration, programs.seconds / len(seeds), console.warn
            )
            for config, run in seeds
        ]
        self._chunk_size = 1
        self._received = Received()  # signals
        self._up_to_date = False  # whether all that belongs to `state` is recorded

    # --------------------------------------------------------------------------------------------- what users read

    @property
    def frames(self) -> int:
        """Frames trained so far."""
        return self.iteration * self.frames_per_iteration

    @property
    def learner(self) -> PyTree:
        """What has been learned so far, by group."""
        return learned_part(self._loop.learner(self.state))

    @property
    def progress(self) -> Progress:
        return self._recorders[0].progress

    @property
    def coefficients(self) -> dict[str, dict[str, float]]:
        """The coefficients by group, before schedules scale them."""
        return {group: {k: float(v) for k, v in part.coefficients.items()} for group, part in self.learner.items()}

    def set_coefficient(self, name: str, value: float) -> None:
        """Sets a coefficient (`lr`, `entropy_coef`) of every group that has it, from the next iteration on."""
        learner = dict(self.learner)
        for group, part in learner.items():
            if name not in part.coefficients:
                raise CoveyError(f"group {group} has no coefficient '{name}', only {', '.join(part.coefficients)}")
            old = part.coefficients[name]
            changed = part.coefficients | {name: jax.device_put(np.asarray(value, old.dtype), old.sharding)}
            learner[group] = dataclasses.replace(part, coefficients=changed)
        self._set_learner(learner)

    def set_field(self, path: str, value: Any) -> None:
        """Sets a field of the configuration that is `changeable` (`algorithm.num_minibatches`), from the next iteration
        on.

        The state stays as it is. Training is compiled again, unless it was for these values before. Checkpoints hold
        what was changed, so that a resumed run continues with it; config.yaml stays as the run began.
        """
        changes = changes_with(self._as_begun.config, self.progress.changes, path, value)
        if changes != self.progress.changes:
            self._change_fields(changes, describe_changes({path: value}))
            for recorder in self._recorders:
                recorder.progress.changes = changes

    def _change_fields(self, changes: Mapping[str, Any], what: str) -> None:
        """Continues with `changes` to the fields that the run began with; `what` names those that are new."""
        compiles = self.config.jit and not self._as_begun.is_compiled(changes)
        self.console.line(f"from {self.frames:,} frames on: {what}{'; compiling training again' if compiles else ''}")
        started = time.monotonic()
        variant = self._as_begun.changed(changes)
        self.config, self.parts, self._programs = variant.config, variant.parts, variant.programs
        self._loop = variant.parts.loop
        self._spend(compiling=time.monotonic() - started)

    def _set_learner(self, learner: PyTree) -> None:
        """Puts another learner, by group, into the state; partners stay."""
        whole = with_learned_part(self._loop.learner(self.state), learner)
        self.state = self._loop.with_learner(self.state, whole)

    # ------------------------------------------------------------------------------------------------------ running

    def run(self) -> list[Summary]:
        """Trains to the end; returns a summary for each seed.

        On SIGINT, SIGTERM and SIGHUP it saves everything and raises Interrupted.
        """
        with collected_signals() as self._received:
            try:
                self._start()
                for recorder in self._recorders:
                    recorder.start_loggers(self.frames)
                self._train()
                summaries = self._finish()
                if self._received:  # the run is done, but what should follow, such as the next seed, is not
                    self._interrupt()
            except Stopped:
                self._leave()
            except (Interrupted, Diverged, LeaseLost):  # not failures, recorded already, or another process's run
                raise
            except Exception as error:
                for recorder in self._recorders:
                    recorder.record_failure(f"{type(error).__name__}: {error}", self.iteration)
                raise
            finally:
                self.parts.close()
                finish_all(self._recorders)
        self._call("on_end", summaries[0])
        return summaries

    def _start(self) -> None:
        """Starts from a fresh state or the newest checkpoint, and cuts files back to where that was."""
        self.state = self._compute(self._programs.init, self._keys(Recorder.training_key))
        self._seat_partners()
        self.best = _copy(self._loop.learner(self.state))
        self.iteration = 0
        parts = self._parts_to_save()
        restored = self._restore(parts)
        if restored is None:
            for recorder in self._recorders:
                recorder.begin()
            if self._initial_learner:
                self._take_initial_learner(self._initial_learner)
            return
        trees = [saved.tree for saved in restored]
        shared = [name for name in trees[0] if all(name in tree for tree in trees)]  # a seed's devices may differ
        self._say_what_starts_afresh(shared)
        trees = [{name: tree[name] for name in shared} for tree in trees]
        found = join_seeds(self._seed_axes, trees) if self._together else trees[0]
        found = {name: _put_like(tree, parts[name]) for name, tree in found.items()}
        self.best = with_learned_part(self.best, found.pop("best"))
        self.state = self._loop.restored(self.state, found)
        self.iteration = restored[0].iteration
        for recorder, saved in zip(self._recorders, restored, strict=True):
            recorder.continue_from(saved)
        self.console.line(f"resumed at {self.frames:,} frames")
        changes = self.progress.changes
        if any(recorder.progress.changes != changes for recorder in self._recorders):
            raise CoveyError("the seeds changed other fields while they ran; experiment.seeds_at_once=1 resumes them")
        if changes:
            self._change_fields(changes, describe_changes(changes))

    def _seat_partners(self) -> None:
        """Puts the partners' parameters into the state; all seeds have the same."""
        learner = self._loop.learner(self.state)
        if isinstance(learner, SeatedActing):
            acting = jax.tree.map(
                lambda new, old: np.broadcast_to(new, old.shape), self.parts.partners, learner.partners
            )
            partners = _put_like(acting, learner.partners)
            self.state = self._loop.with_learner(self.state, dataclasses.replace(learner, partners=partners))

    def _restore(self, parts: dict[str, PyTree]) -> list[Restored] | None:
        """Each seed's checkpoint of the newest iteration that all have intact; None where nothing was saved yet.

        Environments are split over devices. They do not fit another number of devices, and are then left out.
        """
        template = jax.eval_shape(functools.partial(self._of_seed, index=0), parts) if self._together else parts
        devices = self._recorders[0].progress.devices

        def template_for(meta: dict[str, Any]) -> dict[str, PyTree]:
            split = () if meta["devices"] == devices else self._split_over_devices
            return {name: part for name, part in template.items() if name not in split}

        saved = [recorder.checkpoints.iterations() for recorder in self._recorders]
        for iteration in sorted(set.intersection(*map(set, saved)), reverse=True):
            restored = [
                recorder.checkpoints.restore_at(iteration, template_for, self._may_differ)
                for recorder in self._recorders
            ]
            found = [saved for saved in restored if saved is not None]
            if len(found) == len(restored):
                return found
        if any(saved):
            path = self.run_directory.path.parent if self._together else self.run_directory.checkpoints
            raise CoveyError(f"every checkpoint in {path} is damaged")
        return None

    def _take_initial_learner(self, initial_learner: Callable[[PyTree], PyTree]) -> None:
        learner = self.learner
        if self._together:
            own = [self._of_seed({"learner": learner}, index=index)["learner"] for index in range(len(self._recorders))]
            joined = join_seeds(self._seed_axes, [{"learner": initial_learner(one)} for one in own])
            learner = _put_like(joined["learner"], learner)
        else:
            learner = initial_learner(learner)
        self._set_learner(learner)
        self.best = _copy(self._loop.learner(self.state))

    def _say_what_starts_afresh(self, restored: Sequence[str]) -> None:
        split = self._split_over_devices
        if split and not set(split) & set(restored):
            fresh = " and ".join(self._loop.parts[name].label for name in split)
            self.console.warn(f"another number of devices: {fresh} start again, and the bits will differ")
            return
        for part in self._loop.parts.values():
            if part.left_out is not None:
                self.console.warn(part.left_out)

    def _parts_to_save(self) -> dict[str, PyTree]:
        """The loop's state and the best parameters, in parts that can be restored alone."""
        return self._loop.saved(self.state) | {"best": learned_part(self.best)}

    @property
    def _split_over_devices(self) -> list[str]:
        return [name for name, part in self._loop.parts.items() if part.by_device]

    @property
    def _may_differ(self) -> list[str]:
        return [name for name, part in self._loop.parts.items() if part.may_differ]

    @property
    def _seed_axes(self) -> dict[str, Any]:
        """Where the seeds are in each part that is saved."""
        return {name: part.seed_axis for name, part in self._loop.parts.items()} | {"best": 0}

    @functools.cached_property
    def _of_seed(self) -> Callable[..., dict[str, PyTree]]:
        """One seed's share of what is saved."""
        return jax.jit(functools.partial(of_seed, self._seed_axes))

    @property
    def _together(self) -> bool:
        return len(self._recorders) > 1

    def _train(self) -> None:
        """Runs all chunks. With callbacks, each is finished before the next is sent, so that they can steer it."""
        first = self._plan_evaluation() if self.iteration == 0 and not self._evaluated else None
        if first is not None and (self.callbacks or not self.config.jit or not self.num_iterations):
            self._evaluate(first)
            first = None
        pending = self._dispatch() if self.iteration < self.num_iterations else None
        while pending is not None:
            size = pending.size
            metrics = {name: np.asarray(values)[:size] for name, values in pending.history.items()}  # waits
            seconds = pending.seconds if pending.seconds is not None else time.monotonic() - pending.started
            self._spend(training=seconds)
            by_seed = self._by_seed(metrics, axis=1)
            also = "; `covey resume` of the other seeds continues without it" if self._together else ""
            try:
                for recorder, own in zip(self._recorders, by_seed, strict=True):
                    recorder.check_finite(own, self.iteration, also)
            except Diverged:
                if first is not None:  # reports count a failed run by its evaluations
                    self._evaluate(first)
                raise
            self.iteration += size
            self._show_progress(by_seed, seconds)
            self._chunk_size = _next_chunk_size(size, seconds, self._loop.max_iterations)
            due = self._is_due(self.evaluation_interval)
            evaluation = self._dispatch_evaluation(self._plan_evaluation()) if due else None
            interrupted = bool(self._received)  # read once: a signal that comes later waits for the next chunk
            save = self._is_due(self.checkpoint_interval) or interrupted
            # Callbacks may set coefficients, which are saved too: with them, the state is copied afterwards.
            saved_state = self._on_host(self._parts_to_save()) if save and not self.callbacks else None
            iteration = self.iteration
            pending = None if interrupted or self.callbacks or not self.config.jit else self._dispatch()

            if first is not None:  # not earlier, because it may still be compiling
                self._evaluate(first)
                first = None
            self._record_chunk(by_seed, iteration, seconds)
            if evaluation is not None:
                beside = pending.seconds or 0.0 if pending is not None else 0.0
                values = self._wait_for_evaluation(evaluation, beside)
                if pending is not None:
                    # On a device, it could only begin after the evaluation.
                    pending = dataclasses.replace(pending, started=time.monotonic())
                improved = self._record_evaluation(values, evaluation.plan)
                if any(improved) and saved_state is not None:
                    for tree, best in zip(saved_state, self._on_host({"best": learned_part(self.best)}), strict=True):
                        tree.update(best)
            if save:
                self._save(saved_state or self._on_host(self._parts_to_save()), iteration)
            if interrupted:
                self._interrupt()
            if pending is None:
                self._up_to_date = True
                pending = self._dispatch()
                self._up_to_date = False

    def _compute(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a program. Signals interrupt it if it is uncompiled, because it may then take minutes, and in a loop of
        actors before anything was learned."""
        starting = self._loop.compiled is None and not self.iteration
        with self._received.raised(starting or not self.config.jit):
            return program(*arguments)

    def _dispatch(self) -> Chunk | None:
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
        self.state, history = self._compute(self._programs.advance, self.state, np.int32(size))
        seconds = time.monotonic() - started if self._loop.compiled is None else None
        return Chunk(size=size, history=history, started=started, seconds=seconds)

    def _is_due(self, interval: int) -> bool:
        return self.iteration == self.num_iterations or bool(interval and self.iteration % interval == 0)

    # --------------------------------------------------------------------------------------------------- evaluating

    @property
    def _evaluated(self) -> bool:
        """Whether the initial parameters were evaluated."""
        return all(recorder.evaluated for recorder in self._recorders)

    def _plan_evaluation(self) -> EvaluationPlan:
        """A plan for the current parameters, which are copied because the next chunk reuses their memory."""
        key = self._keys(functools.partial(Recorder.evaluation_key, iteration=self.iteration))
        return EvaluationPlan(learner=_copy(self._loop.learner(self.state)), key=key, iteration=self.iteration)

    def _dispatch_evaluation(self, plan: EvaluationPlan) -> Evaluation:
        """Sends an evaluation to the device, before the next chunk so that it need not wait for that."""
        started = time.monotonic()
        evaluate = self._programs.evaluation()
        ready = time.monotonic()
        self._spend(compiling=ready - started)
        return Evaluation(plan=plan, outputs=self._compute(evaluate, plan.learner, plan.key), started=ready)

    def _wait_for_evaluation(self, evaluation: Evaluation, beside: float = 0.0) -> dict[str, np.ndarray]:
        """Its values; `beside` are the seconds of training meanwhile, which count as training's."""
        values = values_of(evaluation.outputs)
        self._spend(evaluating=time.monotonic() - evaluation.started - beside)
        return values

    def _evaluate(self, plan: EvaluationPlan) -> None:
        evaluation = self._dispatch_evaluation(plan)
        self._record_evaluation(self._wait_for_evaluation(evaluation), plan)

    def _record_evaluation(self, values: dict[str, np.ndarray], plan: EvaluationPlan) -> list[bool]:
        """Records an evaluation, and keeps its parameters where they are the best so far; returns where, by seed."""
        by_seed = self._by_seed(values, axis=0)
        improved = [
            recorder.record_evaluation(own, plan.iteration)
            for recorder, own in zip(self._recorders, by_seed, strict=True)
        ]
        if all(improved):
            self.best = plan.learner
        elif any(improved):
            self.best = _choose(jnp.asarray(improved), plan.learner, self.best)
        self._call("on_evaluation", by_seed[0])
        return improved

    def _absolute(self) -> list[dict[str, np.ndarray]]:
        """The absolute metric by seed: the best parameters over ten times the episodes."""
        started = time.monotonic()
        rounds: list[Any] = []
        for number in range(ABSOLUTE_ROUNDS):
            key = self._keys(functools.partial(Recorder.absolute_key, number=number))
            rounds.append(self._compute(self._programs.evaluation(), self.best, key))
            if isinstance(rounds[-1], Future):  # one pool plays them
                rounds[-1] = values_of(rounds[-1])
        values = {name: np.concatenate([np.asarray(r[name]) for r in rounds], axis=-1) for name in rounds[0]}
        self._spend(evaluating=time.monotonic() - started)
        by_seed = self._by_seed(values, axis=0)
        for recorder, own in zip(self._recorders, by_seed, strict=True):
            recorder.record_absolute(own, self.iteration, self._seconds(recorder))
        return by_seed

    def _seconds(self, recorder: Recorder) -> dict[str, float]:
        """Seconds by what they were spent on, once training is over."""
        progress = recorder.progress
        training = self._split_training_time(progress.seconds_training)
        return {"compiling": progress.seconds_compiling, **training, "evaluating": progress.seconds_evaluating}

    # ------------------------------------------------------------------------------------------ recording and saving

    def _show_progress(self, by_seed: list[dict[str, np.ndarray]], seconds: float) -> None:
        latest = [recorder.latest_returns(own) for recorder, own in zip(self._recorders, by_seed, strict=True)]
        returns = mean_by_name(latest)
        self.console.progress(
            self.frames,
            mean_return=returns.pop("", None),
            by_group=returns,
            evaluated=mean_by_name([recorder.evaluated_returns() for recorder in self._recorders]),
            frames_per_second=self._rate(by_seed, seconds),
        )

    def _record_chunk(self, by_seed: list[dict[str, np.ndarray]], iteration: int, seconds: float) -> None:
        rate = self._rate(by_seed, seconds) * len(by_seed)
        records = [
            recorder.record_chunk(own, iteration, rate) for recorder, own in zip(self._recorders, by_seed, strict=True)
        ]
        self._call("on_iteration", records[0])

    def _rate(self, by_seed: list[dict[str, np.ndarray]], seconds: float) -> float:
        """Frames per second of each seed."""
        size = len(next(iter(by_seed[0].values())))
        return size * self.frames_per_iteration / max(seconds, 1e-9)

    def _on_host(self, parts: dict[str, PyTree]) -> list[dict[str, PyTree]]:
        """Copies of each seed's share, taken one after another, so that the device holds one of them at a time."""
        if not self._together:
            return [host_copy(parts)]
        return [host_copy(self._of_seed(parts, index=index)) for index in range(len(self._recorders))]

    def _save(self, trees: list[dict[str, PyTree]], iteration: int) -> None:
        for recorder, tree in zip(self._recorders, trees, strict=True):
            recorder.save(tree, iteration)

    def _interrupt(self) -> None:
        for recorder in self._recorders:
            recorder.checkpoints.wait()
        path = self.run_directory.path.parent if self._together else self.run_directory.path
        self.console.line(f"interrupted: saved at {self.frames:,} frames; `covey resume {path}` continues")
        raise Interrupted(self._received[0])

    def _leave(self) -> None:
        """After a signal in the middle of an uncompiled program: saves the state before it, if that is complete."""
        if self._up_to_date and self.iteration:
            self._save(self._on_host(self._parts_to_save()), self.iteration)
            self._interrupt()
        saved = self._recorders[0].checkpoints.iterations()
        path = self.run_directory.path
        if saved:
            frames = saved[-1] * self.frames_per_iteration
            self.console.line(
                f"interrupted: the last checkpoint is at {frames:,} frames; `covey resume {path}` continues"
            )
        else:
            self.console.line(f"interrupted before the first checkpoint; `covey resume {path}` starts again")
        raise Interrupted(self._received[0])

    def _finish(self) -> list[Summary]:
        absolute = self._absolute() if self.config.experiment.absolute_metric else [None] * len(self._recorders)
        return [
            recorder.summary(own, self.iteration, self._seconds(recorder))
            for recorder, own in zip(self._recorders, absolute, strict=True)
        ]

    def _split_training_time(self, total: float) -> dict[str, float]:
        """Collecting and updating are one program; their shares come from timing collection alone, afterwards."""
        if self._loop.collect is None or total < 10.0 or not self.config.jit:  # not worth compiling a program for
            return {"collecting and updating": total}
        collecting = min(total, self._seconds_collecting * self.num_iterations / len(self._recorders))
        return {"collecting": collecting, "updating": total - collecting}

    @functools.cached_property
    def _seconds_collecting(self) -> float:
        """Seconds that an iteration of all seeds spends collecting."""
        assert self._loop.collect is not None
        with self.console.compiling("collection, to time it"):
            collect = self._loop.collect.lower(self.state).compile()
        jax.block_until_ready(collect(self.state))
        started, repeats = time.monotonic(), 0
        while time.monotonic() - started < 0.5:
            jax.block_until_ready(collect(self.state))
            repeats += 1
        return (time.monotonic() - started) / repeats

    # ---------------------------------------------------------------------------------------------------- odds, ends

    def _keys(self, of: Callable[[Recorder], Key]) -> Key:
        keys = [of(recorder) for recorder in self._recorders]
        return jnp.stack(keys) if self._together else keys[0]

    def _by_seed(self, values: dict[str, np.ndarray], axis: int) -> list[dict[str, np.ndarray]]:
        """Each seed's part of `values`, whose `axis` is that of the seeds if there are several."""
        if not self._together:
            return [values]
        return [
            {name: value.take(index, axis) for name, value in values.items()} for index in range(len(self._recorders))
        ]

    def _spend(self, *, compiling: float = 0.0, training: float = 0.0, evaluating: float = 0.0) -> None:
        """Adds to the time spent. Seeds that train at once share it equally."""
        for recorder in self._recorders:
            recorder.progress.seconds_compiling += compiling / len(self._recorders)
            recorder.progress.seconds_training += training / len(self._recorders)
            recorder.progress.seconds_evaluating += evaluating / len(self._recorders)

    def _iterations(self, frames: int) -> int:
        return math.ceil(frames / self.frames_per_iteration)

    def _call(self, name: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, name, None)
            if method:
                method(self, *arguments)


def mean_by_name(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name over those that have it."""
    known = dict.fromkeys(name for each in values for name in each)
    found = {name: [each[name] for each in values if name in each] for name in known}
    return {name: sum(numbers) / len(numbers) for name, numbers in found.items()}


def _next_chunk_size(size: int, seconds: float, largest: int) -> int:
    """At most doubles, so that one slow or fast chunk does not mislead."""
    wanted = int(size * SECONDS_PER_CHUNK / max(seconds, 1e-3))
    return max(1, min(wanted, 2 * size, largest))


def _copy(tree: PyTree) -> PyTree:
    """A copy made by the runtime: `jnp.copy` would load a compiled program for every shape."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, leaf.sharding, may_alias=False), tree)


def _put_like(values: PyTree, like: PyTree) -> PyTree:
    """Puts host arrays where the arrays of `like` are."""
    return jax.tree.map(lambda value, old: jax.device_put(value, old.sharding), values, like)


@jax.jit
def _choose(better: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` for the seeds where `better [S]`, and `old` for the others."""
    return jax.tree.map(lambda a, b: jnp.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)
