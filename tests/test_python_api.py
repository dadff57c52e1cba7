"""What users call from Python: the whole way from an experiment to a report, and how things print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.errors import UsageError

SMALL: dict[str, Any] = {
    "model.layers": [8],
    "algorithm.num_minibatches": 2,
    "experiment.frames": 256,
    "experiment.num_envs": 8,
    "experiment.rollout_length": 8,
    "experiment.evaluation_interval": 0,
    "experiment.evaluation_episodes": 8,
    "experiment.devices": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs")
    [summary] = covey.Experiment(task="probe/copy", run_dir=folder / "one", fields=SMALL).run()
    return summary


def test_run_directory_may_be_a_path(run: Any) -> None:
    assert (run.run_directory / "results.json").is_file()
    assert run.run_directory.parts[-1] == "one" and run.run_directory.is_absolute()


def test_evaluate_plays_what_was_trained(run: Any, tmp_path: Path) -> None:
    report = covey.evaluate(run.run_directory, episodes=4, output=str(tmp_path / "eval.json"))
    assert len(report["episodes"]["mean_return"]) == 4
    assert json.loads((tmp_path / "eval.json").read_text())["mean_return"] == report["mean_return"]


def test_report_returns_its_page(run: Any, tmp_path: Path) -> None:
    page = covey.report(run.run_directory, output=str(tmp_path / "report"), formats=[])
    assert page == tmp_path / "report" / "index.html" and page.stat().st_size > 1_000
    package: Any = covey.report
    assert package.report.ReportOptions().output == "report"  # the package of that name is still there


def test_report_refuses_unknown_options(run: Any) -> None:
    with pytest.raises(UsageError, match="metric"):
        covey.report(run.run_directory, metrics="win_rate")


def test_report_can_be_called_before_its_package_is_imported() -> None:
    code = (
        "import covey; assert callable(covey.report); import covey.report.runs as runs; assert callable(covey.report)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_benchmark_runs_and_tells_where(tmp_path: Path) -> None:
    arguments = {"algorithms": ["ippo"], "tasks": ["probe/copy"], "run_dir": tmp_path / "bench", "workers": 1}
    done = covey.benchmark(**arguments, render=False, fields={**SMALL, "ippo:algorithm.lr": 1e-3})
    assert done.folder == tmp_path / "bench"
    assert [(path / "results.json").is_file() for path in done.run_directories] == [True]
    assert repr(done) == f"FinishedBenchmark({tmp_path / 'bench'}: 1 runs)"


def test_what_users_hold_prints_in_one_short_line(run: Any) -> None:
    experiment = covey.Experiment(algorithm="ippo", seeds=[1, 2], fields={"experiment.frames": 1000})
    assert repr(experiment) == "Experiment(ippo on vmas/navigation, mlp, seeds 1, 2, 1,000 frames)"
    policy = covey.load(run.run_directory)
    assert repr(policy) == "Policy(mappo on probe/copy, mlp, 256 frames)"
    assert repr(run).startswith("Summary(") and "256 frames" in repr(run) and len(repr(run)) < 300
    env = covey.make_env("vmas/navigation")
    algorithm = covey.make_algorithm("mappo", env.spec, model=covey.make_model("mlp"))
    assert repr(algorithm) == "Algorithm(agents)"
    assert "Navigation" in repr(env) or "VmasEnv" in repr(env)


def test_every_public_name_is_there() -> None:
    assert {name for name in covey.__all__ if not hasattr(covey, name)} == set()
