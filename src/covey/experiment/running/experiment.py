"""`Experiment`: algorithm × task × model × seed, from a configuration to a finished run directory.

`train` and `resume` are what the command line calls; `Experiment` is the same from Python.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey import collector
from covey.algorithms.seats import Seating
from covey.errors import UsageError
from covey.experiment.configuration.compose import compose, resume_config
from covey.experiment.configuration.config import (
    Config,
    plain,
    to_dict,
    with_devices,
)
from covey.experiment.configuration.partners import describe_seat
from covey.experiment.loading.partners import TrainingPartners, find_partners, keep_partners
from covey.experiment.loading.transfer import Transfer, TransferSource, plan_transfer, read_source
from covey.experiment.recording.checkpoint import Checkpoints
from covey.experiment.recording.environment import describe_environment
from covey.experiment.recording.finished import describe_finished, finished_frames, mark_finished
from covey.experiment.recording.lease import hold
from covey.experiment.recording.loggers import check_loggers
from covey.experiment.recording.run_directory import RunDirectory, refuse_existing, run_directories
from covey.experiment.running.build import Parts, build
from covey.experiment.running.callbacks import make_callbacks, split_callbacks, warning_about_objects
from covey.experiment.running.console import Console, Summary
from covey.experiment.running.devices import available_bytes, num_available, start_jax
from covey.experiment.running.program_store import ProgramStore, Shelf
from covey.experiment.running.programs import Programs, uncompiled
from covey.experiment.running.training import Callback, Training
from covey.loops.config import ExperimentConfig
from covey.metrics import MEAN_RETURN, group_return, scored_groups
from covey.ops.schedules import Schedule
from covey.types import EnvSpec, PyTree

MOST_AT_ONCE = 16  # seeds in one program, where the user does not say how many
ROUNDING_TOLD = 0.01  # rounding is reported if it changes a number by more than this share


class Experiment:
    """An experiment from Python, with the same fields as the command line.

        covey.Experiment(algorithm="mappo", task="lbf/8x8-2p-2f-coop", seed=0).run()
        covey.Experiment(task="lbf/8x8-2p-2f-coop", fields={"algorithm.lr": 1e-3, "experiment.frames": 100_000})

    `choices` are `algorithm`, `task`, `model`, `critic_model`, `experiment` (a preset), `seed`, `seeds`, `run_dir` and
    the other words of `covey train`; `fields` are dotted. `callbacks` run on the host between iterations:
    `"module:Class"` and classes are stored with the run, objects last until it is interrupted.
    """

    def __init__(
        self,
        *,
        fields: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback | type[Callback] | str] = (),
        **choices: Any,
    ) -> None:
        callback_names, self.callbacks = split_callbacks(callbacks)
        values = {**choices, **(fields or {})} | ({"callbacks": callback_names} if callback_names else {})
        self.config = compose([f"{name}={as_override(value)}" for name, value in values.items()])

    def run(self) -> list[Summary]:
        """Trains; one summary per seed."""
        return train(self.config, self.callbacks)

    def __repr__(self) -> str:
        config = self.config
        seeds = f"seed {config.seed}" if config.seeds is None else f"seeds {', '.join(map(str, config.seeds))}"
        frames = f"{config.experiment.frames:,} frames"
        return f"Experiment({config.algorithm.label} on {config.task.name}, {config.model.label}, {seeds}, {frames})"


def as_override(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(as_override(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{as_override(item)}" for name, item in value.items()) + "}"
    return str(value.name if isinstance(value, enum.Enum) else value)


def train(config: Config, callbacks: Sequence[Callback] = (), store: ProgramStore | None = None) -> list[Summary]:
    """Trains every seed of `config`, each in its own run directory: one after another with one compiled program, or
    several at once in one (`experiment.seeds_at_once`).

    `store` has programs that were compiled before. It finds them by covey's source files, so this process must not have
    changed covey's functions."""
    check_loggers(config.experiment.loggers, config.experiment.logger_options)
    make_callbacks(config.callbacks)  # fails here if one cannot be made, before anything is written
    if callbacks:
        Console(0).warn(warning_about_objects(callbacks))
    config, devices = prepare(config)
    partners = find_partners(config)
    config = with_seeds_at_once(config, devices, callbacks, partners)
    base = Path(config.run_dir or default_run_dir(config))
    configs = seed_configs(config, base)
    for _, path in configs:
        refuse_existing(path)
    source = read_source(config.init_from) if config.init_from else None
    at_once = config.experiment.seeds_at_once or 1
    num_seeds = min(at_once, len(configs))
    shelf = Shelf.of(store, config, devices, num_seeds, configs_of(partners))
    parts = build(config, devices, num_seeds, trace=shelf.kept is None, seating=seating_of(partners))
    initial_learner = initial_learner_from(source, parts)
    environment = describe(config, parts)
    seeds = [(own, RunDirectory.create(path, to_dict(own), environment)) for own, path in configs]
    with hold([run for _, run in seeds]):
        for _, run in seeds:
            keep_partners(partners, run.path)
        return _train_batches(config, devices, parts, shelf, seeds, callbacks, initial_learner, partners)


