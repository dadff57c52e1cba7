"""Training of a simulator whose processes are killed again and again: what is lost, and whether anything leaks.

`covey train` runs for an hour, without lag and again with it (`--lags`). Every 30 seconds one of the processes that
step simulators, those of evaluations included, is ended by SIGKILL. Meanwhile, once a second, the memory of the main
process, its threads and open files, and the processes under it are counted. In the end:

  frames       as many were learned as were asked for, every iteration once
  restarts     as many processes were replaced as were killed
  dropped      episodes, as many as the killed processes were stepping
  evaluations  every one has all of its episodes
  memory       of the main process: in the last quarter of training it has no more than in the second one
  threads, files, processes
               of the main process, likewise; and in the end no process and no file in /dev/shm is left. Of runs that
               train for less than a minute, what grows is not judged

Exits with 1 if something was lost or leaks, after writing its figures, and draws memory and processes beside them. A
first run without kills finds out how many frames the time is enough for, and where the machine is when nothing dies.

  python benchmarks/soak.py --output results/benchmark-soak.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np

from covey.errors import CoveyError
from covey.experiment.configuration.compose import compose
from covey.results import steps

SHARED_MEMORY = Path("/dev/shm")
WARM_UP = 0.25  # of training, after which its memory should not grow any more
MOST_GROWTH = 0.02  # of the main process's memory, from the quarter of training after warming up to the last quarter
MOST_MORE = 2  # threads and open files, likewise
LEAST_SECONDS = 60.0  # of training, in which growth can be told
MOST_POINTS = 400  # of a curve, in the figures


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--task", default="pettingzoo/multiwalker")
    parser.add_argument("--minutes", type=float, default=60.0, help="of each run")
    parser.add_argument("--every", type=float, default=30.0, metavar="SECONDS", help="between two kills")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1], help="a run for each")
    parser.add_argument("--evaluate-every", type=float, default=60.0, metavar="SECONDS", help="about")
    parser.add_argument("--seed", type=int, default=0, help="by which the processes to kill are drawn")
    parser.add_argument(
        "--frames", type=int, help="instead of as many as the time is enough for, with four evaluations"
    )
    parser.add_argument("--overrides", nargs="*", default=[], help="further words, as of `covey train`")
    parser.add_argument("--draw", type=Path, metavar="FILE.json", help="only draw the figures of this file")
    options = parser.parse_args(arguments)
    if options.draw:
        return draw(json.loads(options.draw.read_text(encoding="utf-8")), options.draw.with_suffix(".png"))
    rows = []
    for lag in options.lags:
        rows.append(soak(options, lag))
        print_row(rows[-1])
        settings = {name: value for name, value in vars(options).items() if name not in ("output", "draw")}
        common.write_figures(options.output, {"settings": settings, "rows": rows})
    if options.output:
        draw({"rows": rows}, options.output.with_suffix(".png"))
    if not all(all(row["checks"].values()) for row in rows):
        sys.exit(1)


def soak(options: Any, lag: int) -> dict[str, Any]:
    """A run with kills, after a short one without."""
    words = ["algorithm=ippo", f"task={options.task}", f"actors.lag={lag}", "experiment.absolute_metric=false"]
    words += ["experiment.loggers=[]", "experiment.platform=cpu", *options.overrides]
    try:
        experiment: Any = compose(words).experiment
    except CoveyError as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory() as folder:
        if options.frames:
            rate, frames, interval = None, options.frames, options.frames // 4
        else:
            rate = rate_without_kills(words, experiment.frames_per_iteration, Path(folder) / "calm")
            frames, interval = int(60 * options.minutes * rate), int(options.evaluate_every * rate)
        intervals = [f"experiment.{name}_interval={max(1, interval)}" for name in ("evaluation", "checkpoint")]
        run = Run(words=[*words, f"experiment.frames={frames}", *intervals], path=Path(folder) / "run")
        before = shared_files()
        until = frames - int(options.every * rate) if rate else int(0.8 * frames)
        run.train(options, until=until, seconds=120 * options.minutes + 300)
        if run.training == (0.0, 0.0):
            sys.exit(f"training never began:\n{run.printed}")
        checks, figures = examine(run, experiment, frames)
        figures["shared_memory_files"] = {"before": len(before), "after": len(shared_files())}
        seconds = run.training[1] - run.training[0]
        return {
            "lag": lag,
            "frames_per_second": {"without kills": rate, "with kills": figures["frames_learned"] / seconds},
            "kills": [dataclasses.asdict(kill) for kill in run.kills],
            "checks": checks,
            **figures,
            "samples": thin(run.samples),
        }


def rate_without_kills(words: list[str], frames_per_iteration: int, path: Path) -> float:
    """Frames per second of training after its first iterations, which compile."""
    few = ["experiment.evaluation_interval=0", f"experiment.frames={8 * frames_per_iteration}", f"run_dir={path}"]
    subprocess.run(
        command_of([*words, *few, "experiment.evaluation_episodes=1"]), check=True, stdout=subprocess.DEVNULL
    )
    rates = [row["frames_per_second"] for row in read_metrics(path) if row["kind"] == "train"]
    return float(np.median(rates[len(rates) // 2 :]))


def command_of(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "covey.cli", "train", *words]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    text = (path / "metrics.jsonl").read_text(encoding="utf-8") if (path / "metrics.jsonl").exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


# ----------------------------------------------------------------------------------------------------------- the run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """A process that was killed, and when."""

    seconds: float
    pid: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The main process at a time: memory in bytes, and counts; `below` are the processes under it and their memory."""

    seconds: float
    memory: int
    threads: int
    files: int
    processes: int
    memory_below: int


