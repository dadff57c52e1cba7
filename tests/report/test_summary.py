"""Summaries of made-up runs with known numbers; and MARL-eval's known defects, each shown to be absent here."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from covey.errors import UsageError
from covey.report.anchors import read_anchors
from covey.report.runs import Problem, Run, describe
from covey.report.summary import Normalisation, ReportSummary, SummaryOptions, summarise

QUICK = SummaryOptions(repetitions=300, curve_repetitions=100, improvement_repetitions=100)
PLAIN = dataclasses.replace(QUICK, normalisation=Normalisation.none)


def make_run(
    task: str = "made-up/a",
    algorithm: str = "mappo",
    seed: int = 0,
    *,
    values: Any = (0.0, 1.0, 2.0),
    absolute: Any = (2.0,),
    frames: Any = None,
    seconds: Any = None,
    metric: str = "mean_return",
    **others: Any,
) -> Run:
    """One episode per evaluation, unless a value is itself a list."""
    values = [np.atleast_1d(np.asarray(value, float)) for value in values]
    frames = 1000.0 * np.arange(len(values)) if frames is None else np.asarray(frames, float)
    return Run(
        task=task,
        algorithm=algorithm,
        seed=str(seed),
        frames=frames,
        seconds=frames / 100 if seconds is None else seconds,
        episodes={metric: values},
        absolute={metric: np.asarray(absolute, float)} if absolute is not None else {},
        folder=others.pop("folder", None),
        source=Path("made-up.json"),
        **others,
    )


def grid(levels: dict[str, float], tasks: Any = ("made-up/a", "made-up/b"), seeds: int = 3) -> list[Run]:
    """Runs with rising values that differ by seed and algorithm."""
    rng = np.random.default_rng(0)
    return [
        make_run(task, algorithm, seed, values=(final * np.array([0.0, 0.5, 1.0])), absolute=[final])
        for task in tasks
        for algorithm, level in levels.items()
        for seed in range(seeds)
        for final in [level + rng.normal(0, 0.05)]
    ]


def said(summary: ReportSummary, *words: str) -> bool:
    return any(all(word in describe(problem) for word in words) for problem in summary.problems)


# ------------------------------------------------------------------------------------------------------ final values


def test_final_values_are_the_absolute_metric_with_an_interval_over_seeds() -> None:
    runs = [make_run(seed=seed, absolute=[value, value + 2]) for seed, value in enumerate([3.0, 4.0, 8.0])]
    summary = summarise(runs, options=PLAIN)
    final = summary.final("made-up/a", "mappo")
    assert final is not None and final.of == "absolute" and final.episodes == 2
    assert final.values.tolist() == [4, 5, 9] and final.seeds == ("0", "1", "2")
    low, high = scipy.stats.t.interval(0.95, 2, 6, scipy.stats.sem([4, 5, 9]))
    assert (final.mean.value, final.mean.low, final.mean.high) == pytest.approx((6, low, high))


def test_if_one_run_has_no_absolute_metric_all_of_the_task_use_the_last_tenth() -> None:
    curve = [0.0] * 9 + [5.0, 7.0]  # at 0 … 10,000 frames: the last two are within a tenth
    runs = [make_run(values=curve, absolute=None), make_run(algorithm="ippo", values=curve, absolute=[99.0])]
    runs += [make_run("made-up/b", name, values=curve, absolute=[99.0]) for name in ("mappo", "ippo")]
    summary = summarise(runs, options=PLAIN)
    finals = {(final.task, final.algorithm): final for final in summary.finals}
    for algorithm in ("mappo", "ippo"):
        final = finals["made-up/a", algorithm]
        assert final.of == "last" and final.values.tolist() == [6] and final.episodes == 2
        assert finals["made-up/b", algorithm].values.tolist() == [99]
    assert "last tenth" in summary.final_text


def test_a_run_without_a_final_value_is_named() -> None:
    runs = [make_run(), make_run(seed=1, values=[], absolute=[3.0]), make_run(seed=2, absolute=None)]
    summary = summarise(runs, options=PLAIN)
    [final] = summary.finals
    assert final.seeds == ("0", "1") and said(summary, "seed 2", "no absolute metric")


def with_one_unfinished(**others: Any) -> list[Run]:
    """Three seeds of each algorithm, all done but MAPPO's third, which has just begun."""
    config = {"experiment": {"frames": 2000}}
    runs = [
        make_run("made-up/a", name, seed, values=(0.0, level / 2, level + seed), absolute=[level + seed], config=config)
        for name, level in (("ippo", 30.0), ("mappo", 50.0))
        for seed in range(3)
    ]
    return [*runs[:-1], make_run("made-up/a", "mappo", 2, values=(0.0,), absolute=None, config=config, **others)]