def _train_batches(
    config: Config,
    devices: list[Any],
    parts: Parts,
    shelf: Shelf,
    seeds: Sequence[tuple[Config, RunDirectory]],
    callbacks: Sequence[Callback],
    initial_learner: Callable[[PyTree], PyTree] | None,
    partners: TrainingPartners | None,
) -> list[Summary]:
    at_once = config.experiment.seeds_at_once or 1
    programs = get_programs(config, parts, shelf)
    summaries = []
    for batch in (seeds[first : first + at_once] for first in range(0, len(seeds), at_once)):
        if len(batch) < parts.num_seeds:  # the last batch, which may be smaller
            parts = build(config, devices, len(batch), seating=seating_of(partners))
            programs = get_programs(config, parts)
        summaries += run_together(batch, parts, programs, callbacks, initial_learner)
        programs = dataclasses.replace(programs, seconds=0.0)  # the time counts once
    return summaries


def resume(
    path: Path,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    *,
    trust: bool = False,
    store: ProgramStore | None = None,
) -> list[Summary]:
    """Continues the run in `path`, or every seed's below it, as if it had never stopped; returns a summary for each.

    Finished runs are left alone. `callbacks` join those that are stored with a run, and `trust` lets it
    import its code (trust.py).
    """
    seeds = runs_to_resume(path, overrides, callbacks, trust)
    for line in dict.fromkeys(describe_ended_schedules(config) for config, _ in seeds):
        if line:
            Console(0).warn(line)
    with hold([run for _, run in seeds]):
        for _, run in seeds:
            if not run.is_current():
                raise UsageError(f"{run.path}: config.yaml has just been changed by another command; try again")
        return _resume_batches([(prepare(config)[0], run) for config, run in seeds], callbacks, store, trust)


def runs_to_resume(
    path: Path, overrides: Sequence[str], callbacks: Sequence[Callback], trust: bool
) -> list[tuple[Config, RunDirectory]]:
    """The runs at `path` that are not finished, each with its configuration after `overrides`. Writes no file.

    A line is printed about each finished run. One that trained in the same program as an unfinished run is returned
    too, because the unfinished one gives the same bits only if both continue together.
    """
    seeds, finished = [], {}
    for directory in run_directories(path):
        run = RunDirectory.open(directory)
        config = resume_config(run.load_config(trust=trust), overrides)
        check_frames(config, run)
        check_loggers(config.experiment.loggers, config.experiment.logger_options)
        make_callbacks(config.callbacks)
        seeds.append((config, run))
        if (frames := finished_frames(run, to_dict(config))) is not None:
            finished[run] = frames
    kept = []
    for batch in resumed_together(seeds, callbacks):
        if all(run in finished for _, run in batch):
            for _, run in batch:
                Console(0).line(describe_finished(run, finished[run]))
        else:
            kept += batch
    return kept


def describe_ended_schedules(config: Config) -> str:
    """Says which schedules end before training does, and what stretches them; "" if none does."""
    experiment = config.experiment
    if experiment.schedule_frames is None or experiment.frames <= experiment.schedule_frames:
        return ""
    fields = [
        name
        for choice in (config.algorithm, *config.algorithm.groups.values())
        for name, value in vars(choice.config).items()
        if isinstance(value, Schedule) and value is not Schedule.constant
    ]
    if not fields:
        return ""
    return (
        f"schedules reach 0 at {experiment.schedule_frames:,} of {experiment.frames:,} frames and stay there "
        f"({', '.join(dict.fromkeys(fields))}); experiment.schedule_frames={experiment.frames} stretches them"
    )


def check_frames(config: Config, run: RunDirectory) -> None:
    """Raises UsageError where a run has already trained for longer than it is asked to."""
    experiment = config.experiment
    done = max(Checkpoints(run.checkpoints).iterations(), default=0) * experiment.frames_per_iteration
    if done - experiment.frames_per_iteration >= experiment.frames:  # frames round up to whole iterations
        raise UsageError(
            f"{run.path} has trained for {done:,} frames already, more than experiment.frames={experiment.frames}; "
            "nothing was changed"
        )


