"""Loggers beside the run directory: TensorBoard, Weights & Biases, MLflow, chosen by name in `experiment.loggers`.

The run directory's metrics.jsonl and results.json are always written, by the run itself, so the name `json` asks for
nothing more; `console` is running/console.py. The other three are extras: looked for when a run starts, imported
when they are first used, each on a thread of its own. One that fails is left out after one warning; one that falls
behind loses records, also with one warning. Training never waits for a logger.

Options, by logger, in `experiment.logger_options`:

    tensorboard   flush_secs
    wandb         project ("covey"), entity, name, group, job_type, tags, notes, save_code, and mode: online, offline or
                  disabled. Without a mode, WANDB_MODE says; without that, online where `wandb login` was done and
                  offline elsewhere, with a warning. `wandb sync RUN/wandb/offline-*` uploads an offline run later.
    mlflow        tracking_uri (a file store in the run directory), experiment_name ("covey")
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import queue
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from covey.errors import UsageError, unknown_name, unknown_value
from covey.experiment.recording.run_directory import RunDirectory
from covey.metrics import FRAMES

Record = Mapping[str, float]
Options = Mapping[str, Mapping[str, Any]]


class Logger(Protocol):
    """What a logger does, all of it on its own thread."""

    def start(self, run_directory: RunDirectory, config: Mapping[str, Any], frames: int) -> str | None:
        """`frames` is above 0 where a run is resumed: what was logged after it will be logged again.

        Returns what the user must be told, if anything.
        """

    def log(self, kind: str, record: Record, frames: int) -> None: ...

    def finish(self) -> None: ...


class TensorBoardLogger:
    """Event files in `RUN/tensorboard`."""

    def __init__(self, **options: Any):
        self._options = options

    def start(self, run_directory: RunDirectory, config: Mapping[str, Any], frames: int) -> None:
        import yaml
        from tensorboardX import SummaryWriter

        # TensorBoard hides what an interrupted run logged from `purge_step` on.
        purge_step = frames + 1 if frames else None
        folder = str(run_directory.path / "tensorboard")
        # Without a limit to its queue: `LoggerTeam` has one, and here it would wait for a thread that may have died.
        self._writer = SummaryWriter(folder, purge_step=purge_step, max_queue=0, **self._options)
        text = yaml.safe_dump(dict(config), sort_keys=False)
        self._writer.add_text("config", "\n".join("    " + line for line in text.splitlines()))

    def log(self, kind: str, record: Record, frames: int) -> None:
        self._check_alive()
        for name, value in record.items():
            self._writer.add_scalar(f"{kind}/{name}", value, global_step=frames)

    def finish(self) -> None:
        self._check_alive()
        try:
            self._writer.close()
        except OSError:
            self._forget()
            raise

    def _check_alive(self) -> None:
        """tensorboardX writes on a thread of its own, which dies of a full disk and tells nobody."""
        if not self._writer.file_writer.event_writer._worker.is_alive():
            self._forget()
            raise OSError("it can no longer write its files")

    def _forget(self) -> None:
        """Ends what is left of it: else it would fail again when Python exits."""
        events = self._writer.file_writer.event_writer
        events._closed = True
        events._worker.stop()


class WandbLogger:
    """A run of Weights & Biases, its files in `RUN/wandb`; the whole configuration is passed at init."""

    def __init__(self, **options: Any):
        self._options = {"project": "covey", **options}

    def start(self, run_directory: RunDirectory, config: Mapping[str, Any], frames: int) -> str | None:
        os.environ.setdefault("WANDB_SILENT", "true")  # its login prints before settings apply
        import wandb

        # Its own limit of 90 seconds would also hold up the end of a short run that has no network.
        # Seeds that train at once are runs at once: without `reinit`, a second one would be given the first.
        settings = wandb.Settings(console="off", silent=True, init_timeout=30, reinit="create_new")
        options = {"name": run_directory.path.name, **self._options}
        asked: Any = options.pop("mode", None) or os.environ.get("WANDB_MODE")
        mode: Any = asked or ("online" if wandb.login(prompt=False) else "offline")
        self._run = wandb.init(
            dir=str(run_directory.path),
            config=dict(config),
            id=run_directory.run_id,
            resume="allow",
            mode=mode,
            settings=settings,
            **options,
        )
        # W&B wants its own step to grow; over frames, a resumed run's curves overlap instead of being refused.
        self._run.define_metric(FRAMES)
        self._run.define_metric("*", step_metric=FRAMES)
        if asked or mode == "online":
            return None
        folder = shlex.quote(os.path.dirname(self._run.dir))  # `dir` is the folder of its files
        return f"W&B has no login here and logs offline; upload it later: wandb login && wandb sync {folder}"

    def log(self, kind: str, record: Record, frames: int) -> None:
        self._run.log({f"{kind}/{name}": value for name, value in record.items()} | {FRAMES: frames})

    def finish(self) -> None:
        self._run.finish()


class MlflowLogger:
    """A run of MLflow; by default in a file store, `RUN/mlflow`."""

    def __init__(self, tracking_uri: str | None = None, experiment_name: str = "covey"):
        self._tracking_uri = tracking_uri
        self._experiment_name = experiment_name

    def start(self, run_directory: RunDirectory, config: Mapping[str, Any], frames: int) -> None:
        if self._tracking_uri is None:
            # The light MLflow has no database; its file store works, but must be asked for by name.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        uri = self._tracking_uri or (run_directory.path / "mlflow").absolute().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        experiment_id = self._find_or_make_experiment()
        tag = "covey.run_id"
        known = self._client.search_runs([experiment_id], f"tags.`{tag}` = '{run_directory.run_id}'", max_results=1)
        run = (
            known[0]
            if known
            else self._client.create_run(
                experiment_id, tags={tag: run_directory.run_id}, run_name=run_directory.path.name
            )
        )
        self._run_id = run.info.run_id
        # MLflow refuses to change a parameter, which extending a run's frames would do.
        values = {name: value for name, value in flatten(config).items() if name not in run.data.params}
        params = [Param(name, str(value)[:6000]) for name, value in values.items()]
        for first in range(0, len(params), 100):
            self._client.log_batch(self._run_id, params=params[first : first + 100])

    def _find_or_make_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is None:
            try:
                return self._client.create_experiment(self._experiment_name)
            except MlflowException:  # another run, of a seed that trains beside this one, was first
                found = self._client.get_experiment_by_name(self._experiment_name)
                if found is None:
                    raise
        return found.experiment_id

    def log(self, kind: str, record: Record, frames: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(f"{kind}/{name}", value, now, frames) for name, value in record.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self) -> None:
        self._client.set_terminated(self._run_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Extra:
    make: Callable[..., Logger]
    module: str
    options: frozenset[str]


_BUILT_IN = ("console", "json")
_EXTRAS = {
    "tensorboard": _Extra(make=TensorBoardLogger, module="tensorboardX", options=frozenset({"flush_secs"})),
    "wandb": _Extra(
        make=WandbLogger,
        module="wandb",
        options=frozenset(
            {"project", "entity", "name", "group", "job_type", "tags", "notes", "save_code", "mode"},
        ),
    ),
    "mlflow": _Extra(make=MlflowLogger, module="mlflow", options=frozenset({"tracking_uri", "experiment_name"})),
}
LOGGERS = (*_BUILT_IN, *_EXTRAS)
_WANDB_MODES = ("online", "offline", "disabled")


def check_loggers(names: Iterable[str], options: Options | None = None) -> None:
    """Raises UsageError for an unknown logger, one that is not installed, or an option it does not take."""
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS, see=f"there are {', '.join(LOGGERS)}")
        if name in _EXTRAS and importlib.util.find_spec(_EXTRAS[name].module) is None:
            raise UsageError(f"logger '{name}' is an extra that is not installed: pip install 'covey[{name}]'")
    for name, values in (options or {}).items():
        if name not in _EXTRAS:
            raise unknown_name("logger with options", name, _EXTRAS, see=f"there are {', '.join(_EXTRAS)}")
        for option in values or {}:
            if option not in _EXTRAS[name].options:
                known = sorted(_EXTRAS[name].options)
                raise unknown_name(f"option of logger {name}", option, known, see=f"it takes {', '.join(known)}")
    mode = ((options or {}).get("wandb") or {}).get("mode")
    if mode is not None and mode not in _WANDB_MODES:
        raise unknown_value("logger_options.wandb.mode", str(mode), _WANDB_MODES)


class LoggerTeam:
    """The extras among `names`, each on a daemon thread; nothing here waits for them but `finish`, and not for long."""

    def __init__(
        self, names: Iterable[str], options: Options | None = None, *, warn: Callable[[str], None], capacity: int = 1000
    ):
        names = list(dict.fromkeys(names))
        check_loggers(names, options)
        self._workers = [
            _Worker(name, _EXTRAS[name].make(**((options or {}).get(name) or {})), warn, capacity)
            for name in names
            if name in _EXTRAS
        ]
        self._warn = warn

    def start(self, run_directory: RunDirectory, config: Mapping[str, Any], frames: int = 0) -> None:
        for worker in self._workers:
            worker.start(run_directory, dict(config), frames)

    def log(self, kind: str, record: Record, frames: int) -> None:
        """Hands over the finite values of `record`; TensorBoard and MLflow choke on the others."""
        finite = {name: float(value) for name, value in record.items() if math.isfinite(value)}
        for worker in self._workers:
            worker.put((kind, finite, frames))

    def finish(self, timeout: float = 30.0) -> bool:
        """Lets the loggers write what they have, for at most `timeout` seconds in all.

        False where one is still at it: its library may hold up the interpreter's exit, which a command line can avoid
        by leaving with `os._exit`.
        """
        deadline = time.monotonic() + timeout
        for worker in self._workers:
            worker.finish(deadline)
        return not any(worker.running for worker in self._workers)


class _Worker:
    """One logger, its thread, and the records that wait for it."""

    def __init__(self, name: str, logger: Logger, warn: Callable[[str], None], capacity: int):
        self._name = name
        self._logger = logger
        self._warn = warn
        self._records: queue.Queue[tuple[str, Record, int] | None] = queue.Queue(capacity)
        self._thread: threading.Thread | None = None
        self._failed = False
        self._behind = False

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, run_directory: RunDirectory, config: dict[str, Any], frames: int) -> None:
        arguments = (run_directory, config, frames)
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"logger-{self._name}", daemon=True)
        self._thread.start()

    def put(self, item: tuple[str, Record, int]) -> None:
        if self._failed:
            return
        try:
            self._records.put_nowait(item)
        except queue.Full:
            if not self._behind:
                self._behind = True
                self._warn(f"logger '{self._name}' falls behind; some of its records are left out")

    def finish(self, deadline: float) -> None:
        if self._thread is None or self._failed:
            return
        try:
            self._records.put(None, timeout=max(0.0, deadline - time.monotonic()))
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._failed = True
            self._warn(f"logger '{self._name}' did not finish in time; the last of its records may be missing")

    def _run(self, run_directory: RunDirectory, config: dict[str, Any], frames: int) -> None:
        try:
            note = self._logger.start(run_directory, config, frames)
            if note:
                self._warn(note)
            while (item := self._records.get()) is not None:
                self._logger.log(*item)
            self._logger.finish()
        except (Exception, SystemExit) as error:  # a service's client may well call sys.exit
            if not self._failed:
                self._failed = True
                reason = " ".join(str(error).split()) or type(error).__name__
                self._warn(f"logger '{self._name}' failed and is left out: {reason[:300]}")


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