class Run:
    """`covey train` in a process of its own, which is watched, and whose processes are killed."""

    def __init__(self, *, words: list[str], path: Path):
        self.words, self.path = words, path
        self.kills: list[Kill] = []
        self.samples: list[Sample] = []
        self.exit_code: int | None = None
        self.printed = ""
        self.training = (0.0, 0.0)  # when the first iteration and the last one were seen to be over
        self.left: list[int] = []  # processes that the run left behind
        self._known: set[tuple[int, int]] = set()  # all of its processes, with when they were started
        self.shared: set[str] = set()  # files in shared memory that its processes had open

    def train(self, options: Any, *, until: int, seconds: float) -> None:
        """Trains, and kills a process every so often as long as fewer than `until` frames are learned. Ends training
        where it takes more than so many seconds."""
        process = subprocess.Popen(
            command_of([*self.words, f"run_dir={self.path}"]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        reader = threading.Thread(target=self._read, args=(process.stderr,))
        reader.start()
        try:
            self._watch(process, options, until, seconds)
        finally:
            process.kill()
            self.exit_code = process.wait()
            reader.join()
        self.left = [pid for pid, started in self._known if started_at(pid) == started]

    def _watch(self, process: subprocess.Popen[str], options: Any, until: int, seconds: float) -> None:
        drawn, began, progress = random.Random(options.seed), time.monotonic(), Progress(self.path)
        due, last, killed_at = None, 0, 0
        while process.poll() is None and (now := time.monotonic() - began) < seconds:
            below = list(processes_below(process.pid))
            self._known |= {(each.pid, each.started) for each in below}
            self._sample(process.pid, below, now)
            frames = progress.frames()
            if frames and due is None:
                due, self.training = now + options.every, (now, now)
            if frames > last:
                self.training, last = (self.training[0], now), frames
            if due is not None and now >= due and killed_at < frames < until:  # training went on since the last one
                due, killed_at = max(due + options.every, now), frames
                self._kill(drawn, below, now)
            time.sleep(min(1.0, options.every / 4))

    def _read(self, stream: Any) -> None:
        with stream:
            self.printed = stream.read()

    def _kill(self, drawn: random.Random, below: list[Process], now: float) -> None:
        workers = sorted(each.pid for each in below if "spawn_main" in each.command)
        if workers:
            pid = drawn.choice(workers)
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(pid, signal.SIGKILL)
                self.kills.append(Kill(seconds=now, pid=pid))

    def _sample(self, pid: int, below: list[Process], now: float) -> None:
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            links = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
            self.shared |= {str(link) for link in links if str(link).startswith(f"{SHARED_MEMORY}/")}
            sample = Sample(
                seconds=now,
                memory=1024 * int(status["VmRSS"].split()[0]),
                threads=int(status["Threads"]),
                files=len(links),
                processes=len(below),
                memory_below=sum(each.memory for each in below),
            )
        except (OSError, KeyError):  # it ends just now, or a file was closed meanwhile
            return
        self.samples.append(sample)


class Progress:
    """The frames that a run says it has learned; reads on in its metrics."""

    def __init__(self, path: Path):
        self._path, self._read, self._frames = path / "metrics.jsonl", 0, 0

    def frames(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._read += len(complete)
            for row in map(json.loads, complete.splitlines()):
                self._frames = row["frames"] if row["kind"] == "train" else self._frames
        return self._frames


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """A living process; `started` tells it from another with the same number."""

    pid: int
    started: int
    command: str
    memory: int


def processes_below(pid: int) -> Iterator[Process]:
    """The processes that one started, theirs included, without those that ended and were not waited for."""
    parents: dict[int, list[tuple[int, int, int]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := stat_of(int(folder.name))) and fields[0] != "Z":
            entry = (int(folder.name), int(fields[19]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
            parents.setdefault(int(fields[1]), []).append(entry)
    below = [*parents.get(pid, [])]
    while below:
        child, started, memory = below.pop()
        below += parents.get(child, [])
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        yield Process(pid=child, started=started, command=command, memory=memory)


def stat_of(pid: int) -> list[str]:
    """The fields of a process's state after its name; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started_at(pid: int) -> int | None:
    """When a process that has not ended was started; None where there is none."""
    fields = stat_of(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else None


def shared_files() -> set[str]:
    return {str(path) for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.exists() else set()


# ------------------------------------------------------------------------------------------------- what became of it


def examine(run: Run, experiment: Any, frames: int) -> tuple[dict[str, bool], dict[str, Any]]:
    """What must hold, and the numbers that it is about."""
    rows = read_metrics(run.path)
    trained = [row for row in rows if row["kind"] == "train"]
    iterations = [row["iteration"] for row in trained]
    asked = -(-frames // experiment.frames_per_iteration)
    replaced = [line for line in run.printed.splitlines() if "it is replaced" in line]
    restarts = sum(round(row["actors/restarts"]) for row in trained)  # of the processes that training steps
    dropped = sum(round(row["actors/dropped_episodes"]) for row in trained)
    num_workers = experiment.actors.num or len(os.sched_getaffinity(0))
    episodes = episodes_evaluated(run.path)
    trained_samples = [sample for sample in run.samples if run.training[0] <= sample.seconds <= run.training[1]]
    growth = growth_of(trained_samples)
    judged = run.training[1] - run.training[0] >= LEAST_SECONDS
    checks = {
        "finished": run.exit_code == 0,
        "frames": iterations == list(range(1, asked + 1)),
        "killed": bool(run.kills),
        "restarts": len(replaced) == len(run.kills) and restarts <= len(replaced),
        "dropped": dropped == restarts * experiment.num_envs // num_workers,
        "evaluations": len(episodes) > 1 and set(episodes) == {experiment.evaluation_episodes},
        "memory": not judged or growth["memory"] <= MOST_GROWTH * trained_samples[-1].memory,
        "threads": not judged or growth["threads"] <= MOST_MORE,
        "files": not judged or growth["files"] <= MOST_MORE,
        "processes": not run.left and (not judged or growth["processes"] <= 0),
        "shared memory": not run.shared & shared_files(),
    }
    figures = {
        "frames_asked": asked * experiment.frames_per_iteration,
        "frames_learned": trained[-1]["frames"] if trained else 0,
        "restarts": {"training": restarts, "evaluation": len(replaced) - restarts},
        "dropped_episodes": dropped,
        "episodes_in_a_process": experiment.num_envs // num_workers,
        "evaluations": dict(Counter(episodes)),
        "growth": growth,
        "bytes_an_hour": 3600 * slope_of(trained_samples),
        "minutes": (run.training[1] - run.training[0]) / 60,
        "exit_code": run.exit_code,
        "printed": sorted(set(run.printed.splitlines()) - set(replaced)),
    }
    return checks, figures


def episodes_evaluated(path: Path) -> list[int]:
    """How many episodes each evaluation has."""
    if not (path / "results.json").exists():
        return []
    results = json.loads((path / "results.json").read_text(encoding="utf-8"))
    return [len(step["mean_return"]) for step in steps(results).values()]


def growth_of(samples: Sequence[Sample]) -> dict[str, float]:
    """What the last quarter of training has over the one after warming up: of memory the median, of threads and files
    the least, since checkpoints have some for a while, of processes the most, since those that were killed are lacking
    for a while."""
    first, last = part_of(samples, WARM_UP, WARM_UP + 0.25), part_of(samples, 0.75, 1.0)
    kinds = {"memory": statistics.median, "threads": min, "files": min, "processes": max}
    return {
        name: float(of([getattr(sample, name) for sample in last]) - of([getattr(sample, name) for sample in first]))
        for name, of in kinds.items()
    }


def part_of(samples: Sequence[Sample], start: float, stop: float) -> list[Sample]:
    """The samples between two shares of their time."""
    begin, length = samples[0].seconds, samples[-1].seconds - samples[0].seconds
    return [sample for sample in samples if start * length <= sample.seconds - begin <= stop * length]


def slope_of(samples: Sequence[Sample]) -> float:
    """Bytes of the main process's memory that are added in a second, after warming up."""
    warm = part_of(samples, WARM_UP, 1.0)
    slope: float = np.polyfit([sample.seconds for sample in warm], [sample.memory for sample in warm], 1)[0]
    return float(slope)


def thin(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Every so many samples, by name."""
    kept = samples[:: -(-len(samples) // MOST_POINTS)]
    return {field.name: [getattr(sample, field.name) for sample in kept] for field in dataclasses.fields(Sample)}


def print_row(row: dict[str, Any]) -> None:
    rates, growth = row["frames_per_second"], row["growth"]
    print(f"lag {row['lag']}: {row['minutes']:.0f} minutes, {len(row['kills'])} kills")
    print(f"  {row['frames_learned']:,} of {row['frames_asked']:,} frames, {row['dropped_episodes']} episodes dropped")
    calm = f", {rates['without kills']:,.0f} without kills" if rates["without kills"] else ""
    print(f"  {rates['with kills']:,.0f} frames/s{calm}")
    print(
        f"  memory {growth['memory'] / 1e6:+.1f} MB ({row['bytes_an_hour'] / 1e6:+.1f} MB an hour), threads "
        f"{growth['threads']:+.0f}, files {growth['files']:+.0f}, processes {growth['processes']:+.0f}"
    )
    wrong = [name for name, fine in row["checks"].items() if not fine]
    for line in row["printed"]:
        print(f"  it printed: {line}")
    print(f"  {'not as it should be: ' + ', '.join(wrong) if wrong else 'nothing lost, nothing leaks'}", flush=True)


def draw(figures: dict[str, Any], path: Path) -> None:
    """Memory and processes over time, and when one was killed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = figures["rows"]
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(2, len(rows), figsize=(4.6 * len(rows), 4.2), sharex="col", squeeze=False)
        for column, row in enumerate(rows):
            samples, (memory, processes) = row["samples"], axes[:, column]
            minutes = np.asarray(samples["seconds"]) / 60
            memory.plot(
                minutes, np.asarray(samples["memory"]) / 1e6, color="#0b6e99", linewidth=1.2, label="main process"
            )
            below = np.asarray(samples["memory_below"]) / 1e6
            memory.plot(minutes, below, color="#d1611b", linewidth=0.8, alpha=0.7, label="simulators")
            memory.set_ylim(bottom=0)
            for name, colour in (("processes", "#d1611b"), ("threads", "#0b6e99"), ("files", "#3b8c4b")):
                processes.plot(minutes, samples[name], color=colour, linewidth=1, label=name)
            killed = [kill["seconds"] / 60 for kill in row["kills"]]
            processes.plot(killed, [0] * len(killed), "|", color="#777777", label="killed")
            processes.set(xlabel=f"minutes, actors.lag={row['lag']}", ylim=(-1, None))
        axes[0, 0].set_ylabel("memory, MB")
        axes[1, 0].set_ylabel("number")
        axes[0, 0].legend(frameon=False)
        axes[1, 0].legend(frameon=False, ncols=2)
        figure.tight_layout()
        figure.savefig(path, dpi=130)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
