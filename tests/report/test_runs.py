"""Result files of covey and others, intact and damaged: what is read, and which problems are reported."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from covey.errors import UsageError
from covey.report.runs import Problem, Run, describe, read_runs

STEPS: dict[str, dict[str, Any]] = {  # not in the order of frames, as in BenchMARL's files after 10 evaluations
    "step_10": {"step_count": 2000, "elapsed_time": 9.0, "mean_return": [3.0, 5.0]},
    "step_0": {"step_count": 0, "elapsed_time": 1.0, "mean_return": [0.0, 1.0]},
    "step_9": {"step_count": 1000, "elapsed_time": 4.0, "mean_return": [1.0, 2.0]},
}
ABSOLUTE = {"absolute_metrics": {"mean_return": [4.0, 4.0, 5.0]}}


def nested(
    steps: Any, task: str = "balance", algorithm: str = "mappo", seed: str = "seed_0", suite: str = "vmas"
) -> Any:
    return {suite: {task: {algorithm: {seed: steps}}}}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def write_run(folder: Path, results: Any, config: Any = None, environment: Any = None) -> Path:
    """A run directory of covey."""
    write(folder / "config.yaml", yaml.safe_dump(config or {"seed": 0}))
    write(folder / "environment.json", environment or {"returns": "sum of rewards"})
    write(folder / "checkpoints" / "00000001" / "index.json", {"iteration": 1})
    write(folder / "metrics.jsonl", {"kind": "train", "frames": 1000})
    if results is not None:
        write(folder / "results.json", results)
    return folder


def read_one(path: Path) -> tuple[Run, list[Problem]]:
    [run], problems = read_runs([path])
    return run, problems


def said(problems: list[Problem], *words: str) -> bool:
    return any(all(word in describe(problem) for word in words) for problem in problems)


# ------------------------------------------------------------------------------------------------ what is well-formed


def test_a_run_directory(tmp_path: Path) -> None:
    run, problems = read_one(write_run(tmp_path / "run", nested(STEPS | ABSOLUTE)))
    assert (run.task, run.algorithm, run.seed) == ("vmas/balance", "mappo", "0")
    assert run.frames.tolist() == [0, 1000, 2000] and run.seconds is not None and run.seconds.tolist() == [1, 4, 9]
    assert [values.tolist() for values in run.episodes["mean_return"]] == [[0, 1], [1, 2], [3, 5]]
    assert run.absolute["mean_return"].tolist() == [4, 4, 5]
    assert run.folder == tmp_path / "run" and run.source == tmp_path / "run" / "results.json"
    assert run.environment["returns"] == "sum of rewards" and run.config["seed"] == 0
    assert not problems


def test_folders_of_any_depth_and_files_together(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / "bench" / "mappo" / f"seed_{seed}", nested(STEPS | ABSOLUTE, seed=f"seed_{seed}"))
    merged = nested(STEPS | ABSOLUTE, algorithm="ippo")
    merged["vmas"]["balance"]["ippo"]["seed_1"] = STEPS | ABSOLUTE
    merged["rware"] = nested(STEPS | ABSOLUTE, suite="rware")["rware"]
    write(tmp_path / "merged.json", merged)
    runs, _ = read_runs([tmp_path / "bench", tmp_path / "merged.json"])
    names = [(run.task, run.algorithm, run.seed) for run in runs]
    assert names == [
        ("rware/balance", "mappo", "0"),
        *(("vmas/balance", algorithm, seed) for algorithm in ("ippo", "mappo") for seed in "01"),
    ]


def test_overlapping_paths_and_links_count_once(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "seed_0", nested(STEPS | ABSOLUTE))
    os.symlink(tmp_path / "runs", tmp_path / "runs" / "again")
    runs, problems = read_runs([tmp_path / "runs", tmp_path / "runs" / "seed_0"])
    assert len(runs) == 1 and not problems


def test_a_task_without_a_suite_has_its_own_name(tmp_path: Path) -> None:
    run, _ = read_one(write(tmp_path / "a.json", nested(STEPS | ABSOLUTE, suite="own", task="own")))
    assert run.task == "own"


@pytest.mark.parametrize("name", ["a, b", "a b", "a/b", "<script>alert(1)</script>", "ünï", ""])
def test_names_of_any_kind_pass_through(name: str, tmp_path: Path) -> None:
    run, _ = read_one(write(tmp_path / "a.json", nested(STEPS | ABSOLUTE, algorithm=name)))
    assert run.algorithm == name


def test_seeds_sort_as_numbers(tmp_path: Path) -> None:
    for seed in (10, 9, 1):
        write(tmp_path / f"{seed}.json", nested(STEPS | ABSOLUTE, seed=f"seed_{seed}"))
    runs, _ = read_runs([tmp_path])
    assert [run.seed for run in runs] == ["1", "9", "10"]


# ------------------------------------------------------------------------------------------------ others' differences


def test_benchmarl(tmp_path: Path) -> None:
    """BenchMARL has other names for returns, no times, and an absolute metric that is the luckiest episode."""
    steps = {
        "step_0": {"step_count": 6000, "agents_return": [-1.0, 2.0], "return": [-1.0, 2.0]},
        "step_1": {"step_count": 12000, "agents_return": [0.0, 3.0], "return": [0.0, 3.0]},
        "absolute_metrics": {"agents_return": [3.0], "return": [3.0]},
    }
    run, problems = read_one(write(tmp_path / "mappo_navigation_mlp__1.json", nested(steps)))
    assert run.episodes.keys() == {"mean_return", "agents_return"} and run.seconds is None
    assert run.episodes["mean_return"][1].tolist() == [0, 3]
    assert run.absolute == {} and said(problems, "BenchMARL", "luckiest")


def test_mava(tmp_path: Path) -> None:
    """Mava writes one-element lists, capitals, and win rates in percent."""
    step = {"mean_episode_return": [1.5], "win_rate": [50.0], "steps_per_second": [1e5], "elapsed_time": 3.0}
    steps = {
        "step_0": {"Step_Count": 100, **step},
        "Absolute_Metrics": {"mean_episode_return": [1.75], "win_rate": [75.0]},
    }
    run, problems = read_one(write(tmp_path / "metrics.json", nested(steps, suite="Smax", task="2s3z")))
    assert run.task == "Smax/2s3z"
    assert run.episodes["mean_return"][0].tolist() == [1.5] and run.absolute["mean_return"].tolist() == [1.75]
    assert run.episodes["win_rate"][0].tolist() == [0.5] and run.absolute["win_rate"].tolist() == [0.75]
    assert said(problems, "percent")


def test_og_marl(tmp_path: Path) -> None:
    """OG-MARL writes an empty absolute metric first, and no times."""
    steps = {"absolute_metrics": {}, "step_0": {"step_count": 0, "mean_episode_return": [0.25]}}
    run, problems = read_one(write(tmp_path / "metrics.json", nested(steps)))
    assert run.episodes["mean_return"][0].tolist() == [0.25] and run.absolute == {}
    assert said(problems, "no absolute metric for seed 0")


def test_names_that_differ_only_in_case_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "1.json", nested(STEPS | ABSOLUTE, algorithm="MyAlgo", task="Balance"))
    write(tmp_path / "2.json", nested(STEPS | ABSOLUTE, algorithm="myalgo", task="balance", seed="seed_1"))
    runs, _ = read_runs([tmp_path])
    assert [(run.task, run.algorithm) for run in runs] == [("vmas/Balance", "MyAlgo")] * 2


def test_single_numbers_are_lists_of_one(tmp_path: Path) -> None:
    steps = {"step_0": {"step_count": [50], "mean_return": 2.5}}
    run, _ = read_one(write(tmp_path / "a.json", nested(steps)))
    assert run.frames.tolist() == [50] and run.episodes["mean_return"][0].tolist() == [2.5]


# ---------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps(nested(STEPS))[:-40], "damaged"),
        ("", "damaged"),
        ("\x00\x01", "damaged"),
        ("[" * 100_000, "damaged"),
        ({"speed": {"frames": 3}}, "no results"),
        ([1, 2], "no results"),
        ("3", "no results"),
        (nested({}), "no results"),
        (nested({"step_0": 3}), "no results"),
        (nested({"absolute_metrics": {}}), "it has no evaluation"),
        (nested({"step_0": {"step_count": None, "mean_return": [1]}}), "no step_count"),
    ],
)
def test_a_bad_file_is_named_and_the_others_are_read(
    content: dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, list[int] | None] | int]]] | int]]
    | list[int]
    | str,
    words: str,
    tmp_path: Path,
) -> None:
    write(tmp_path / "bad.json", content)
    write(tmp_path / "good.json", nested(STEPS | ABSOLUTE))
    runs, problems = read_runs([tmp_path])
    assert len(runs) == 1 and said(problems, "bad.json", words)
    with pytest.raises(UsageError, match="no results in") as error:
        read_runs([tmp_path / "bad.json"])
    assert "\n" not in str(error.value) and "bad.json" in str(error.value)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"bad\.json"):
        read_runs([tmp_path])


def test_values_that_are_not_finite_are_nan(tmp_path: Path) -> None:
    steps = {"step_0": {"step_count": 0, "mean_return": [1.0, None, np.nan, np.inf, -np.inf]}}
    path = write(tmp_path / "a.json", nested(steps))
    assert "NaN" in path.read_text() and "Infinity" in path.read_text()
    run, _ = read_one(path)
    assert np.isnan(run.episodes["mean_return"][0]).tolist() == [False, True, True, True, True]


def test_values_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    steps = {
        "step_0": {"step_count": 0, "mean_return": [1.0], "note": ["good"], "tree": {"a": 1}, "rows": [[1], [2, 3]]}
    }
    run, problems = read_one(write(tmp_path / "a.json", nested(steps)))
    assert run.episodes["mean_return"][0].tolist() == [1] and run.episodes["note"][0].size == 0
    for metric in ("note", "tree", "rows"):
        assert said(problems, metric, "not a number")


def test_a_metric_that_some_evaluations_lack_stays_aligned(tmp_path: Path) -> None:
    steps = {"a": {"step_count": 0, "mean_return": [1.0]}, "b": {"step_count": 5, "mean_return": [2.0], "won": [1.0]}}
    run, _ = read_one(write(tmp_path / "a.json", nested(steps)))
    assert [values.tolist() for values in run.episodes["won"]] == [[], [1.0]]


def test_two_evaluations_at_one_frame(tmp_path: Path) -> None:
    steps = {"a": {"step_count": 5, "mean_return": [1.0]}, "b": {"step_count": 5, "mean_return": [2.0]}}
    run, problems = read_one(write(tmp_path / "a.json", nested(steps)))
    assert run.frames.tolist() == [5] and run.episodes["mean_return"][0].tolist() == [2]
    assert said(problems, "two evaluations at 5 frames")


@pytest.mark.parametrize("times", [[1.0, None], [5.0, 2.0]])
def test_times_that_do_not_ascend_are_left_out(times: list[float | None], tmp_path: Path) -> None:
    steps = {str(i): {"step_count": i, "mean_return": [1.0], "elapsed_time": time} for i, time in enumerate(times)}
    run, problems = read_one(write(tmp_path / "a.json", nested(steps)))
    assert run.seconds is None and said(problems, "times are missing or do not ascend")


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    write(tmp_path / "bench" / "notes.txt", "hello")
    with pytest.raises(UsageError, match=r"no file or folder .*nearest: .*bench"):
        read_runs([tmp_path / "bnech"])
    with pytest.raises(UsageError, match="no results in"):
        read_runs([tmp_path / "bench"])
    with pytest.raises(UsageError, match="cannot read"):
        read_runs(["x" * 5000])
    with pytest.raises(UsageError, match="no results in no paths"):
        read_runs([])


def test_a_run_that_has_not_been_evaluated_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "young", None)
    write_run(tmp_path / "old", nested(STEPS | ABSOLUTE))
    runs, problems = read_runs([tmp_path])
    assert len(runs) == 1 and said(problems, "young", "no evaluation yet")


def test_a_bad_config_does_not_hide_results(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", nested(STEPS | ABSOLUTE))
    (folder / "config.yaml").write_text("a: [")
    (folder / "environment.json").write_text("{")
    run, problems = read_one(folder)
    assert run.config == {} and run.environment == {}
    assert said(problems, "config.yaml", "cannot be read") and said(problems, "environment.json", "cannot be read")


def test_a_config_with_python_objects_does_not_make_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", nested(STEPS | ABSOLUTE))
    (folder / "config.yaml").write_text("a: !!python/object/apply:os.system ['touch made']")
    run, problems = read_one(folder)
    assert run.config == {} and said(problems, "config.yaml") and not Path("made").exists()


# --------------------------------------------------------------------------------------- runs that form no rectangle


def test_gaps_are_named(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / f"m{seed}.json", nested(STEPS | ABSOLUTE, seed=f"seed_{seed}"))
    write(tmp_path / "i0.json", nested(STEPS | ABSOLUTE, algorithm="ippo"))
    write(tmp_path / "i1.json", nested(STEPS | ABSOLUTE, algorithm="ippo", seed="seed_1"))
    write(tmp_path / "w0.json", nested(STEPS | ABSOLUTE, task="wheel"))
    runs, problems = read_runs([tmp_path])
    assert len(runs) == 6
    assert said(problems, "ippo on vmas/balance", "2 of 3 seeds", "seed 2 missing")
    assert said(problems, "mappo on vmas/wheel", "1 of 3 seeds", "no interval")
    assert said(problems, "ippo: no runs on vmas/wheel")
    assert len(problems) == 3


def test_unequal_steps_are_named(tmp_path: Path) -> None:
    shifted = {name: step | {"step_count": step["step_count"] + 7} for name, step in STEPS.items()}
    for seed in range(3):
        steps = shifted if seed == 1 else STEPS
        write(tmp_path / f"{seed}.json", nested(steps | ABSOLUTE, seed=f"seed_{seed}"))
    _, problems = read_runs([tmp_path])
    assert said(problems, "mappo on vmas/balance", "evaluated at other frames", "seed 1", "interpolated")
    assert len(problems) == 1


def test_algorithms_may_be_evaluated_at_different_frames(tmp_path: Path) -> None:
    shifted = {name: step | {"step_count": step["step_count"] + 7} for name, step in STEPS.items()}
    for algorithm, steps in (("mappo", STEPS), ("ippo", shifted)):
        write(tmp_path / f"{algorithm}.json", nested(steps | ABSOLUTE, algorithm=algorithm))
    assert read_runs([tmp_path])[1] == []


def test_missing_absolute_metrics_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", nested(STEPS), config={"experiment": {"frames": 8000}})
    _, problems = read_runs([tmp_path])
    assert said(problems, "no absolute metric for seed 0", "last evaluations")
    assert said(problems, "stopped at 2,000 of 8,000 frames", "shown as far as it got")


def test_an_unfinished_run_beside_finished_ones_is_left_out_of_scores(tmp_path: Path) -> None:
    config = {"experiment": {"frames": 2000}}
    write_run(tmp_path / "a", nested(STEPS | ABSOLUTE), config=config)
    write_run(tmp_path / "b", nested({"step_0": STEPS["step_0"]}, seed="seed_1"), config=config)
    _, problems = read_runs([tmp_path])
    assert said(problems, "seed 1 stopped at 0 of 2,000 frames", "left out of scores until it is done")
    assert not said(problems, "no absolute metric")


def write_cut_short(folder: Path, seed: int) -> Path:
    """A run directory that was evaluated once, at frame 0 of 2,000."""
    return write_run(
        folder,
        nested({"step_0": STEPS["step_0"]}, seed=f"seed_{seed}"),
        config={"seed": seed, "experiment": {"frames": 2000}},
    )


def test_a_run_with_a_failure_file_has_failed(tmp_path: Path) -> None:
    failed = write_cut_short(tmp_path / "seed_0", 0)
    write(failed / "failure.json", {"kind": "covey-failure", "frames": 900, "error": "iteration 3: loss is nan"})
    write_cut_short(tmp_path / "seed_1", 1)
    runs, problems = read_runs([tmp_path])
    assert [run.failure for run in runs] == ["iteration 3: loss is nan", ""]
    assert said(problems, "seed 0 failed, stopped at 0 of 2,000 frames: iteration 3: loss is nan", "last evaluations")
    write(failed / "failure.json", "{")
    assert read_runs([tmp_path])[0][0].failure == "no error recorded"


@pytest.mark.parametrize(
    ("state", "error", "failure"),
    [
        ("failed", "the process died of SIGKILL", "the process died of SIGKILL"),
        ("failed", None, "no error recorded"),
        ("running", None, ""),
        ("interrupted", None, ""),
    ],
)
def test_a_benchmarks_status_says_which_process_died(
    state: str, error: str | None, failure: str, tmp_path: Path
) -> None:
    write_cut_short(tmp_path / "balance-mappo-0123" / "seed_0", 0)
    status = {"kind": "covey-status", "state": state, "error": error}
    write(tmp_path / "status" / "balance-mappo-0123-seed_0.json", status)
    assert read_runs([tmp_path / "balance-mappo-0123"])[0][0].failure == failure


def test_a_run_that_is_tried_again_has_not_failed(tmp_path: Path) -> None:
    folder = write_cut_short(tmp_path / "name" / "seed_0", 0)
    write(folder / "failure.json", {"error": "it diverged"})
    assert read_runs([tmp_path])[0][0].failure == "it diverged"
    write(tmp_path / "status" / "name-seed_0.json", {"kind": "covey-status", "state": "running"})
    assert read_runs([tmp_path / "name"])[0][0].failure == ""


def test_a_finished_run_has_not_failed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", nested(STEPS | ABSOLUTE), config={"experiment": {"frames": 2000}})
    write(folder / "failure.json", {"error": "a logger failed after the end"})
    assert read_one(folder)[0].failure == ""


def test_a_run_that_failed_before_its_first_evaluation_is_known_by_its_configuration(tmp_path: Path) -> None:
    groups = {"adversary": {"name": "ippo"}}
    config = {"seed": 3, "task": {"name": "vmas/balance"}, "algorithm": {"name": "mappo", "groups": groups}}
    folder = write_run(tmp_path / "run", None, config=config | {"experiment": {"frames": 2000}})
    write(folder / "failure.json", {"error": "out of memory"})
    run, problems = read_one(folder)
    assert (run.task, run.algorithm, run.seed, run.failure) == ("vmas/balance", "mappo+ippo", "3", "out of memory")
    assert run.frames.size == 0 and said(problems, "seed 3 failed: out of memory", "worst value")


def test_links_in_a_circle_are_no_results(tmp_path: Path) -> None:
    config = {"seed": 3, "task": {"name": "vmas/balance"}, "algorithm": {"name": "mappo"}}
    folder = write_run(tmp_path / "run", None, config=config)
    (folder / "results.json").symlink_to(folder / "results.json")
    write(folder / "failure.json", {"error": "out of memory"})
    assert [run.failure for run in read_runs([tmp_path])[0]] == ["out of memory"]


def test_only_an_absolute_metric(tmp_path: Path) -> None:
    run, problems = read_one(write(tmp_path / "a.json", nested(ABSOLUTE)))
    assert run.frames.size == 0 and run.episodes == {} and run.absolute["mean_return"].size == 3
    assert said(problems, "no evaluation during training")


def test_duplicates_are_named_and_the_first_counts(tmp_path: Path) -> None:
    other = {"step_0": {"step_count": 0, "mean_return": [9.0]}}
    write(tmp_path / "1.json", nested(STEPS | ABSOLUTE))
    write(tmp_path / "2.json", nested(other))
    run, problems = read_one(tmp_path)
    assert run.source.name == "1.json" and said(problems, "2.json", "duplicate", "1.json counts")


# ------------------------------------------------------------------------------------------------- telling runs apart


def config(
    model: str = "mlp", layers: int = 64, lr: float = 1e-3, time_limit: int = 100, **experiment: Any
) -> dict[str, Any]:
    return {
        "experiment": {"frames": 1000, "schedule_frames": 1000, "devices": 1} | experiment,
        "algorithm": {"name": "mappo", "lr": lr},
        "task": {"name": "vmas/balance", "time_limit": time_limit},
        "model": {"name": model, "layers": [layers]},
        "critic_model": {"name": model, "layers": [layers]},
    }


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (config(), config(), {"mappo"}),
        (config("mlp"), config("gru", 32), {"mappo (model=mlp)", "mappo (model=gru)"}),
        (config(lr=1e-3), config(lr=5e-4), {"mappo (lr=0.001)", "mappo (lr=0.0005)"}),
        (config(layers=64), config(layers=8), {"mappo (model.layers=[64])", "mappo (model.layers=[8])"}),
        (config(num_envs=32), config(num_envs=64), {"mappo (num_envs=32)", "mappo (num_envs=64)"}),
        (config(), config(frames=2000, devices=2, loggers=["wandb"], evaluation_episodes=64), {"mappo"}),
    ],
)
def test_different_algorithms_have_different_names(
    first: dict[str, dict[str, float | list[int] | str]],
    second: dict[str, dict[str, float | list[int | str] | str]],
    names: set[str],
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "a", nested(STEPS | ABSOLUTE), first)
    write_run(tmp_path / "b", nested(STEPS | ABSOLUTE, seed="seed_1"), second)
    write_run(tmp_path / "c", nested(STEPS | ABSOLUTE, task="wheel"), first)
    runs, _ = read_runs([tmp_path])
    assert {run.algorithm for run in runs} == names
    assert len({run.algorithm for run in runs if run.task == "vmas/wheel"} & names) == 1


def test_different_tasks_have_different_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", nested(STEPS | ABSOLUTE), config(time_limit=100))
    write_run(tmp_path / "b", nested(STEPS | ABSOLUTE, algorithm="ippo"), config(time_limit=300))
    runs, _ = read_runs([tmp_path])
    assert [(run.task, run.algorithm) for run in runs] == [
        ("vmas/balance (time_limit=100)", "mappo"),
        ("vmas/balance (time_limit=300)", "ippo"),
    ]


def test_fields_that_differ_only_between_tasks_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "a", nested(STEPS | ABSOLUTE), config(lr=1e-3))
    write_run(tmp_path / "b", nested(STEPS | ABSOLUTE, task="wheel"), config(lr=5e-4))
    runs, _ = read_runs([tmp_path])
    assert {run.algorithm for run in runs} == {"mappo"}


def test_discrete_and_continuous_actions_play_one_task(tmp_path: Path) -> None:
    def acting(continuous: bool) -> dict[str, Any]:
        chosen = config()
        return chosen | {"task": chosen["task"] | {"continuous_actions": continuous}}

    write_run(tmp_path / "a", nested(STEPS | ABSOLUTE), acting(True))
    write_run(tmp_path / "b", nested(STEPS | ABSOLUTE, algorithm="iql"), acting(False))
    runs, _ = read_runs([tmp_path])
    assert {(run.task, run.algorithm) for run in runs} == {("vmas/balance", "mappo"), ("vmas/balance", "iql")}
    write_run(tmp_path / "c", nested(STEPS | ABSOLUTE), acting(False))  # mappo again, now with both kinds of actions
    runs, _ = read_runs([tmp_path])
    assert {run.algorithm for run in runs} >= {"mappo (continuous_actions=True)", "mappo (continuous_actions=False)"}


def test_one_algorithm_of_several_systems(tmp_path: Path) -> None:
    theirs = {"step_0": {"step_count": 0, "return": [0.0]}, "step_1": {"step_count": 1000, "return": [1.0]}}
    write_run(tmp_path / "ours", nested(STEPS | ABSOLUTE), config())
    write(tmp_path / "a_theirs.json", nested(theirs, task="Balance", algorithm="MAPPO"))
    write(tmp_path / "b_theirs.json", nested(theirs, task="Balance", algorithm="IPPO"))
    runs, _ = read_runs([tmp_path])
    assert {(run.task, run.algorithm, run.system) for run in runs} == {
        ("vmas/balance", "mappo (covey)", "covey"),
        ("vmas/balance", "mappo (BenchMARL)", "BenchMARL"),
        ("vmas/balance", "IPPO", "BenchMARL"),
    }


def test_numbers_of_any_size(tmp_path: Path) -> None:
    huge = 10**400
    steps = {
        "step_0": {"step_count": 0, "mean_return": [1.0]},
        "step_1": {"step_count": huge, "mean_return": [2.0]},
        "step_2": {"step_count": 1000, "elapsed_time": huge, "mean_return": [huge]},
    }
    run, problems = read_one(write(tmp_path / "a.json", nested(steps)))
    assert run.frames.tolist() == [0, 1000] and problems
