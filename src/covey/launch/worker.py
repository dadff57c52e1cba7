"""A process that runs experiments one after another on its own cores or accelerator: `python -m covey.launch.worker`.

It imports JAX once, and compiles once for consecutive seeds of an experiment. Jobs arrive on stdin and answers leave on
stdout, as lines of JSON. A job has name, config, run_directory, log, command and render. Its answer has state (done,
failed, interrupted or busy), error, and whether the worker leaves afterwards. All other output goes to the job's log. A
job is busy if another process trains its run (experiment/recording/lease.py).

When stdin ends, the process ends at once: the process that started it is done or dead, and a run can be killed at any
time. SIGTERM, SIGINT and SIGHUP save the run and end it.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from covey.errors import CoveyError, Interrupted, UsageError
from covey.experiment.recording.lease import Held, hold, living_holder
from covey.process import ending_signals, make_lasting

if TYPE_CHECKING:
    from covey.experiment.configuration.config import Config
    from covey.experiment.loading.partners import TrainingPartners
    from covey.experiment.recording.run_directory import RunDirectory
    from covey.experiment.running.build import Parts
    from covey.experiment.running.programs import Programs

SECONDS_FOR_LEASE = 5.0  # time for a worker to end whose parent was just killed
MOST_PICTURES = 100  # in a team.gif


@dataclasses.dataclass(kw_only=True)
class Built:
    """What the seeds of one experiment share: its parts and compiled programs."""

    name: str
    parts: Parts
    programs: Programs


class Worker:
    """Runs jobs on `devices` devices; keeps what it built for the last experiment."""

    def __init__(self, platform: str, devices: int) -> None:
        self._platform = platform
        self._devices = devices
        self._built: Built | None = None
        self._signal: int | None = None
        for number in ending_signals():
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        """Handles signals before training, when there is nothing to save, and repeated signals while a run is saved."""
        self._signal = number

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Runs a job; returns its answer."""
        with printing_to(Path(job["log"])):
            return self._answer(job)

    def _answer(self, job: dict[str, Any]) -> dict[str, Any]:
        try:
            self._train(job)
        except Interrupted:
            return {"state": "interrupted", "error": None, "leaves": True}
        except Held as error:
            return {"state": "busy", "error": str(error), "leaves": False}
        except CoveyError as error:
            print(f"covey: {error}", file=sys.stderr)
            return {"state": "failed", "error": str(error), "leaves": False}
        except Exception as error:  # out of memory, or a bug: the process cannot be trusted any more
            traceback.print_exc()
            lines = str(error).splitlines() or [""]
            return {"state": "failed", "error": f"{type(error).__name__}: {lines[0]}", "leaves": True}
        return {"state": "done", "error": None, "leaves": False}

    def _train(self, job: dict[str, Any]) -> None:
        from covey.experiment.configuration.config import from_dict, to_dict
        from covey.experiment.loading.partners import find_partners, keep_partners
        from covey.experiment.running.devices import start_jax
        from covey.experiment.running.experiment import prepare, run_together

        wait_for_lease(Path(job["run_directory"]))
        sys.argv = job["command"]  # for environment.json
        start_jax(self._platform, self._devices)  # for the largest job: JAX fixes the number when it starts
        config, devices = prepare(from_dict(job["config"]))
        self._stop_if_asked()
        path = Path(job["run_directory"])
        partners = find_partners(config, path)
        built = self._build(job["name"], config, devices, partners)
        if partners is not None:  # a seed that was trained before has copies of its own
            built.parts = dataclasses.replace(built.parts, seating=partners.seating)
        self._stop_if_asked()
        # Before the run directory exists, so that parameters that do not fit leave nothing behind.
        initial_learner = first_learner(config, path, built.parts)
        run = open_run(path, config, built.parts)
        with hold([run]):
            if run.config != to_dict(config):  # in fields that do not change the experiment's identity
                run.rewrite_config(to_dict(config))
            keep_partners(partners, run.path)
            run_together([(config, run)], built.parts, built.programs, (), initial_learner)
        built.programs = dataclasses.replace(built.programs, seconds=0.0)  # the first seed's run has recorded them
        if job["render"]:
            draw_team(run.path)

    def _build(self, name: str, config: Config, devices: list[Any], partners: TrainingPartners | None) -> Built:
        from covey.experiment.running.build import build
        from covey.experiment.running.experiment import configs_of, get_programs, seating_of
        from covey.experiment.running.program_store import ProgramStore, Shelf

        if self._built is None or self._built.name != name:
            self._forget()
            shelf = Shelf.of(ProgramStore.default(), config, devices, 1, configs_of(partners))
            parts = build(config, devices, trace=shelf.kept is None, seating=seating_of(partners))
            self._built = Built(name=name, parts=parts, programs=get_programs(config, parts, shelf))
        return self._built

    def _forget(self) -> None:
        """Frees the memory of the previous experiment."""
        if self._built is not None:
            import jax

            self._built = None
            jax.clear_caches()
            gc.collect()

    def _stop_if_asked(self) -> None:
        if self._signal is not None:
            raise Interrupted(self._signal)