def test_an_unfinished_run_counts_nowhere_and_is_drawn_as_a_single_seed() -> None:
    runs = with_one_unfinished()
    summary, without = summarise(runs, options=PLAIN), summarise(runs[:-1], options=PLAIN)
    assert {final.of for final in summary.finals} == {"absolute"}
    assert summary.aggregates == without.aggregates and summary.aggregates[1].iqm.value == 50.5
    assert summary.improvements == without.improvements and summary.task_comparisons == without.task_comparisons
    for own, other in zip(summary.curves_by_frames, without.curves_by_frames, strict=True):
        assert own.x.tolist() == other.x.tolist() == [0, 1000, 2000]
        assert own.y.value.tolist() == other.y.value.tolist()
    _, curve = summary.task_curves[0].by_frames
    assert curve.y.value.tolist() == [0, 25, 50.5] and curve.seeds == ("0", "1") and curve.unfinished == ("2",)
    assert curve.runs.tolist()[:2] == [[0, 25, 50], [0, 25, 51]]
    assert curve.runs[2, 0] == 0 and np.isnan(curve.runs[2, 1:]).all()
    assert len(summary.runs) == 6


def test_if_no_run_of_a_cell_is_done_all_count_as_far_as_they_got() -> None:
    summary = summarise([run for run in with_one_unfinished() if run.seed == "2"], options=PLAIN)
    [_, mappo] = summary.finals
    assert mappo.seeds == ("2",) and mappo.of == "last" and mappo.values.tolist() == [0]
    assert summary.task_curves[0].by_frames[1].unfinished == ()


def test_a_run_without_its_absolute_metric_is_unfinished() -> None:
    config = {"experiment": {"frames": 2000, "absolute_metric": True}}
    runs = [make_run(seed=0, config=config), make_run(seed=1, absolute=None, config=config)]
    [final] = summarise(runs, options=PLAIN).finals
    assert final.of == "absolute" and final.seeds == ("0",)


# ------------------------------------------------------------------------------------------------------- failed runs


def with_failed(failed: int, **others: Any) -> list[Run]:
    """Five seeds of a stable algorithm at 1, and of a wild one at 2, some of which failed at their first evaluation."""
    config = {"experiment": {"frames": 2000}}
    runs = [make_run("made-up/a", "stable", s, values=(0.1, 0.5, 1.0), absolute=[1.0 + s / 100]) for s in range(5)]
    runs += [make_run("made-up/a", "wild", s, values=(0.1, 1.0, 2.0), absolute=[2.0]) for s in range(failed, 5)]
    gone = {"values": (0.09,), "absolute": None, "config": config, "failure": "loss is nan"} | others
    return [*runs, *(make_run("made-up/a", "wild", s, **gone) for s in range(failed))]


def test_failed_runs_count_by_their_last_evaluations() -> None:
    summary = summarise(with_failed(3), options=PLAIN)
    [stable, wild] = summary.finals
    assert wild.seeds == ("3", "4", "0", "1", "2") and wild.failed == ("0", "1", "2") and stable.failed == ()
    assert wild.of == "absolute" and wild.values.tolist() == [2, 2, 0.09, 0.09, 0.09]
    [comparison] = summary.improvements
    assert comparison.probability.value == pytest.approx(3 / 5)  # of the stable one
    assert comparison.probability.low < 0.5 < comparison.probability.high
    assert summary.ranking is not None and summary.ranking.algorithms[0] == "stable"
    assert len(summary.runs) == 10
    assert "failed" in summary.final_text and "†" in summary.final_text


def test_without_failed_runs_the_better_one_wins() -> None:
    assert summarise(with_failed(0), options=PLAIN).improvements[0].probability.value == 0


