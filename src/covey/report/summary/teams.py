"""Tasks whose groups oppose each other: which groups form a team, and each group's own return.

On such a task a mean over all groups says nothing, because one side wins what the other loses. `mean_return` is
therefore the first team's, and the report shows every group beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from covey.metrics import MEAN_RETURN, group_return, scored_groups
from covey.report import statistics
from covey.report.anchors import read_opposed_tasks
from covey.report.runs import Problem, Run
from covey.report.summary.series import LAST, Cells, Series, make_series
from covey.report.summary.types import GroupFinal

Teams = tuple[tuple[str, ...], ...]  # names of groups, team by team


def read_teams(run: Run) -> Teams:
    """The teams of the run's task if some oppose each other; () if none do, or if nothing says so."""
    declared = run.environment.get("teams")
    if isinstance(declared, list) and all(isinstance(team, list) for team in declared):
        teams = tuple(tuple(str(group) for group in team) for team in declared)
        return teams if len(teams) > 1 else ()
    return _known_teams(run)


def _known_teams(run: Run) -> Teams:
    """The teams of a registered task, for runs that do not declare them."""
    name = run.task_config.get("name", run.task)
    return read_opposed_tasks().get(name, ()) if isinstance(name, str) else ()


def with_first_teams_return(run: Run, problems: list[Problem]) -> Run:
    """The run with `mean_return` taken over the first team, if its file has it over opposed groups.

    covey's older files and those of other systems have the mean over all groups, which is near 0 there.
    """
    teams = () if "teams" in run.environment else _known_teams(run)
    scored = [group_return(group).lower() for group in scored_groups(teams)]
    if not scored or not all(name in run.episodes for name in scored):
        return run
    evaluations = list(zip(*(run.episodes[name] for name in scored), strict=True))
    if any(len({part.size for part in parts}) > 1 for parts in evaluations):
        return run
    what = "its mean_return is over groups that oppose each other"
    problems.append(Problem(what=what, where=run.title, why=f"taken over {' and '.join(teams[0])} instead"))
    absolute = [run.absolute[name] for name in scored if name in run.absolute]
    is_whole = len(absolute) == len(scored) and len({part.size for part in absolute}) == 1
    mean = {MEAN_RETURN: np.mean(absolute, axis=0)} if is_whole else {}
    kept = {name: values for name, values in run.absolute.items() if name != MEAN_RETURN}
    return replace(
        run,
        episodes={**run.episodes, MEAN_RETURN: [np.mean(parts, axis=0) for parts in evaluations]},
        absolute=kept | mean,
    )


def find_opposed_teams(task: str, series: Sequence[Series]) -> Teams:
    """The teams of a task, from its first run that tells; () if its groups do not oppose each other."""
    return next((teams for s in series if s.run.task == task and (teams := read_teams(s.run))), ())


def make_group_finals(cells: Cells, tasks: Sequence[str], algorithms: Sequence[str]) -> Iterator[GroupFinal]:
    """Each group's final return, on tasks whose groups oppose each other."""
    for task in tasks:
        for algorithm in algorithms:
            series = cells.series(task, algorithm)
            for group in (group for team in find_opposed_teams(task, series) for group in team):
                values = _group_values(group, [s.run for s in series], cells.final_kinds[task])
                if values.size:
                    mean = statistics.mean_band(values[:, None])[0]
                    yield GroupFinal(task=task, algorithm=algorithm, group=group, mean=mean)


def _group_values(group: str, runs: Sequence[Run], kind: str) -> np.ndarray:
    """A group's final returns [n], of the runs that have a finite one."""
    found = [make_series(run, group_return(group).lower(), []) for run in runs]
    finals = [s.final(LAST if s.run.failure else kind)[0] for s in found if s and s.frames.size]
    return np.array([value for value in finals if np.isfinite(value)])
