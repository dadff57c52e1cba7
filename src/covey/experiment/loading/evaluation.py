"""`covey evaluate`: plays episodes with a trained team, prints the returns, and draws an episode."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covey import metrics as names
from covey import registry
from covey.algorithms.seats import taken_groups
from covey.envs.base import Env
from covey.errors import UsageError
from covey.experiment.configuration.partners import describe_seat, join_partners, partners_in_evaluation
from covey.experiment.loading.partners import partners_of_run, seat_policy
from covey.experiment.loading.policy import Policy, load
from covey.experiment.recording.lease import living_holder
from covey.experiment.recording.run_directory import run_directories
from covey.experiment.running.build import build_env, is_deterministic, make_evaluate
from covey.experiment.running.console import Console, describe_returns, format_returns
from covey.files import check_regular, to_json, write_atomically, writing
from covey.results import mean_and_interval
from covey.types import Algorithm, PyTree

EPISODES_AT_ONCE = 128
FRAMES_PER_SECOND = 10


def evaluate_run(
    path: str | Path,
    *,
    episodes: int = 100,
    output: str | None = None,
    render: str | None = None,
    deterministic: bool | None = None,
    parameters: str = "final",
    seed: int = 0,
    partners: Mapping[str, Any] | None = None,
    opponents: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Evaluates the run in `path`, or each of its seeds; returns what `output` would hold.

    `partners` take some seats (`partners.py`), and `opponents` is another name for them. In groups where none is given,
    the partners of training play. `task` changes fields of the task, and `trust` lets these runs import their code.
    """
    if episodes < 1:
        raise UsageError(f"episodes must be at least 1, not {episodes}")
    directories = run_directories(path)
    if render is not None:
        check_video(render)
    for name, file in (("output", output), ("render", render)):
        if file is not None:
            check_writable(name, Path(file))
    given = join_partners(partners or {}, opponents or {})
    reports = []
    first: tuple[Players, bool] | None = None  # those who are drawn: the first seed
    for directory in directories:
        policy = load(directory, parameters=parameters, trust=trust)
        if (holder := living_holder(directory)) is not None:
            print(f"{directory} is still training ({holder}); this is its checkpoint at {policy.frames:,} frames")
        seated = partners_in_evaluation(policy.config.partners, given)
        sources = partners_in_evaluation(partners_of_run(policy.config, directory), given)
        players = make_players(policy, sources, task or {}, trust)
        greedy = is_deterministic(policy.config, policy.env) if deterministic is None else deterministic
        first = first or (players, greedy)
        values = play(players, episodes, greedy, seed)
        about = {
            "parameters": parameters,
            "deterministic": greedy,
            "opponents": {key: seated[key] for key in players.opponents},
            "partners": seated,
            "changes": task or {},
        }
        reports.append(make_report(directory, policy, players, values, about))
        print_report(reports[-1])
    report = reports[0] if len(reports) == 1 else merge_reports(reports)
    if len(reports) > 1:
        print(f"all {len(reports)} seeds: mean {describe_returns(shown_means(report))}")
    if output is not None:
        with writing(f"output={output}"):
            write_atomically(Path(output), to_json(report, indent=2) + "\n")
        print(f"wrote {output}")
    if render is not None and first is not None:
        with writing(f"render={render}"):
            draw(first[0], Path(render), first[1], seed)
        print(f"wrote {render}")
    return report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Players:
    """Everyone who acts in `env`."""

    env: Env
    algorithm: Algorithm
    learner: PyTree
    opponents: tuple[str, ...] = ()  # groups that partners play as a whole


def make_players(
    policy: Policy, partners: Mapping[str, Any], changes: Mapping[str, Any], trust: bool = False
) -> Players:
    if not partners and not changes and not taken_groups(policy.algorithm, policy.env.spec):
        return Players(env=policy.env, algorithm=policy.algorithm, learner=policy.learner)
    config = policy.config
    fields = registry.build_config(config.task.config, dict(changes), "task")
    env = build_env(dataclasses.replace(config, task=dataclasses.replace(config.task, config=fields)))
    algorithm, learner = seat_policy(policy, env, partners, trust)
    whole = tuple(key for key in partners if key in env.spec.groups)
    return Players(env=env, algorithm=algorithm, learner=learner, opponents=whole)


def play(players: Players, episodes: int, deterministic: bool, seed: int) -> dict[str, np.ndarray]:
    """Per-episode values of exactly `episodes` episodes, some at a time."""
    at_once = min(episodes, EPISODES_AT_ONCE)
    evaluate = make_evaluate(
        players.env, players.algorithm, at_once, deterministic, jax.devices()[:1], opponents=players.opponents
    )
    rounds: list[dict[str, np.ndarray]] = []
    with Console(episodes, show=sys.stdout.isatty()) as console:
        while len(rounds) * at_once < episodes:
            with console.compiling("and playing episodes"):
                values = evaluate(players.learner, jax.random.fold_in(jax.random.key(seed), len(rounds)))
                rounds.append(jax.tree.map(np.asarray, values))
    return {name: np.concatenate([r[name] for r in rounds])[:episodes] for name in rounds[0]}