def test_runs_that_failed_without_an_evaluation_count_as_the_worst_value() -> None:
    [_, wild] = summarise(with_failed(2, values=()), options=PLAIN).finals
    assert wild.values.tolist() == [2, 2, 2, 0.1, 0.1] and wild.failed == ("0", "1")
    runs = with_failed(2, values=())
    declared = {"metrics": {"mean_return": {"higher_is_better": False}}}
    runs[0] = dataclasses.replace(runs[0], environment=declared)
    assert summarise(runs, options=PLAIN).finals[1].values.tolist() == [2, 2, 2, 2, 2]  # lower is better: 2 is worst


def test_an_algorithm_whose_runs_all_failed_is_the_worst() -> None:
    summary = summarise(with_failed(5, values=()), options=PLAIN)
    [_, wild] = summary.finals
    assert wild.values.tolist() == [0.1] * 5 and summary.improvements[0].probability.value == 1


def test_failed_runs_are_carried_forward_in_curves() -> None:
    [_, curve] = summarise(with_failed(1), options=PLAIN).task_curves[0].by_frames
    assert curve.x.tolist() == [0, 1000, 2000] and curve.seeds == ("1", "2", "3", "4", "0") and curve.failed == ("0",)
    assert curve.runs[-1].tolist() == [0.09, 0.09, 0.09] and curve.y.value[-1] == pytest.approx((4 * 2 + 0.09) / 5)
    [_, by_seconds] = summarise(with_failed(1), options=PLAIN).task_curves[0].by_seconds
    assert by_seconds.x.tolist() == [0, 10, 20] and by_seconds.failed == ("0",)


def test_a_task_with_only_failed_runs_without_values_is_left_out() -> None:
    runs = [make_run(values=(), absolute=None, failure="crashed"), make_run("made-up/b")]
    summary = summarise(runs, options=PLAIN)
    assert summary.tasks == ("made-up/b",) and said(summary, "made-up/a", "failed before its first evaluation")


# ---------------------------------------------------------------------------------------------------- opposed groups


def opposed_run(algorithm: str = "mappo", *, task: str = "made-up/tag", **others: Any) -> Run:
    """Adversaries finally win 4, which agents lose; the file's mean_return is over both."""
    run = make_run(task, algorithm, values=(0.0, 0.0), absolute=(0.0, 0.0), **others)
    evaluations = [np.array([1.0, 3.0]), np.array([3.0, 5.0])]
    adversary = {"adversary_return": evaluations, "agent_return": [-part for part in evaluations]}
    absolute = {"adversary_return": np.array([4.0, 4.0]), "agent_return": np.array([-4.0, -4.0])}
    return dataclasses.replace(run, episodes=run.episodes | adversary, absolute=run.absolute | absolute)


def test_opposed_groups_have_their_returns_side_by_side() -> None:
    summary = summarise([opposed_run(environment={"teams": [["adversary"], ["agent"]]})], options=PLAIN)
    assert summary.teams == {"made-up/tag": (("adversary",), ("agent",))}
    found = {(final.group, final.mean.value) for final in summary.group_finals}
    assert found == {("adversary", 4), ("agent", -4)}
    assert summarise([opposed_run(environment={"teams": [["adversary", "agent"]]})], options=PLAIN).teams == {}


def test_older_files_of_opposed_groups_take_the_first_teams_return() -> None:
    summary = summarise([opposed_run(task="vmas/simple_tag")], options=PLAIN)
    assert summary.finals[0].values.tolist() == [4] and said(summary, "oppose each other", "taken over adversary")
    assert summary.task_curves[0].by_frames[0].y.value.tolist() == [2, 4]
    new = opposed_run(task="vmas/simple_tag", environment={"teams": [["adversary"], ["agent"]]})
    assert summarise([new], options=PLAIN).finals[0].values.tolist() == [0]  # as the file says


# ------------------------------------------------------------------------------------------------------------- scales


def test_anchors_are_a_random_team_and_the_best_published_result() -> None:
    task = "rware/tiny-2ag"
    anchor = read_anchors("mean_return")[task]
    assert anchor.random is not None
    best = anchor.references[0]
    assert (best.algorithm, best.value) == ("sable", 21.17)
    summary = summarise(
        [make_run(task, absolute=[anchor.random]), make_run(task, seed=1, absolute=[21.17])], options=QUICK
    )
    [final] = summary.finals
    assert final.scores == pytest.approx([0, 1])
    scale = summary.scale(task)
    assert "random team" in scale.text and "Sable" in scale.text and "21.17" in scale.text
    assert scale.references == anchor.references and scale.random == anchor.random