def _resume_batches(
    seeds: Sequence[tuple[Config, RunDirectory]],
    callbacks: Sequence[Callback],
    store: ProgramStore | None,
    trust: bool = False,
) -> list[Summary]:
    summaries = []
    for number, batch in enumerate(resumed_together(seeds, callbacks)):
        config, run = batch[0]
        _, devices = prepare(config)
        # Needed only where nothing was saved yet; by now the other run may be gone.
        source = read_source(config.init_from) if config.init_from and not has_begun(run) else None
        partners = find_partners(config, run.path, trust)
        shelf = Shelf.of(store, config, devices, len(batch), configs_of(partners))
        parts = build(config, devices, len(batch), trace=shelf.kept is None, seating=seating_of(partners))
        initial_learner = initial_learner_from(source, parts)
        if number == 0:  # for all seeds, now that the checks have passed: seeds that wait must know how far to train
            for own_config, own_run in seeds:
                if own_run.config != to_dict(own_config):
                    own_run.rewrite_config(to_dict(own_config))
        for _, own_run in batch:  # a run that was killed before it had copied them
            keep_partners(partners, own_run.path)
        programs = get_programs(config, parts, shelf)
        summaries += run_together(batch, parts, programs, callbacks, initial_learner)
    return summaries


def resumed_together(
    seeds: Sequence[tuple[Config, RunDirectory]], callbacks: Sequence[Callback]
) -> list[list[tuple[Config, RunDirectory]]]:
    """Batches of seeds that trained at once: one configuration, and an iteration from which all can continue."""
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
    """Whether a run has a checkpoint to continue from."""
    return bool(Checkpoints(run.checkpoints).iterations())


def prepare(config: Config) -> tuple[Config, list[Any]]:
    """Settles what depends on the machine, and starts JAX."""
    platform = config.experiment.platform.name
    if not config.jit:
        config = dataclasses.replace(config, experiment=dataclasses.replace(config.experiment, devices=1))
    config = with_devices(config, num_available(platform))
    if config.experiment.schedule_frames is None:  # stored, so that a run that is extended keeps its schedules
        experiment = dataclasses.replace(config.experiment, schedule_frames=config.experiment.frames)
        config = dataclasses.replace(config, experiment=experiment)
    return config, start_jax(platform, config.experiment.devices or 1, config.experiment.acting_devices)


def with_seeds_at_once(
    config: Config,
    devices: Sequence[Any],
    callbacks: Sequence[Callback],
    partners: TrainingPartners | None = None,
) -> Config:
    """`config` with `seeds_at_once` settled: as given, or on an accelerator as many as fit.

    A CPU is not faster with several seeds in one program, and there each seed must give the same bits as alone.
    """
    alone, asked = why_alone(config, callbacks), config.experiment.seeds_at_once
    if alone and asked is not None and asked > 1 and config.jit:
        raise UsageError(f"experiment.seeds_at_once={asked} is not possible: {alone}")
    if alone or (asked is None and devices[0].platform == "cpu"):
        number = 1
    else:
        number = asked or min(len(config.seeds or (config.seed,)), MOST_AT_ONCE, num_fitting(config, devices, partners))
    return dataclasses.replace(config, experiment=dataclasses.replace(config.experiment, seeds_at_once=number))


def why_alone(config: Config, callbacks: Sequence[Callback]) -> str | None:
    """What keeps seeds from training at once, if anything does."""
    experiment = config.experiment
    if callbacks or config.callbacks:
        return "callbacks see one seed at a time"
    return experiment.why_one_seed or (None if config.jit else "jit=false runs one seed at a time")


def num_fitting(config: Config, devices: Sequence[Any], partners: TrainingPartners | None = None) -> int:
    """How many seeds' stored experience fits into the devices' memory, at least one."""
    if not config.experiment.stored_frames:
        return MOST_AT_ONCE
    free = available_bytes(list(devices))
    needed = build(config, list(devices), seating=seating_of(partners)).stored_bytes
    return MOST_AT_ONCE if free is None else max(1, int(free * 0.8 / needed))


def seed_configs(config: Config, base: Path) -> list[tuple[Config, Path]]:
    """The configuration and run directory of each seed."""
    if config.seeds is None:
        return [(dataclasses.replace(config, run_dir=str(base)), base)]
    configs = []
    for seed in config.seeds:
        path = base / f"seed_{seed}"
        configs.append((dataclasses.replace(config, seed=seed, seeds=None, run_dir=str(path)), path))
    return configs


def default_run_dir(config: Config) -> str:
    seed = f"seed{config.seed}" if config.seeds is None else f"{len(config.seeds)}seeds"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"runs/{config.task.name.replace('/', '-')}-{config.algorithm.label}-{seed}-{stamp}"


def get_programs(config: Config, parts: Parts, shelf: Shelf | None = None) -> Programs:
    if not config.jit:
        return uncompiled(parts)
    with Console(0, show="console" in config.experiment.loggers) as console:
        return (shelf or Shelf()).programs(parts, console.compiling)


