"""`Experiment`: algorithm × task × model × seed, from a configuration to a finished run directory.

`train` and `resume` are what the command line calls; `Experiment` is the same from Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covey.data.buffer import Place
from covey.errors import UsageError
from covey.experiment.build import Parts, Programs, build, compile_parts, uncompiled
from covey.experiment.checkpoint import Checkpoints
from covey.experiment.compose import compose, resume_config
from covey.experiment.config import Config, ReplayConfig, from_dict, plain, to_dict, with_devices
from covey.experiment.console import Console, Summary
from covey.experiment.devices import available_bytes, num_available, start_jax
from covey.experiment.environment import describe_environment
from covey.experiment.loggers import check_loggers
from covey.experiment.run_directory import RunDirectory, run_directories
from covey.experiment.training import Callback, Training
from covey.types import PyTree

MOST_AT_ONCE = 16  # seeds in one program, where the user does not say how many


class Experiment:
    """An experiment from Python, with the same fields as the command line.

        covey.Experiment(algorithm="mappo", task="lbf/8x8-2p-2f-coop", seed=0).run()
        covey.Experiment(task="lbf/8x8-2p-2f-coop", fields={"algorithm.lr": 1e-3, "experiment.frames": 100_000})

    `choices` are `algorithm`, `task`, `model`, `critic_model`, `experiment` (a preset), `seed`, `seeds`, `run_dir` and
    the other words of `covey train`; `fields` are dotted. `callbacks` run on the host between chunks.
    """

    def __init__(
        self, *, fields: Mapping[str, Any] | None = None, callbacks: Sequence[Callback] = (), **choices: Any
    ) -> None:
        values = {**choices, **(fields or {})}
        self.config = compose([f"{name}={_as_override(value)}" for name, value in values.items()])
        self.callbacks = callbacks

    def run(self) -> list[Summary]:
        """Trains; one summary per seed."""
        return train(self.config, self.callbacks)


def _as_override(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_as_override(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_as_override(item)}" for name, item in value.items()) + "}"
    return str(value.name if hasattr(value, "name") else value)


def train(config: Config, callbacks: Sequence[Callback] = ()) -> list[Summary]:
    """Trains every seed of `config`, each in its own run directory: one after another with one compiled program, or
    several at once in one (`experiment.seeds_at_once`)."""
    check_loggers(config.experiment.loggers, config.experiment.logger_options)
    config, devices = prepare(config)
    config = with_seeds_at_once(config, devices, callbacks)
    base = Path(config.run_dir or default_run_dir(config))
    members = seed_members(config, base)
    for _, path in members:
        if path.exists():
            raise UsageError(f"run directory {path} exists already; `covey resume {path}` continues it")
    initial_learner = learner_from(config.init_from) if config.init_from else None
    at_once = config.experiment.seeds_at_once or 1
    parts = build(config, devices, min(at_once, len(members)))
    environment = describe(parts)
    seeds = [(member, RunDirectory.create(path, to_dict(member), environment)) for member, path in members]
    programs = get_programs(config, parts)
    summaries = []
    for batch in (seeds[first : first + at_once] for first in range(0, len(seeds), at_once)):
        if len(batch) < parts.num_seeds:  # the last, of what is left
            parts = build(config, devices, len(batch))
            programs = get_programs(config, parts)
        summaries += run_together(batch, parts, programs, callbacks, initial_learner)
        programs = dataclasses.replace(programs, seconds=0.0)  # the first seed paid
    return summaries


def resume(path: Path, overrides: Sequence[str] = (), callbacks: Sequence[Callback] = ()) -> list[Summary]:
    """Continues the run in `path`, or every seed's below it, as if it had never stopped."""
    seeds: list[tuple[Config, RunDirectory]] = []
    for directory in run_directories(path):
        run = RunDirectory.open(directory)
        stored = from_dict(run.config)
        config = resume_config(stored, overrides)
        check_loggers(config.experiment.loggers, config.experiment.logger_options)
        config, _ = prepare(config)
        if to_dict(config) != to_dict(stored):
            run.rewrite_config(to_dict(config))
        seeds.append((config, run))
    summaries = []
    for batch in resumed_together(seeds, callbacks):
        config, run = batch[0]
        _, devices = prepare(config)
        # Needed only where nothing was saved yet; by now the other run may be gone.
        initial_learner = learner_from(config.init_from) if config.init_from and not has_begun(run) else None
        parts = build(config, devices, len(batch))
        programs = get_programs(config, parts)
        summaries += run_together(batch, parts, programs, callbacks, initial_learner)
    return summaries