def test_the_ceiling_of_balance_is_what_its_time_limit_allows() -> None:
    ceiling = read_anchors("mean_return")["vmas/balance"].references[0]
    assert (ceiling.algorithm, ceiling.value) == ("ceiling", 60.0) and "100 steps" in ceiling.note
    [scale] = summarise([make_run("vmas/balance")], options=QUICK).scales
    assert scale.one == 60 and "1 is a ceiling, 60" in scale.text and scale.one_is == "a ceiling"


def test_without_a_random_teams_value_the_text_says_what_0_is() -> None:
    assert "0 is the worst value here" in summarise([make_run()], options=QUICK).normalisation_text


def test_fixed_scales_do_not_depend_on_the_other_algorithms() -> None:
    runs = [make_run("rware/tiny-2ag", "mappo", seed, absolute=[10.0 + seed]) for seed in range(3)]
    alone = summarise(runs, options=QUICK)
    others = [make_run("rware/tiny-2ag", "other", seed, absolute=[-500.0 * seed]) for seed in range(3)]
    together = summarise([*runs, *others], options=QUICK)
    assert alone.aggregates[0] == together.aggregates[0]


def test_results_that_are_not_comparable_are_never_drawn() -> None:
    anchors = json.loads((Path(sys.modules["covey"].__file__ or "").parent / "anchors.json").read_text())
    hidden = {
        (task, entry["metric"], entry["algorithm"], entry["value"])
        for task, known in anchors["tasks"].items()
        for entry in known["published"]
        if entry.get("comparable") is False
    }
    assert hidden
    for metric in ("mean_return", "win_rate"):
        for task, anchor in read_anchors(metric).items():
            shown = {(task, metric, reference.algorithm, reference.value) for reference in anchor.references}
            assert not shown & hidden


def test_a_tasks_own_metric_has_its_own_anchor() -> None:
    assert read_anchors("deliveries")["rware/tiny-2ag"].random == pytest.approx(0.026367)
    assert read_anchors("nothing")["rware/tiny-2ag"].random is None


def test_without_anchors_the_scale_is_made_of_the_data_and_says_so() -> None:
    summary = summarise([make_run(values=[1.0, 4.0, 2.0], absolute=[3.0])], options=QUICK)
    [scale] = summary.scales
    assert (scale.zero, scale.one) == (1, 3)
    assert "not known" in scale.text and "best run here" in scale.text


def test_returns_with_another_meaning_do_not_use_the_anchors() -> None:
    run = make_run("rware/tiny-2ag", environment={"returns": "the team's steps"})
    summary = summarise([run], options=QUICK)
    assert summary.scales[0].references == () and said(summary, "the anchors are not used")


def test_a_task_with_changed_fields_does_not_use_the_anchors() -> None:
    def run(name: str = "vmas/balance", **fields: Any) -> Run:
        return make_run(name, config={"task": {"name": "vmas/balance", "time_limit": 100, "shaping": 0.0} | fields})

    [scale] = (changed := summarise([run(time_limit=300, n_agents=3)], options=QUICK)).scales
    assert scale.references == () and scale.random is None
    assert said(changed, "vmas/balance", "time_limit=300, n_agents=3", "the anchors are not used")
    [scale] = (same := summarise([run(shaping=1.0, continuous_actions=False)], options=QUICK)).scales
    assert scale.one == 60 and not said(same, "anchors")
    # If both are present, their names differ, and only the registered task has anchors.
    names = ("vmas/balance (time_limit=100)", "vmas/balance (time_limit=300)")
    both = summarise([run(names[0]), run(names[1], time_limit=300)], options=QUICK)
    assert [bool(scale.references) for scale in both.scales] == [True, False]


def test_min_max_covers_every_value() -> None:
    """MARL-eval skips the maximum if a value is a new minimum (an `elif`), and its scores reach 2.33."""
    curves = [[5.0, 4.0, 3.0], [9.0, 8.0, 1.0]]  # each value a new minimum; the maximum comes first
    runs = [make_run(seed=seed, values=curve, absolute=[curve[-1]]) for seed, curve in enumerate(curves)]
    summary = summarise(runs, options=dataclasses.replace(QUICK, normalisation=Normalisation.minmax))
    [scale] = summary.scales
    assert (scale.zero, scale.one) == (1, 9)
    scores = (np.concatenate(curves) - scale.zero) / (scale.one - scale.zero)
    assert scores.min() == 0 and scores.max() == 1
    assert summary.finals[0].scores == pytest.approx([0.25, 0])
    assert "these runs" in summary.normalisation_text