def make_report(
    directory: Path, policy: Policy, players: Players, values: dict[str, np.ndarray], about: dict[str, Any]
) -> dict[str, Any]:
    mean, half_width = mean_and_interval(values[names.MEAN_RETURN])
    teams = players.env.spec.cooperating
    return {
        "run": str(directory),
        "task": policy.config.task.name,
        "algorithm": policy.config.algorithm.label,
        **about,
        "returns": players.env.spec.returns,
        "teams": [list(team) for team in teams],
        "mean_return_of": list(names.scored_groups(teams, players.opponents)),
        "mean_return": mean,
        "interval_95": [mean - half_width, mean + half_width],
        "means": {name: float(value.mean()) for name, value in values.items()},
        "episodes": {name: np.asarray(value, float).tolist() for name, value in values.items()},
    }


def merge_reports(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Several seeds: the mean over seeds, and its interval over seeds, not over episodes."""
    mean, half_width = mean_and_interval([report["mean_return"] for report in reports])
    return {
        **{name: reports[0][name] for name in ("teams", "opponents", "partners", "mean_return_of")},
        "mean_return": mean,
        "interval_95": [mean - half_width, mean + half_width],
        "means": {name: float(np.mean([report["means"][name] for report in reports])) for name in reports[0]["means"]},
        "seeds": reports,
    }


def shown_means(report: dict[str, Any]) -> dict[str, float]:
    """The mean returns to show by group, or under "" the mean over groups, if that is shown instead."""
    groups = names.shown_groups(report["teams"], report["opponents"])
    return {group: report["means"][names.group_return(group)] for group in groups} or {"": report["mean_return"]}


def print_report(report: dict[str, Any]) -> None:
    """Prints the mean of each value. With opposed groups or fixed opponents, no mean over groups is shown."""
    by_group = names.shown_groups(report["teams"], report["opponents"])
    episodes = {name: v for name, v in report["episodes"].items() if not (by_group and name == names.MEAN_RETURN)}
    how = "greedy" if report["deterministic"] else "sampled"
    what = f"{report['algorithm']} on {report['task']}"
    print(f"{what}, {report['parameters']} parameters, {how} actions ({report['run']})")
    against = [describe_seat(key, value) for key, value in report["partners"].items()]
    changed = [f"{name}={value}" for name, value in report["changes"].items()]
    if against or changed:
        print(f"  {', '.join([*against, *changed])}")
    for name, values in episodes.items():
        print(f"  {name:<16} {format_returns(values)}")


# ----------------------------------------------------------------------------------------------------- pictures


def check_video(path: str) -> None:
    """Refuses, before anything is played, what cannot be written."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".gif", ".mp4", ".png"):
        raise UsageError(f"render={path}: the name must end in .gif, .mp4 or .png")
    if suffix == ".mp4":
        import matplotlib.animation

        if not matplotlib.animation.FFMpegWriter.isAvailable():
            raise UsageError(f"render={path}: mp4 needs ffmpeg, which is not installed; .gif needs nothing")


def check_writable(name: str, path: Path) -> None:
    """Refuses, before anything is played, a file that cannot be written. Folders on the way to it are made."""
    if path.is_dir():
        raise UsageError(f"{name}={path} is a directory; give the name of a file")
    with writing(f"{name}={path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        if not is_new:  # a pipe would wait for its reader, and a device would be replaced by the file
            check_regular(path)
        open(path, "ab").close()
        if is_new:
            path.unlink()


def draw(players: Players, path: Path, deterministic: bool, seed: int) -> None:
    """Plays one episode and writes it as an animation (or, as .png, its last picture)."""
    states = episode_states(players, deterministic, seed)
    write_video(players.env.render(states), path)


def episode_states(players: Players, deterministic: bool, seed: int) -> list[PyTree]:
    """The environment's states through one episode."""
    env, algorithm = players.env, players.algorithm

    @jax.jit
    def step(acting: PyTree, state: PyTree, timestep: PyTree, carry: PyTree, key: Any) -> tuple[PyTree, PyTree, PyTree]:
        # Parameters are an argument, not a constant, so that other parameters reuse this program.
        key_act, key_env = jax.random.split(key)
        batched = jax.tree.map(lambda x: x[None], timestep)
        actions, _, carry = algorithm.act(acting, batched, carry, key_act, not deterministic)
        state, timestep = env.step(state, jax.tree.map(lambda a: a[0], actions), key_env)
        return state, timestep, carry

    key_reset, key_play = jax.random.split(jax.random.key(seed))
    state, timestep = jax.jit(env.reset)(key_reset)
    acting, carry, states = algorithm.acting(players.learner), algorithm.initial_carry(1), [state]
    for number in range(env.spec.time_limit):
        key = jax.random.fold_in(key_play, number)
        state, timestep, carry = step(acting, state, timestep, carry, key)
        states.append(state)
        if bool(timestep.last):
            break
    on_host: list[PyTree] = jax.device_get(states)
    return on_host


def write_video(frames: list[np.ndarray], path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [Image.fromarray(frame) for frame in frames]
    if path.suffix.lower() == ".png":
        pictures[-1].save(path)
    elif path.suffix.lower() == ".gif":
        pictures[0].save(
            path, save_all=True, append_images=pictures[1:], duration=1000 // FRAMES_PER_SECOND, loop=0, optimize=True
        )
    else:
        import matplotlib.pyplot as plt
        from matplotlib.animation import FFMpegWriter

        height, width = frames[0].shape[:2]
        figure = plt.figure(figsize=(width / 100, height / 100), dpi=100)
        image = figure.add_axes((0, 0, 1, 1))
        image.axis("off")
        shown = image.imshow(frames[0])
        writer = FFMpegWriter(fps=FRAMES_PER_SECOND)
        with writer.saving(figure, str(path), dpi=100):
            for frame in frames:
                shown.set_data(frame)
                writer.grab_frame()
        plt.close(figure)