def resumed_together(
    seeds: Sequence[tuple[Config, RunDirectory]], callbacks: Sequence[Callback]
) -> list[list[tuple[Config, RunDirectory]]]:
    """Batches of seeds that trained at once: of one configuration, and with an iteration from which all can go on."""
    batches: list[tuple[Config, set[int], list[tuple[Config, RunDirectory]]]] = []
    for config, run in seeds:
        shared = dataclasses.replace(config, seed=0, run_dir=None)
        saved = set(Checkpoints(run.checkpoints).iterations())
        at_once = 1 if why_alone(config, callbacks) else config.experiment.seeds_at_once or 1
        for known, common, batch in batches:
            if len(batch) < at_once and known == shared and (common & saved or not common | saved):
                batch.append((config, run))
                common &= saved
                break
        else:
            batches.append((shared, saved, [(config, run)]))
    return [batch for _, _, batch in batches]


def has_begun(run: RunDirectory) -> bool:
    """Whether a run has a checkpoint to go on from."""
    return bool(Checkpoints(run.checkpoints).iterations())


def prepare(config: Config) -> tuple[Config, list[Any]]:
    """Settles what depends on the machine, and starts JAX."""
    platform = config.experiment.platform.name
    if not config.jit:
        config = dataclasses.replace(config, experiment=dataclasses.replace(config.experiment, devices=1))
    config = with_devices(config, num_available(platform))
    if config.experiment.schedule_frames is None:  # a resumed run that goes on for longer keeps its schedules
        experiment = dataclasses.replace(config.experiment, schedule_frames=config.experiment.frames)
        config = dataclasses.replace(config, experiment=experiment)
    return config, start_jax(platform, config.experiment.devices or 1)


def with_seeds_at_once(config: Config, devices: Sequence[Any], callbacks: Sequence[Callback]) -> Config:
    """`config` with `seeds_at_once` settled: as given, or on an accelerator as many as there are and fit.

    A CPU is not faster with several seeds in one program, and there each is to give the bits that it gives alone.
    """
    alone, asked = why_alone(config, callbacks), config.experiment.seeds_at_once
    if alone and asked is not None and asked > 1 and config.jit:
        raise UsageError(f"experiment.seeds_at_once={asked} cannot be: {alone}")
    if alone or (asked is None and devices[0].platform == "cpu"):
        number = 1
    else:
        number = asked or min(len(config.seeds or (config.seed,)), MOST_AT_ONCE, num_fitting(config, devices))
    return dataclasses.replace(config, experiment=dataclasses.replace(config.experiment, seeds_at_once=number))


def why_alone(config: Config, callbacks: Sequence[Callback]) -> str | None:
    """What keeps seeds from training at once, if anything does."""
    experiment = config.experiment
    if callbacks:
        return "callbacks see one seed at a time"
    if isinstance(experiment, ReplayConfig) and experiment.buffer.place is Place.host:
        return "buffer.place=host holds one seed's"
    return None if config.jit else "jit=false runs one seed at a time"


def num_fitting(config: Config, devices: Sequence[Any]) -> int:
    """How many seeds' replay buffers the devices can hold beside what else they must, at least one."""
    if not isinstance(config.experiment, ReplayConfig):
        return MOST_AT_ONCE
    free = available_bytes(list(devices))
    needed = build(config, list(devices)).buffer_bytes
    return MOST_AT_ONCE if free is None else max(1, int(free * 0.8 / needed))


def seed_members(config: Config, base: Path) -> list[tuple[Config, Path]]:
    """The configuration and run directory of each seed."""
    if config.seeds is None:
        return [(dataclasses.replace(config, run_dir=str(base)), base)]
    members = []
    for seed in config.seeds:
        path = base / f"seed_{seed}"
        members.append((dataclasses.replace(config, seed=seed, seeds=None, run_dir=str(path)), path))
    return members