def run_together(
    seeds: Sequence[tuple[Config, RunDirectory]],
    parts: Parts,
    programs: Programs,
    callbacks: Sequence[Callback],
    initial_learner: Callable[[PyTree], PyTree] | None,
) -> list[Summary]:
    """Trains the seeds that `parts` is made for, one or several at once. Callbacks with stored names are made here."""
    config = seeds[0][0]
    callbacks = [*make_callbacks(config.callbacks), *callbacks]
    experiment = config.experiment
    frames = -(-experiment.frames // parts.loop.frames_per_iteration) * parts.loop.frames_per_iteration
    show = "console" in experiment.loggers
    collector.resume()
    with Console(frames, show=show) as console:
        if show:
            for own, run in seeds:
                console.line(f"{own.algorithm.label} on {own.task.name}, seed {own.seed}: {run.path}")
            if size := experiment.stored_frames:
                for_each = f" for each of {len(seeds)} seeds" if len(seeds) > 1 else ""
                megabytes = parts.stored_bytes / 1e6
                console.line(f"{experiment.loop}: {size:,} transitions{for_each}, {megabytes:,.0f} MB")
            if len(parts.env.spec.cooperating) > 1:
                console.line(describe_opposition(parts.env.spec, experiment.best_by, parts.opponents))
            if config.partners:
                seats = [describe_seat(key, value) for key, value in config.partners.items()]
                console.line(f"partners, which do not learn: {', '.join(seats)}")
            if rounding := describe_rounding(experiment, parts.loop.frames_per_iteration):
                console.line(rounding)
        summaries = Training(seeds, parts, programs, console, callbacks, initial_learner).run()
    for (_, run), summary in zip(seeds, summaries, strict=True):
        mark_finished(run, frames=summary.frames, absolute_metric=experiment.absolute_metric)
        console.summary(summary)
    return summaries


def seating_of(partners: TrainingPartners | None) -> Seating | None:
    return None if partners is None else partners.seating


def configs_of(partners: TrainingPartners | None) -> list[Config]:
    return [] if partners is None else partners.configs


def describe_opposition(spec: EnvSpec, best_by: str, opponents: Sequence[str] = ()) -> str:
    """Who opposes whom, and by whose return the best parameters are chosen."""
    teams = ordered_teams(spec, opponents)
    second = teams[1]
    opposition = " against ".join(" and ".join(team) for team in teams)
    follow = " and ".join(scored_groups(teams, opponents))
    if best_by != MEAN_RETURN:
        return f"{opposition}: mean_return is the return of {follow}; the best parameters are chosen by {best_by}"
    return (
        f"{opposition}: mean_return is the return of {follow}, and chooses the best parameters "
        f"(experiment.best_by={group_return(second[0])} chooses them by {second[0]})"
    )


def describe_rounding(experiment: ExperimentConfig, frames_per_iteration: int) -> str:
    """Says what was rounded up to whole iterations. Empty if nothing changes by more than one percent.

    Intervals longer than the run are left out.
    """
    rounded = {
        name: (value, -(-value // frames_per_iteration) * frames_per_iteration)
        for name in ("frames", "evaluation_interval", "checkpoint_interval")
        if 0 < (value := getattr(experiment, name)) <= experiment.frames
    }
    told = [
        f"{name} {value:,} to {whole:,}"
        for name, (value, whole) in rounded.items()
        if whole - value > ROUNDING_TOLD * value
    ]
    return f"rounded up to whole iterations of {frames_per_iteration:,} frames: {', '.join(told)}" if told else ""


def ordered_teams(spec: EnvSpec, opponents: Sequence[str]) -> list[list[str]]:
    """The teams of a task, with those first in which somebody learns: `mean_return` is that of the first."""
    return sorted(map(list, spec.cooperating), key=lambda team: set(team) <= set(opponents))


def describe(config: Config, parts: Parts) -> dict[str, Any]:
    """environment.json: the machine, and what the results' numbers mean."""
    spec = parts.env.spec
    partners = {"partners": config.partners} if config.partners else {}
    return {
        **describe_environment(),
        "returns": spec.returns,
        "teams": ordered_teams(spec, parts.opponents),
        **partners,
        "evaluation": "greedy" if parts.deterministic else "sampled",
        "metrics": {name: plain(metric) for name, metric in spec.metrics.items()},
    }


def initial_learner_from(source: TransferSource | None, parts: Parts) -> Transfer | None:
    """The transfer from the run of `init_from`, after one line about it. Raises UsageError where nothing fits."""
    if source is None:
        return None
    transfer = plan_transfer(source, parts.algorithm)
    Console(0).line(transfer.description)
    return transfer