def test_lower_is_better_if_the_task_declares_it() -> None:
    declared = {"metrics": {"collisions": {"higher_is_better": False, "unit": "per episode"}}}
    runs = [
        make_run(algorithm=name, seed=seed, metric="collisions", values=[9.0], absolute=[value], environment=declared)
        for name, value in (("careful", 1.0), ("rash", 6.0))
        for seed in range(3)
    ]
    for normalisation in (Normalisation.minmax, Normalisation.none, Normalisation.anchors):
        options = dataclasses.replace(QUICK, metric="Collisions", normalisation=normalisation)
        summary = summarise(runs, options=options)
        assert not summary.higher_is_better and summary.unit == "per episode"
        assert summary.ranking is not None and summary.ranking.algorithms == ("careful", "rash")
        assert summary.improvements[0].probability.value == 1  # careful over rash
        assert summary.finals[0].values.tolist() == [1, 1, 1]
        assert ("sign changed" in summary.scale_text) == (normalisation is Normalisation.none)


def test_values_that_are_all_the_same() -> None:
    summary = summarise([make_run(values=[2.0, 2.0], absolute=[2.0])], options=QUICK)
    assert summary.finals[0].scores.tolist() == [0] and said(summary, "all values are the same")


# --------------------------------------------------------------------------------------------------------- aggregates


def test_ranking_and_improvement_find_the_better_one() -> None:
    summary = summarise(grid({"ippo": 0.4, "mappo": 0.9, "qmix": 0.9}), options=PLAIN)
    assert summary.ranking is not None and summary.ranking.algorithms[-1] == "ippo"
    place = summary.ranking.probabilities
    assert place is not None
    assert place[-1].tolist() == [0, 0, 1] and place.sum(axis=1) == pytest.approx(1)
    assert 1 < summary.ranking.mean_rank.value[0] < 2 and summary.ranking.mean_rank.value[-1] == 3
    pairs = {(c.first, c.second): c for c in summary.improvements}
    assert pairs["ippo", "mappo"].probability.value == 0
    assert pairs["ippo", "mappo"].p_value == pytest.approx(2 / 400) == pairs["ippo", "mappo"].smallest_p
    assert pairs["ippo", "mappo"].p_corrected == pytest.approx(3 * 2 / 400)
    assert 0.1 < pairs["mappo", "qmix"].probability.value < 0.9
    assert len(summary.task_comparisons) == 6 and {c.smallest_p for c in summary.task_comparisons} == {0.1}


def test_order_and_pairs() -> None:
    runs = grid({"ippo": 0.4, "mappo": 0.9, "qmix": 0.8})
    options = dataclasses.replace(PLAIN, order=("qmix",), pairs=(("mappo", "ippo"),))
    summary = summarise(runs, options=options)
    assert summary.algorithms == ("qmix", "ippo", "mappo")
    assert [(c.first, c.second) for c in summary.improvements] == [("mappo", "ippo")]
    assert [aggregate.algorithm for aggregate in summary.aggregates] == list(summary.algorithms)
    for bad in ({"order": ("qmax",)}, {"pairs": (("mapo", "ippo"),)}):
        with pytest.raises(UsageError, match="unknown algorithm"):
            summarise(runs, options=dataclasses.replace(PLAIN, **bad))
    with pytest.raises(UsageError, match="two algorithms"):
        summarise(runs, options=dataclasses.replace(PLAIN, pairs=(("ippo", "ippo"),)))


def test_the_same_runs_give_the_same_summary() -> None:
    runs = grid({"ippo": 0.4, "mappo": 0.9})
    first, again = summarise(runs, options=PLAIN), summarise(runs, options=PLAIN)
    assert first.aggregates == again.aggregates and first.improvements == again.improvements
    assert np.array_equal(first.curves_by_frames[0].y.low, again.curves_by_frames[0].y.low)
    other = summarise(runs, options=dataclasses.replace(PLAIN, seed=1))
    assert first.aggregates != other.aggregates