def default_run_dir(config: Config) -> str:
    seed = f"seed{config.seed}" if config.seeds is None else f"{len(config.seeds)}seeds"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"runs/{config.task.name.replace('/', '-')}-{config.algorithm.label}-{seed}-{stamp}"


def get_programs(config: Config, parts: Parts) -> Programs:
    if not config.jit:
        return uncompiled(parts)
    with Console(0, show="console" in config.experiment.loggers) as console:
        return compile_parts(parts, console.compiling)


def run_together(
    seeds: Sequence[tuple[Config, RunDirectory]],
    parts: Parts,
    programs: Programs,
    callbacks: Sequence[Callback],
    initial_learner: Callable[[PyTree], PyTree] | None,
) -> list[Summary]:
    """Trains the seeds that `parts` is made for, one or several at once."""
    config = seeds[0][0]
    experiment = config.experiment
    frames = -(-experiment.frames // parts.loop.frames_per_iteration) * parts.loop.frames_per_iteration
    show = "console" in experiment.loggers
    with Console(frames, show=show) as console, _uncompiled(config):
        if show:
            for member, run in seeds:
                console.line(f"{member.algorithm.label} on {member.task.name}, seed {member.seed}: {run.path}")
            if isinstance(config.experiment, ReplayConfig):
                size, megabytes = config.experiment.buffer.size, parts.buffer_bytes / 1e6
                for_each = f" for each of {len(seeds)} seeds" if len(seeds) > 1 else ""
                console.line(f"replay: {size:,} transitions{for_each}, {megabytes:,.0f} MB")
            _say_rounding(console, config, parts.loop.frames_per_iteration)
        summaries = Training(seeds, parts, programs, console, callbacks, initial_learner).run()
    for summary in summaries:
        console.summary(summary)
    return summaries


def _say_rounding(console: Console, config: Config, frames_per_iteration: int) -> None:
    experiment = config.experiment
    rounded = [
        f"{name} {value:,} to {-(-value // frames_per_iteration) * frames_per_iteration:,}"
        for name in ("frames", "evaluation_interval", "checkpoint_interval")
        if (value := getattr(experiment, name)) % frames_per_iteration
    ]
    if rounded:
        console.line(f"rounded up to whole iterations of {frames_per_iteration:,} frames: {', '.join(rounded)}")


def _uncompiled(config: Config) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if config.jit else jax.disable_jit()


def describe(parts: Parts) -> dict[str, Any]:
    """environment.json: the machine, and what the results' numbers mean."""
    spec = parts.env.spec
    return {
        **describe_environment(),
        "returns": spec.returns,
        "evaluation": "greedy" if parts.deterministic else "sampled",
        "metrics": {name: plain(metric) for name, metric in spec.metrics.items()},
    }


def learner_from(path: str) -> Callable[[PyTree], PyTree]:
    """A function that puts another run's parameters into a learner, where names and shapes fit.

    With them go the moments of observations and values: networks are worth nothing without what they were scaled by.
    """
    run = RunDirectory.open(run_directories(path)[0])
    stored = Checkpoints(run.checkpoints).restore_part("learner")

    def transfer(learner: PyTree) -> PyTree:
        taken = total = 0

        def replace(key_path: Any, leaf: Any) -> Any:
            nonlocal taken, total
            names = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in key_path]
            is_parameter = "params" in names
            if not is_parameter and not any(name.endswith("_moments") for name in names):
                return leaf
            total += is_parameter
            found: Any = stored
            for name in names:
                found = found.get(name) if isinstance(found, dict) else None
            if found is None or np.shape(found) != leaf.shape:
                return leaf
            taken += is_parameter
            return jax.device_put(np.asarray(found, leaf.dtype), leaf.sharding)

        learner = jax.tree_util.tree_map_with_path(replace, learner)
        if not taken:
            raise UsageError(f"init_from={path}: none of its parameters fits this run")
        Console(0).line(f"took {taken} of {total} parameter arrays from {path}")
        return learner

    return transfer
