"""The functions that a summary is made of, each called alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.report.anchors import Anchor, Reference
from covey.report.runs import Problem, Run
from covey.report.summary.aggregates import make_ranking
from covey.report.summary.comparisons import choose_pairs
from covey.report.summary.curves import MOST_POINTS, find_common_points, interpolate, thin
from covey.report.summary.options import Normalisation, SummaryOptions, make_generator
from covey.report.summary.records import read_records
from covey.report.summary.scales import BEST_HERE, PUBLISHED, RANDOM_TEAM, WORST_HERE, find_ends
from covey.report.summary.series import ABSOLUTE, LAST, Series, carry_forward, choose_final_kind, make_series


def make_run(**fields: Any) -> Run:
    """A run with three evaluations of one episode each."""
    given: dict[str, Any] = {
        "task": "made-up/a",
        "algorithm": "mappo",
        "seed": "0",
        "frames": np.array([0.0, 500.0, 1000.0]),
        "seconds": np.array([0.0, 5.0, 10.0]),
        "episodes": {"mean_return": [np.array([0.0]), np.array([1.0]), np.array([2.0])]},
        "absolute": {},
        "folder": None,
        "source": Path("made-up.json"),
    }
    return Run(**given | fields)


def series_of(run: Run) -> Series:
    series = make_series(run, "mean_return", [])
    assert series is not None
    return series


def test_a_series_has_means_over_finite_episodes() -> None:
    episodes = {"mean_return": [np.array([1.0, np.nan]), np.array([np.nan]), np.array([2.0, 4.0])]}
    problems: list[Problem] = []
    series = make_series(make_run(episodes=episodes), "mean_return", problems)
    assert series is not None and series.frames.tolist() == [0, 1000] and series.values.tolist() == [1, 3]
    assert series.episodes.tolist() == [1, 2] and np.isnan(series.absolute)
    assert "2 of 5 values" in problems[0].what
    assert series.final(LAST) == (3.0, 2)


def test_the_kind_of_final_value_is_one_for_the_task() -> None:
    without, with_absolute = make_run(), make_run(absolute={"mean_return": np.array([5.0])})
    assert choose_final_kind("made-up/a", [series_of(with_absolute)]) == ABSOLUTE
    assert choose_final_kind("made-up/a", [series_of(with_absolute), series_of(without)]) == LAST
    assert choose_final_kind("made-up/b", [series_of(with_absolute)]) == LAST


def test_a_failed_series_is_extended_to_the_end_of_the_longest() -> None:
    short = make_run(
        frames=np.array([0.0]), seconds=np.array([7.0]), episodes={"mean_return": [np.array([3.0])]}, failure="nan"
    )
    failed = Series(**vars(series_of(short)) | {"failed_final": (3.0, 1)})
    carried = carry_forward(failed, [failed, series_of(make_run())])
    assert carried.frames.tolist() == [0, 500, 1000] and carried.values.tolist() == [3, 3, 3]
    assert carried.seconds is not None and carried.seconds.tolist() == [7, 7, 10]  # seconds must not descend
    assert carry_forward(failed, [failed]) is failed


def test_common_points_are_within_the_common_range() -> None:
    def points(*xs: list[float]) -> list[float] | None:
        found = find_common_points([np.array(x) for x in xs])
        return None if found is None else found.tolist()

    assert points([0, 1, 5], [0, 1, 5]) == [0, 1, 5]
    assert points([0, 4, 8], [2, 6]) == [2, 4, 6]
    assert points([0, 1], [1, 2]) == [1]
    assert points([0, 1], [2, 3]) is None and points([0, 1], []) is None and points([]) is None


def test_interpolation_is_nan_outside_a_series() -> None:
    values = interpolate([series_of(make_run())], "frames", np.array([250.0, 1000.0, 2000.0]))
    assert values[0, :2].tolist() == [0.5, 2.0] and np.isnan(values[0, 2])
    assert interpolate([series_of(make_run())], "seconds", np.array([2.5]))[0].tolist() == [0.5]


def test_thinning_takes_means_of_neighbours() -> None:
    assert thin(np.arange(3.0)).tolist() == [0, 1, 2]
    thinned = thin(np.arange(2.0 * MOST_POINTS))
    assert thinned.size == MOST_POINTS and thinned[:2].tolist() == [0.5, 2.5]


REFERENCE = Reference(algorithm="sable", value=20.0, source="a paper", definition="", frames=None)


@pytest.mark.parametrize(
    ("normalisation", "anchor", "expected"),
    [
        (Normalisation.none, {}, [(0.0, "0"), (1.0, "1")]),
        (Normalisation.minmax, {}, [(-2.0, WORST_HERE), (9.0, BEST_HERE)]),
        (Normalisation.anchors, {}, [(-2.0, WORST_HERE), (8.0, BEST_HERE)]),
        (Normalisation.anchors, {"random": 1.0}, [(1.0, RANDOM_TEAM), (8.0, BEST_HERE)]),
        (Normalisation.anchors, {"random": 1.0, "references": (REFERENCE,)}, [(1.0, RANDOM_TEAM), (20.0, PUBLISHED)]),
        (Normalisation.anchors, {"random": 30.0, "references": (REFERENCE,)}, [(-2.0, WORST_HERE), (8.0, BEST_HERE)]),
    ],
)
def test_the_ends_of_a_scale(
    normalisation: Normalisation, anchor: dict[str, Any], expected: list[tuple[float, str]]
) -> None:
    known = Anchor(**{"random": None, "random_interval": None, "references": (), "returns": ""} | anchor)
    finals, everything = np.array([3.0, 8.0]), np.array([3.0, 8.0, -2.0, 9.0])
    ends = find_ends(normalisation, known, finals, everything, higher_is_better=True)
    assert [(end.value, end.kind) for end in ends] == expected


def test_ranks_without_resampling_have_no_limits() -> None:
    samples = np.array([[0.1, 0.2], [0.5, 0.15]])
    ranking = make_ranking(["a", "b"], samples, resampled=True)
    assert ranking.algorithms == ("a", "b") and ranking.mean_rank.value.tolist() == [1.5, 1.5]
    assert ranking.probabilities is not None and ranking.probabilities.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    alone = make_ranking(["a", "b"], samples[:, :1], resampled=False)
    assert alone.algorithms == ("b", "a") and np.isnan(alone.mean_rank.low).all() and alone.probabilities is None


def test_every_pair_is_compared_unless_pairs_are_chosen() -> None:
    assert choose_pairs(None, ["a", "b", "c"]) == (("a", "b"), ("a", "c"), ("b", "c"))
    assert choose_pairs([("c", "a")], ["a", "b", "c"]) == (("c", "a"),)


def test_a_generator_depends_on_the_seed_and_the_names() -> None:
    def draw(seed: int, *names: str) -> float:
        return float(make_generator(SummaryOptions(seed=seed), *names).random())

    assert draw(0, "curve", "mappo") == draw(0, "curve", "mappo")
    assert len({draw(0, "curve", "mappo"), draw(1, "curve", "mappo"), draw(0, "curve", "ippo")}) == 3


def test_records_have_seconds_by_part_and_collected_values(tmp_path: Path) -> None:
    records = [
        {"kind": "evaluation", "frames": 0, "elapsed_seconds": 1.0},
        {"kind": "train", "frames": 100, "elapsed_seconds": 4.0, "collection/mean_return": 2.0},
        {"kind": "train", "frames": 200, "elapsed_seconds": 6.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = read_records(make_run(folder=tmp_path), "mean_return", [])
    assert found.seconds == {"evaluating": 1.0, "training": 5.0}
    assert (found.frames.tolist(), found.elapsed.tolist(), found.values.tolist()) == ([100], [4], [2])