def open_run(path: Path, config: Config, parts: Parts) -> RunDirectory:
    """The run directory, new or existing. Another command may create it at the same moment."""
    from covey.experiment.configuration.config import to_dict
    from covey.experiment.recording.run_directory import RunDirectory
    from covey.experiment.running.experiment import describe

    if not path.exists():
        try:
            return RunDirectory.create(path, to_dict(config), describe(config, parts))
        except UsageError:
            if not path.exists():
                raise
    return RunDirectory.open(path)


def wait_for_lease(path: Path) -> None:
    """Raises Held if another process trains the run and does not end soon. Called before anything is built."""
    deadline = time.monotonic() + SECONDS_FOR_LEASE
    while (holder := living_holder(path)) is not None:
        if time.monotonic() > deadline:
            raise Held(f"{path} is being trained by {holder}")
        time.sleep(0.2)


def first_learner(config: Config, path: Path, parts: Parts) -> Any:
    """The function that puts the parameters of `init_from` into the learner; None if there is none, or on resume."""
    from covey.experiment.loading.transfer import read_source
    from covey.experiment.recording.checkpoint import Checkpoints
    from covey.experiment.running.experiment import initial_learner_from

    if config.init_from is None or Checkpoints(path / "checkpoints").iterations():
        return None
    return initial_learner_from(read_source(config.init_from), parts)


def draw_team(path: Path) -> None:
    """Writes `team.gif`, one episode, into a run directory. A failure is only a warning."""
    from covey.experiment.loading.evaluation import episode_states, make_players, write_video
    from covey.experiment.loading.partners import partners_of_run
    from covey.experiment.loading.policy import load
    from covey.experiment.running.build import is_deterministic

    if (path / "team.gif").exists():
        return
    try:
        policy = load(path, trust=True)  # config.yaml is what this worker was told to train
        players = make_players(policy, partners_of_run(policy.config, path), {}, trust=True)
        states = episode_states(players, is_deterministic(policy.config, policy.env), seed=0)
        every = -(-len(states) // MOST_PICTURES)
        write_video(policy.env.render(states[::every]), path / ".team.gif")
        os.replace(path / ".team.gif", path / "team.gif")
    except Exception as error:
        traceback.print_exc()
        print(f"warning: no team.gif: {error}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------- process


@contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """Appends all output of the process to `log`, including that of compiled code."""
    with open(log, "ab") as file:
        try:
            redirect(file)
            yield
        finally:
            with open(os.devnull, "ab") as nowhere:
                redirect(nowhere)


def redirect(file: IO[bytes]) -> None:
    """Redirects stdout and stderr of the process to `file`."""
    sys.stdout.flush()
    for number in (1, 2):
        os.dup2(file.fileno(), number)


def read_jobs(jobs: queue.Queue[dict[str, Any]]) -> None:
    """Moves jobs from stdin to the queue; ends the process when stdin ends."""
    for line in sys.stdin.buffer:
        jobs.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Runs jobs until stdin ends. The argument is JSON with cores, platform and devices."""
    settings = json.loads(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings["cores"])
    worker = Worker(settings["platform"], settings["devices"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # A full disk must not fail a run or its answer just because the log cannot be written.
    (sys.stdout, _), (sys.stderr, _) = make_lasting(sys.stdout), make_lasting(sys.stderr)
    faulthandler.enable()
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=read_jobs, args=(jobs,), daemon=True).start()
    while True:
        answer = worker.run(jobs.get())
        print(json.dumps(answer), file=answers, flush=True)
        if answer["leaves"]:
            os._exit(1)


if __name__ == "__main__":
    main()
