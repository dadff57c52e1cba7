import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey import results
from covey.errors import CoveyError


def three_steps() -> results.Results:
    run = results.make_results("lbf/8x8-2p-2f-coop", "mappo", seed=3)
    for index, frames in enumerate([0, 100, 200]):
        run = results.add_step(
            run,
            frames=frames,
            elapsed_seconds=1.5 * index,
            metrics={
                "mean_return": np.array([index, index + 1], np.float32).tolist(),
                "agents_return": [index, index + 1],
            },
        )
    return run


def marl_eval_means(raw: dict[str, Any], metric: str) -> dict[str, float]:
    """What MARL-eval's pipeline needs of a file: every key below a run is a step that has every metric."""
    means: dict[str, float] = {}
    for tasks in raw.values():
        for algorithms in tasks.values():
            for runs in algorithms.values():
                for steps in runs.values():
                    means |= {name: float(np.mean(step[metric])) for name, step in steps.items()}
    return means


def test_schema_is_that_of_marl_eval() -> None:
    run = results.set_absolute_metrics(three_steps(), {"mean_return": [1.0] * 20, "agents_return": [1.0] * 20})
    steps = run["lbf"]["8x8-2p-2f-coop"]["mappo"]["seed_3"]
    assert list(steps) == ["step_0", "step_1", "step_2", "absolute_metrics"]
    assert steps["step_1"] == {
        "step_count": 100,
        "elapsed_time": 1.5,
        "mean_return": [1.0, 2.0],
        "agents_return": [1.0, 2.0],
    }
    assert marl_eval_means(run, "mean_return") == {"step_0": 0.5, "step_1": 1.5, "step_2": 2.5, "absolute_metrics": 1.0}


def test_absolute_metrics_stay_last_when_a_run_is_extended() -> None:
    run = results.set_absolute_metrics(three_steps(), {"mean_return": [1.0]})
    run = results.add_step(run, frames=300, elapsed_seconds=9.0, metrics={"mean_return": [3.0]})
    assert list(results.only_run(run)) == ["step_0", "step_1", "step_2", "step_3", "absolute_metrics"]


def test_a_second_evaluation_at_the_same_frame_replaces_the_first() -> None:
    run = results.add_step(three_steps(), frames=100, elapsed_seconds=7.0, metrics={"mean_return": [9.0]})
    assert list(results.steps(run)) == ["step_0", "step_1", "step_2"]
    assert results.steps(run)["step_1"]["mean_return"] == [9.0]


def test_cutting_and_adding_again_is_as_if_never_interrupted() -> None:
    whole = three_steps()
    cut = results.cut_steps(results.set_absolute_metrics(whole, {"mean_return": [1.0]}), frames=150)
    assert list(results.only_run(cut)) == ["step_0", "step_1"]
    again = results.add_step(
        cut, frames=200, elapsed_seconds=3.0, metrics={"mean_return": [2, 3], "agents_return": [2, 3]}
    )
    assert again == whole


def test_functions_leave_their_arguments_alone() -> None:
    run = three_steps()
    before = json.dumps(run)
    results.add_step(run, frames=300, elapsed_seconds=0.0, metrics={"mean_return": [1.0]})
    results.cut_steps(run, frames=0)
    results.set_absolute_metrics(run, {"mean_return": [1.0]})
    assert json.dumps(run) == before


def test_a_task_without_a_suite_and_an_algorithm_with_a_comma() -> None:
    assert results.make_results("mine", "a,b", seed=0) == {"mine": {"mine": {"a_b": {"seed_0": {}}}}}


def test_write_and_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    run = results.set_absolute_metrics(three_steps(), {"mean_return": [math.nan, 1.0]})
    results.write_results(path, run)
    read = results.read_results(path)
    assert results.steps(read) == results.steps(run)
    assert results.absolute_metrics(read) == {"mean_return": [None, 1.0]}  # strict JSON has no NaN
    assert [child.name for child in tmp_path.iterdir()] == ["results.json"]
    path.write_text("{")
    with pytest.raises(CoveyError, match="cannot read results"):
        results.read_results(path)


def test_interval_by_hand() -> None:
    mean, half_width = results.mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    # standard deviation 1, t with two degrees of freedom 4.3027
    assert half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert math.isnan(results.mean_and_interval([1.0])[1])


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ((0.93333, 0.02817), "0.9333 ± 0.028"),
        ((75.591, 104.2), "75.59 ± 104"),
        ((-3.4561, 1.26), "-3.456 ± 1.3"),
        ((1.0, 0.0), "1 ± 0"),
        ((0.5, math.nan), "0.5"),
        ((0.5, None), "0.5"),
    ],
)
def test_a_mean_in_words(pair: tuple[float, float | None], text: str) -> None:
    assert results.describe_mean(*pair) == text