def test_aggregates_are_over_tasks_that_all_have_and_pairs_over_those_that_both_have() -> None:
    runs = grid({"ippo": 0.4, "mappo": 0.9}) + grid({"qmix": 0.5}, tasks=("made-up/b",))
    summary = summarise(runs, options=PLAIN)
    assert summary.aggregate_tasks == ("made-up/b",) and said(summary, "leave out made-up/a")
    tasks = {(c.first, c.second): c.tasks for c in summary.improvements}
    assert tasks["ippo", "mappo"] == ("made-up/a", "made-up/b") and tasks["ippo", "qmix"] == ("made-up/b",)


def test_algorithms_without_a_common_task() -> None:
    runs = grid({"ippo": 0.4}, tasks=("made-up/a",)) + grid({"mappo": 0.5}, tasks=("made-up/b",))
    summary = summarise(runs, options=PLAIN)
    assert summary.aggregates == () and summary.ranking is None and summary.improvements == ()
    assert len(summary.finals) == 2 and said(summary, "no aggregates")


def test_one_run_only() -> None:
    summary = summarise([make_run()], options=QUICK)
    assert summary.improvements == () and summary.task_comparisons == ()
    assert np.isnan(summary.aggregates[0].iqm.low) and np.isnan(summary.finals[0].mean.low)
    assert summary.ranking is not None and summary.ranking.probabilities is None


def test_ranks_over_one_seed_are_not_certain() -> None:
    summary = summarise(grid({"ippo": 0.4, "mappo": 0.9}, seeds=1), options=PLAIN)
    assert summary.ranking is not None and summary.ranking.algorithms == ("mappo", "ippo")
    assert summary.ranking.mean_rank.value.tolist() == [1, 2]
    assert np.isnan(summary.ranking.mean_rank.low).all() and np.isnan(summary.ranking.mean_rank.high).all()
    assert summary.ranking.probabilities is None


def test_few_seeds_are_a_warning() -> None:
    few = summarise(grid({"ippo": 0.4, "mappo": 0.9}, seeds=2), options=PLAIN)
    assert few.seeds_text.startswith("Few seeds: 2 for some algorithm")
    assert summarise(grid({"ippo": 0.4, "mappo": 0.9}, seeds=5), options=PLAIN).seeds_text == ""


def test_one_run_on_a_task_leaves_no_intervals_over_tasks() -> None:
    runs = grid({"ippo": 0.4, "mappo": 0.9}, seeds=3)
    runs = [run for run in runs if (run.task, run.algorithm) != ("made-up/b", "mappo") or run.seed == "0"]
    summary = summarise(runs, options=PLAIN)
    ippo, mappo = summary.aggregates
    assert np.isnan(mappo.iqm.low) and np.isfinite(ippo.iqm.low)
    assert summary.ranking is not None and summary.ranking.probabilities is None
    assert np.isnan(summary.improvements[0].probability.low)
    assert said(summary, "aggregates", "only one run of mappo on made-up/b", "no intervals over tasks")


# ------------------------------------------------------------------------------------------------------------- curves


def test_curves_have_points_at_the_frames_of_the_evaluations() -> None:
    """MARL-eval puts the i-th point at i mean intervals, whatever its frames."""
    frames = [0, 100, 5000]
    runs = [make_run(seed=seed, values=[0.0, 1.0, 2.0 + seed], frames=frames) for seed in range(2)]
    summary = summarise(runs, options=PLAIN)
    [curve] = summary.task_curves[0].by_frames
    assert curve.x.tolist() == frames and curve.y.value.tolist() == [0, 1, 2.5]
    assert curve.runs.tolist() == [[0, 1, 2], [0, 1, 3]] and curve.seeds == ("0", "1")
    assert summary.curves_by_frames[0].x.tolist() == frames


def test_unequal_steps_are_interpolated_to_the_common_range() -> None:
    runs = [
        make_run(seed=0, values=[0.0, 4.0, 8.0], frames=[0, 400, 800]),
        make_run(seed=1, values=[1.0, 5.0], frames=[100, 500]),
    ]
    [curve] = summarise(runs, options=PLAIN).task_curves[0].by_frames
    assert curve.x.tolist() == [100, 300, 500] and curve.runs.tolist() == [[1, 3, 5], [1, 3, 5]]


