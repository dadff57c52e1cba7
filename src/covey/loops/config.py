"""The fields of `experiment` for each loop: frozen dataclasses, read before JAX starts.

A loop is registered with one of these (`registry.register_loop`). What covey asks of all of them is on
`ExperimentConfig`; the dataclass of a loop that steps environments side by side inherits from `CollectingConfig`.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from covey.checks import LARGEST_INT, Large, above_zero, at_least, check_divides
from covey.data.buffer import BufferConfig, Place
from covey.fields import field, whole
from covey.registry import Configuration

LOGGERS = ("console", "json", "mlflow", "tensorboard", "wandb")


class Platform(enum.Enum):
    """The kind of device that computes."""

    auto = "auto"  # an accelerator if there is one, else the CPU
    cpu = "cpu"  # the CPU, even if there is an accelerator
    gpu = "gpu"  # a GPU; an error if there is none
    tpu = "tpu"  # a TPU; an error if there is none


# The role of fields that decide how an experiment is watched and saved.
OF_WATCHING = {"identity": False, "resumable": True, "compared": False, "compiled": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Configuration):
    """Fields of every loop. Intervals are in frames; they and `frames` round up to whole iterations."""

    learns_from: ClassVar[str] = "experience"  # for messages
    # how experience reaches the learner; by default, the first loop that the algorithm can learn in
    loop: str = field("online", newer=True)
    # environment steps to train for, over all environments; a step counts once, whatever the number of agents
    frames: Large = field(2_000_000, resumable=True, compared=False, compiled=False)
    # frames over which schedules (of the learning rate, of exploration) run; null: `frames`
    schedule_frames: Large | None = field(None, resumable=True)
    # kind of device that computes
    platform: Platform = field(Platform.auto, identity=False, resumable=True, compared=False)
    # devices to split the environments over; null: as many as are available and divide them evenly. The number used is
    # stored with the run
    devices: int | None = field(None, identity=False, resumable=True, compared=False)
    # seeds trained in one program, each as if alone up to rounding; null: on accelerators as many as fit, on a CPU one
    # after another
    seeds_at_once: int | None = field(None, identity=False, resumable=True, compared=False)
    # frames between evaluations; 0: at the start and at the end only
    evaluation_interval: Large = field(100_000, resumable=True, compared=False, compiled=False)
    evaluation_episodes: int = field(32, resumable=True, compared=False)  # episodes in each evaluation
    # whether evaluation takes the most likely action; null: yes, but policies over discrete actions sample
    evaluation_deterministic: bool | None = field(None, compared=False)
    # at the end, evaluate the best parameters over ten times the episodes
    absolute_metric: bool = field(True, resumable=True, compared=False, compiled=False)
    # metric of an evaluation by which the best parameters are chosen: mean_return, a group's return or a metric of the
    # task
    best_by: str = field("mean_return", compared=False, compiled=False)
    # frames between checkpoints; 0: at the end only
    checkpoint_interval: Large = field(500_000, **OF_WATCHING)
    checkpoint_keep: int = field(3, **OF_WATCHING)  # checkpoints to keep, the newest ones
    # where metrics go besides the run directory: console, json, mlflow, tensorboard, wandb
    loggers: tuple[str, ...] = field(("console",), **OF_WATCHING)
    # options passed on to each logger, by its name: {wandb: {project: mine, mode: offline}}
    logger_options: dict[str, Any] = field(default_factory=dict, **OF_WATCHING)

    def __post_init__(self) -> None:
        at_least(self, 1, "frames", "schedule_frames", "devices", "seeds_at_once")
        at_least(self, 1, "evaluation_episodes", "checkpoint_keep")
        at_least(self, 0, "evaluation_interval", "checkpoint_interval")
        for logger in (*self.loggers, *self.logger_options):
            if logger not in LOGGERS:
                raise ValueError(f"unknown logger '{logger}'; there are {', '.join(LOGGERS)}")
        for logger, options in self.logger_options.items():
            if not isinstance(options or {}, Mapping):
                example = f"{{{logger}: {{OPTION: VALUE}}}}"
                raise ValueError(f"logger_options takes a mapping for each logger, as in {example}, not {options!r}")

    def check_algorithm(self, algorithm: Any) -> None:
        """Raises ValueError where an algorithm's fields (an `AlgorithmConfig`) do not fit this loop."""

    @property
    def frames_per_iteration(self) -> int:
        """How many frames an iteration counts as."""
        raise NotImplementedError(f"{type(self).__name__} must say how many frames an iteration has")

    @property
    def split_over_devices(self) -> Mapping[str, int]:
        """Numbers, by field, that the number of devices must divide; if there are none, only one device computes."""
        return {}

    @property
    def stored_frames(self) -> int:
        """How many transitions are kept in memory to learn from; 0 where none are."""
        return 0

    @property
    def why_one_seed(self) -> str | None:
        """The reason why several seeds cannot train in one program, if there is one."""
        return None

    @property
    def actors_config(self) -> ActorsConfig | None:
        """How environments are stepped, if actors do that beside the learner; otherwise None."""
        return None

    @property
    def acting_devices(self) -> int:
        """CPU devices for acting, besides those for learning, so that neither waits for the other's programs."""
        return 0

    @property
    def collecting(self) -> CollectingConfig | None:
        """These fields, if an iteration steps environments side by side; otherwise None."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectingConfig(ExperimentConfig):
    """Loops that act in environments: an iteration steps `num_envs` of them `rollout_length` times, then learns."""

    num_envs: int = 64  # environments stepped side by side, over all devices
    rollout_length: int = 32  # steps taken in each environment in an iteration
    stagger: bool = True  # cut the first episodes at different times, so that batches hold all phases of episodes
    shaping_frames: Large | None = None  # frames over which a task's shaping reward falls to zero; null: it stays

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "num_envs", "rollout_length", "shaping_frames")
        if self.frames > LARGEST_INT * self.frames_per_iteration:
            raise ValueError(
                f"frames={self.frames:,} is more than {LARGEST_INT:,} iterations "
                f"of {self.frames_per_iteration:,} frames each"
            )
        if self.devices and self.num_envs % self.devices:
            near = self.num_envs // self.devices * self.devices
            fits = f"{near} or {near + self.devices}" if near else f"{self.devices}"
            raise ValueError(f"num_envs={self.num_envs} does not split over devices={self.devices}; {fits} would")

    @property
    def frames_per_iteration(self) -> int:
        return self.num_envs * self.rollout_length

    @property
    def split_over_devices(self) -> Mapping[str, int]:
        return {"num_envs": self.num_envs}

    @property
    def collecting(self) -> CollectingConfig | None:
        return self

    def check_algorithm(self, algorithm: Any) -> None:
        try:
            algorithm.check(self)
        except ValueError as error:
            raise ValueError(f"algorithm: {error}") from error

    def sized(self, num_envs: int, devices: int) -> Self:
        """These fields with other numbers of environments and devices, learning from the first iteration on."""
        return dataclasses.replace(self, num_envs=num_envs, devices=devices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlineConfig(CollectingConfig):
    """The loop `online`: an iteration learns from what it collected."""

    learns_from: ClassVar[str] = "what was just collected"

    def check_algorithm(self, algorithm: Any) -> None:
        sequence_length = algorithm.sequence_length
        if sequence_length is not None and sequence_length < 1:
            raise ValueError(f"algorithm.sequence_length must be at least 1, not {sequence_length}")
        check_divides("algorithm.sequence_length", sequence_length, "experiment.rollout_length", self.rollout_length)
        super().check_algorithm(algorithm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig(CollectingConfig):
    """The loop `replay`: an iteration adds what it collected to a buffer and updates from samples of it."""

    learns_from: ClassVar[str] = "replay"
    loop: str = "replay"
    rollout_length: int = 8
    updates: int = field(32, changeable=True)  # gradient updates in each iteration
    random_frames: Large = 2_000  # frames acted at random before learning starts
    buffer: BufferConfig = dataclasses.field(default_factory=BufferConfig)  # the replay buffer

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "updates")
        at_least(self, 0, "random_frames")
        if self.devices and self.buffer.batch_size % self.devices:
            raise ValueError(f"buffer.batch_size={self.buffer.batch_size} does not split over devices={self.devices}")

    @property
    def split_over_devices(self) -> Mapping[str, int]:
        return {**super().split_over_devices, "buffer.batch_size": self.buffer.batch_size}

    @property
    def stored_frames(self) -> int:
        return self.buffer.size

    @property
    def why_one_seed(self) -> str | None:
        return "buffer.place=host holds the buffer of one seed only" if self.buffer.place is Place.host else None

    def sized(self, num_envs: int, devices: int) -> Self:
        return dataclasses.replace(super().sized(num_envs, devices), random_frames=0)


class Where(enum.Enum):
    """Where actors step environments."""

    local = "in processes of this machine"
    ray = "in a Ray cluster"


ADDRESS = re.compile(r"[\w.-]+:\d{1,5}")  # HOST:PORT


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorsConfig:
    """Fields of `actors`: how environments are stepped beside the learner."""

    where: Where = field(Where.local, identity=False, resumable=True, compared=False)  # where actors step environments
    # with where=ray: HOST:PORT of the Ray cluster; null: a Ray of its own on this machine, which ends with the command
    address: str | None = field(None, identity=False, resumable=True, compared=False, code=whole)
    # processes that step simulators; null: one for each core. With where=ray: actors, which share the environments;
    # null: as many as the cluster has CPUs for
    num: int | None = field(None, identity=False, resumable=True, compared=False)
    # with where=ray: processes that step simulators in each actor, which claims as many CPUs; null: one
    processes: int | None = field(None, identity=False, resumable=True, compared=False)
    # how many updates the acting parameters are behind. 0: collecting and learning take turns, and the same run gives
    # the same bits. 1 or more: they overlap, and batches are collected with parameters that much older
    lag: int = 0
    # seconds that a process may take to step its copies, before it counts as hanging and is replaced
    step_seconds: float = field(60.0, identity=False, resumable=True, compared=False)
    # with an address: seconds to wait until the Ray cluster answers and has a CPU for every actor; null: 30
    connect_seconds: float | None = field(None, identity=False, resumable=True, compared=False)
    # copies that play evaluations, in processes of this machine; each plays several episodes if there are fewer copies
    # than episodes
    evaluation_copies: int = field(16, resumable=True, compared=False)

    def __post_init__(self) -> None:
        at_least(self, 1, "num", "processes", "evaluation_copies")
        at_least(self, 0, "lag")
        above_zero(self, "step_seconds", "connect_seconds")
        for name, other in (("address", "where=ray"), ("processes", "where=ray"), ("connect_seconds", "an address")):
            missing = self.where is not Where.ray if other == "where=ray" else self.address is None
            if getattr(self, name) is not None and missing:
                raise ValueError(f"{name}={getattr(self, name)} has no effect without {other}")
        if self.address is not None and not (
            ADDRESS.fullmatch(self.address) and 0 < int(self.address.rpartition(":")[2]) < 65536
        ):
            raise ValueError(f"address takes HOST:PORT, as in 10.0.0.1:6379, not '{self.address}'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorLoopConfig(CollectingConfig):
    """Loops in which actors step the environments beside the learner."""

    num_envs: int = 16
    actors: ActorsConfig = dataclasses.field(default_factory=ActorsConfig)  # how environments are stepped

    def __post_init__(self) -> None:
        super().__post_init__()
        num = self.actors.num or 1
        if self.actors.where is Where.ray and num > self.num_envs:
            raise ValueError(f"actors.num={num} actors are more than num_envs={self.num_envs} environments")

    @property
    def actors_config(self) -> ActorsConfig | None:
        return self.actors

    @property
    def acting_devices(self) -> int:
        return 1

    @property
    def split_over_devices(self) -> Mapping[str, int]:
        return {}  # one device learns, because the other cores step environments

    @property
    def why_one_seed(self) -> str | None:
        return "actors step the environments of one seed only"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorLearnerConfig(ActorLoopConfig, OnlineConfig):
    """Actors beside a learner: an iteration learns from a batch that actors collected, in order."""

    loop: str = "actor_learner"
    rollout_length: int = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorReplayConfig(ActorLoopConfig, ReplayConfig):
    """Actors beside a learner with replay: an iteration adds a batch of theirs to a buffer and updates from samples."""

    loop: str = "actor_replay"
    rollout_length: int = 16
