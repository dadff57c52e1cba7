"""What scores of 0 and 1 mean on each task: fixed anchors where they are known, otherwise values of these runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from covey.report.anchors import Anchor, read_anchors
from covey.report.defaults import changed_fields, read_defaults
from covey.report.runs import Problem, Run
from covey.report.summary.options import Normalisation
from covey.report.summary.series import Series
from covey.report.summary.types import Scale

# The kinds of value at the ends of a scale, in words that are the same on every task.
RANDOM_TEAM = "a random team"
PUBLISHED = "the best published result"
NOT_PUBLISHED = {"ceiling": "a ceiling", "heuristic": "a hand-written heuristic"}  # by a reference's algorithm
BEST_HERE, WORST_HERE = "the best of these runs", "the worst value of these runs"

NO_ANCHOR = Anchor(random=None, random_interval=None, references=(), returns="")


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of a task's scale, 0 or 1."""

    value: float
    kind: str  # what it is, in words that are the same on every task: RANDOM_TEAM, PUBLISHED, …
    text: str  # what it is on this task, with its value


def make_scales(
    tasks: Sequence[str],
    series: Sequence[Series],
    final_kinds: Mapping[str, str],
    normalisation: Normalisation,
    metric: str,
    higher_is_better: bool,
    problems: list[Problem],
) -> dict[str, Scale]:
    """The scale of each task. `series` are those that count; `final_kinds` is by task."""
    anchors = read_anchors(metric)
    scales = {}
    for task in tasks:
        here = [s for s in series if s.run.task == task]
        anchor = _usable_anchor(task, here, anchors, problems)
        finals = np.array([s.final(final_kinds[task])[0] for s in here])
        everything = np.concatenate([finals, *(s.values for s in here)])
        zero, one = find_ends(normalisation, anchor, finals, everything, higher_is_better)
        if zero.value == one.value:
            problems.append(Problem(what="all values are the same", where=task, why="its scores are 0"))
        scales[task] = Scale(
            task=task,
            zero=zero.value,
            one=one.value,
            text=f"0 is {zero.text}; 1 is {one.text}",
            zero_is=zero.kind,
            one_is=one.kind,
            random=anchor.random,
            references=anchor.references,
            returns=anchor.returns or next((str(s.run.environment.get("returns") or "") for s in here), ""),
        )
    return scales


def _usable_anchor(
    task: str, series: Sequence[Series], anchors: Mapping[str, Anchor], problems: list[Problem]
) -> Anchor:
    """The task's anchor; NO_ANCHOR if none is known, or if the runs had other fields or other returns than it."""
    name = next((name for s in series if (name := s.run.task_config.get("name"))), task)
    anchor = anchors.get(name, NO_ANCHOR) if isinstance(name, str) else NO_ANCHOR
    if anchor is NO_ANCHOR:
        return NO_ANCHOR
    for what in dict.fromkeys(what for s in series if (what := _find_difference(s.run, name, anchor))):
        problems.append(Problem(what=what, where=task, why="the anchors are not used"))
        anchor = NO_ANCHOR
    return anchor


def _find_difference(run: Run, name: str, anchor: Anchor) -> str:
    """How the run's task differs from the task that the anchor was measured on; "" if it does not, as far as known."""
    changed = changed_fields(run.task_config, read_defaults().get(name, {}))
    if changed:
        fields = ", ".join(f"{field}={value}" for field, value in changed.items())
        return f"differs from the registered task: {fields}"
    returns = run.environment.get("returns")
    if returns and anchor.returns and returns not in (anchor.returns, *anchor.earlier_returns):
        return f"its return is “{returns}”, but that of the anchors is “{anchor.returns}”"
    return ""


def find_ends(
    normalisation: Normalisation, anchor: Anchor, finals: np.ndarray, everything: np.ndarray, higher_is_better: bool
) -> tuple[End, End]:
    """The ends 0 and 1 of a task's scale. If lower is better, the value of 1 is below that of 0.

    `finals` [n] are the final values of the task's n runs, `everything` [m] these and the values of all evaluations.
    """
    best, worst = (np.max, np.min) if higher_is_better else (np.min, np.max)
    sign = 1.0 if higher_is_better else -1.0
    if normalisation is Normalisation.none:
        zero, one = (End(value=value, kind=f"{value:g}", text=f"a value of {value:g}") for value in (0.0, sign))
        return zero, one
    if normalisation is Normalisation.minmax:
        low, high = float(worst(everything)), float(best(everything))
        return (
            End(value=low, kind=WORST_HERE, text=f"the worst value in these runs ({low:.4g})"),
            End(value=high, kind=BEST_HERE, text=f"the best ({high:.4g})"),
        )
    one = _fixed_one(anchor, float(best(finals)), sign)
    if anchor.random is not None and sign * anchor.random < sign * one.value:
        return End(value=anchor.random, kind=RANDOM_TEAM, text=f"{RANDOM_TEAM} ({anchor.random:.4g})"), one
    low = float(worst(everything))
    why = "the return of a random team is not known" if anchor.random is None else "no run is above a random team"
    return End(value=low, kind=WORST_HERE, text=f"the worst value here ({low:.4g}): {why}"), one


def _fixed_one(anchor: Anchor, best: float, sign: float) -> End:
    """What 1 is on a fixed scale: the best reference if it is above random, otherwise the best run."""
    reference = max(anchor.references, key=lambda r: sign * r.value, default=None)
    if reference is not None and (anchor.random is None or sign * reference.value > sign * anchor.random):
        name = NOT_PUBLISHED.get(reference.algorithm, reference.algorithm)
        return End(
            value=reference.value,
            kind=NOT_PUBLISHED.get(reference.algorithm, PUBLISHED),
            text=f"{name}, {reference.value:.4g} ({reference.source})",
        )
    text = f"the best run here ({best:.4g}), because no comparable published result is above random"
    return End(value=best, kind=BEST_HERE, text=text)


def describe_scales(scales: Sequence[Scale], normalisation: Normalisation, higher_is_better: bool) -> str:
    """What 0 and 1 are on these scales, in one sentence; numbers of tasks if they differ."""
    if not scales:
        return ""
    if normalisation is Normalisation.none:
        return f"Values {'as they are' if higher_is_better else 'with their sign changed'}, not normalised."
    if normalisation is Normalisation.minmax:
        return "Scores are scaled by the minimum and maximum of these runs: 0 is the worst value, 1 the best."
    zero, one = (_count_kinds([getattr(scale, name) for scale in scales]) for name in ("zero_is", "one_is"))
    is_fixed = any(scale.zero_is == RANDOM_TEAM or scale.one_is != BEST_HERE for scale in scales)
    return f"Scores {'on fixed scales' if is_fixed else 'relative to these runs'}: 0 is {zero}; 1 is {one}."


def _count_kinds(kinds: Sequence[str]) -> str:
    """`a ceiling`, or `a ceiling (2 tasks), the best of these runs (1 task)`, the most frequent first."""
    counts = Counter(kinds).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{kind} ({number} task{'' if number == 1 else 's'})" for kind, number in counts)