def test_each_algorithm_has_its_own_end() -> None:
    runs = [make_run(algorithm="slow", seconds=np.array([0.0, 50, 100])), make_run(algorithm="fast")]
    summary = summarise(runs, options=PLAIN)
    ends = {curve.algorithm: curve.x[-1] for curve in summary.curves_by_seconds}
    assert ends == {"slow": 100, "fast": 20}


def test_runs_without_times_have_no_curve_by_seconds() -> None:
    runs = [make_run(algorithm="theirs"), make_run(algorithm="ours")]
    runs[0] = dataclasses.replace(runs[0], seconds=None)
    summary = summarise(runs, options=PLAIN)
    assert [curve.algorithm for curve in summary.curves_by_seconds] == ["ours"]
    assert [curve.algorithm for curve in summary.task_curves[0].by_seconds] == ["ours"]
    assert len(summary.curves_by_frames) == 2 and said(summary, "theirs", "no curve over tasks by seconds")


def test_a_curves_interval_uses_the_real_number_of_seeds() -> None:
    """MARL-eval divides by √10 for any number of seeds, and uses the normal distribution's 1.96 even for three."""
    values = [[1.0], [2.0], [6.0]]
    runs = [make_run(seed=seed, values=value, absolute=value) for seed, value in enumerate(values)]
    [curve] = summarise(runs, options=PLAIN).task_curves[0].by_frames
    low, high = scipy.stats.t.interval(0.95, 2, 3, scipy.stats.sem([1, 2, 6]))
    assert (curve.y.low[0], curve.y.high[0]) == pytest.approx((low, high))
    assert curve.y.high[0] - 3 > 1.96 * np.std([1, 2, 6]) / np.sqrt(10)


# ------------------------------------------------------------------------- more of MARL-eval's known defects


def test_several_suites_and_a_second_call() -> None:
    """MARL-eval cannot make matrices for a second environment, because the first call changed its input."""
    runs = grid({"ippo": 0.4}, tasks=("rware/tiny-2ag",)) + grid({"ippo": 0.5}, tasks=("made-up/a",))
    before = [dataclasses.astuple(run) for run in runs]
    first, second = summarise(runs, options=QUICK), summarise(runs, options=QUICK)
    assert first.tasks == second.tasks == ("made-up/a", "rware/tiny-2ag")
    assert str(before) == str([dataclasses.astuple(run) for run in runs])


def test_aggregates_are_numbers_with_names() -> None:
    """MARL-eval returns strings, and its table loses the names of the rows."""
    [aggregate] = summarise([make_run()], options=PLAIN).aggregates
    assert aggregate.algorithm == "mappo"
    for name in ("iqm", "median", "mean", "optimality_gap"):
        assert isinstance(getattr(aggregate, name).value, float)


def test_unusable_values_are_named_and_left_out() -> None:
    """MARL-eval swallows exceptions and returns the raw data."""
    runs = [make_run(values=[np.nan, 1.0, [2.0, np.nan]], absolute=[np.nan]), make_run(seed=1)]
    runs.append(make_run(seed=2, values=[np.nan], absolute=[np.nan]))
    runs.append(make_run(seed=3, metric="won"))
    summary = summarise(runs, options=PLAIN)
    [final] = summary.finals
    assert final.seeds == ("0", "1") and final.of == "last" and final.values.tolist() == [2, 2]
    assert said(summary, "seed 0", "3 of 5 values of mean_return are null")
    assert said(summary, "seed 2", "no finite mean_return") and said(summary, "seed 3", "no mean_return")
    [curve] = summary.task_curves[0].by_frames
    assert np.isfinite(curve.y.value).all() and curve.x[0] == 1000


# ------------------------------------------------------------------------------------------------------------ metrics


@pytest.mark.parametrize("name", ["mean_return", "Mean_Return", "return", "mean_episode_return"])
def test_metrics_by_any_name(name: str) -> None:
    assert summarise([make_run()], options=dataclasses.replace(PLAIN, metric=name)).metric == "mean_return"


def test_unknown_metrics() -> None:
    with pytest.raises(UsageError, match=r"unknown metric 'win_rte'.*mean_return"):
        summarise([make_run()], options=dataclasses.replace(PLAIN, metric="win_rte"))
    with pytest.raises(UsageError, match="no run has a finite value"):
        summarise([make_run(values=[np.nan], absolute=[np.nan])], options=PLAIN)


@pytest.mark.parametrize("name", ["repetitions", "curve_repetitions", "improvement_repetitions"])
def test_options_are_checked(name: str) -> None:
    fields: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=name):
        SummaryOptions(**fields)


def test_earlier_problems_are_kept() -> None:
    problem = Problem(what="odd", where="here", why="because")
    assert problem in summarise([make_run()], [problem], PLAIN).problems


# --------------------------------------------------------------------------------------------------------------- cost


def write_metrics(folder: Path, *records: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


RECORDS = (
    {"kind": "evaluation", "frames": 0, "elapsed_seconds": 0.5},
    {"kind": "train", "frames": 1000, "elapsed_seconds": 2.5},
    {"kind": "train", "frames": 2000, "elapsed_seconds": 4.5},
    {"kind": "evaluation", "frames": 2000, "elapsed_seconds": 5.0},
    {"kind": "absolute", "frames": 2000, "elapsed_seconds": 6.0},
)
DEVICE = {"device": {"platform": "cpu", "kind": "cpu", "number": 1}, "platform": "Linux"}


def test_costs_follow_from_the_records(tmp_path: Path) -> None:
    write_metrics(tmp_path, *RECORDS)
    [cost] = summarise([make_run(folder=tmp_path, environment=DEVICE)], options=PLAIN).costs
    assert (cost.training, cost.evaluating, cost.frames, cost.frames_per_second) == (4, 2, 2000, 500)
    assert cost.compiling is None and cost.collecting is None and cost.updating is None
    assert cost.devices == ("1 × cpu (Linux)",)


def test_costs_that_a_record_states(tmp_path: Path) -> None:
    stated = {"compiling_seconds": 7.0, "collecting_seconds": 1.0, "updating_seconds": 3.0, "evaluating_seconds": 2.5}
    write_metrics(tmp_path, *RECORDS, {"kind": "cost", "frames": 2000, "elapsed_seconds": 6.0, **stated})
    [cost] = summarise([make_run(folder=tmp_path)], options=PLAIN).costs
    assert (cost.compiling, cost.collecting, cost.updating, cost.evaluating) == (7, 1, 3, 2.5)
    assert cost.training == 4


def test_costs_without_readable_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{\n{}\n")
    summary = summarise([make_run(folder=tmp_path), make_run(algorithm="theirs")], options=PLAIN)
    [cost] = summary.costs
    assert cost.training is None and cost.frames_per_second is None and cost.devices == ("unknown",)
    assert said(summary, "metrics cannot be read")


def test_no_jax_is_imported() -> None:
    code = "import covey.report.summary, sys; print([n for n in ('jax', 'pandas', 'scipy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------------- collected returns


def with_records(folder: Path, seed: int, evaluations: int = 3, iterations: int = 500) -> Run:
    """Collected returns that rise by 1 each iteration; in every tenth iteration no episode ended."""
    records = [
        {
            "kind": "train",
            "frames": 10 * i,
            "elapsed_seconds": float(i),
            "collection/mean_return": i if i % 10 else None,
        }
        for i in range(1, iterations + 1)
    ]
    write_metrics(folder / str(seed), *records)
    return make_run(seed=seed, values=np.arange(evaluations), folder=folder / str(seed))


def test_with_few_evaluations_there_are_curves_of_collected_episodes(tmp_path: Path) -> None:
    summary = summarise([with_records(tmp_path, seed) for seed in range(2)], options=PLAIN)
    [curve] = summary.task_curves[0].collected_by_frames
    assert curve.seeds == ("0", "1") and 100 < curve.x.size <= 200
    assert curve.y.value == pytest.approx(curve.x / 10)
    [by_seconds] = summary.task_curves[0].collected_by_seconds
    assert by_seconds.y.value == pytest.approx(by_seconds.x)


def test_with_enough_evaluations_there_are_no_collected_curves(tmp_path: Path) -> None:
    summary = summarise([with_records(tmp_path, 0, evaluations=10)], options=PLAIN)
    assert summary.task_curves[0].collected_by_frames == ()


def test_a_failed_runs_collected_returns_are_carried_forward(tmp_path: Path) -> None:
    runs = [with_records(tmp_path, 0), dataclasses.replace(with_records(tmp_path, 1, iterations=100), failure="nan")]
    [curve] = summarise(runs, options=PLAIN).task_curves[0].collected_by_frames
    assert curve.failed == ("1",) and curve.x[-1] > 4900 and curve.runs[1, -1] == 99
