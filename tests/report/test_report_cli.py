"""`covey report`: what it writes and prints, its options, and the error line of each bad input."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import made
import pytest
import yaml

from covey import cli
from covey.report import report, serve
from covey.report.report import ReportOptions, build, parse_value

FAST = "formats=[]"


def run(*arguments: str | Path) -> int:
    return cli.main(["report", *map(str, arguments)])


def fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """The error line, which follows the lines of progress."""
    capsys.readouterr()
    assert run(*arguments) == code
    output = capsys.readouterr()
    assert output.out == ""
    *progress, line = output.err.splitlines()
    assert line.startswith("covey: ") and not any(text.startswith("covey: ") for text in progress)
    assert "Traceback" not in output.err
    return line


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write_benchmark(tmp_path_factory.mktemp("cli") / "bench")


def summary_of(output: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def test_it_writes_everything_and_lists_it(bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "deep" / "report"
    assert run(bench, f"output={output}", "formats=svg") == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[:4] == [
        f"{output}/index.html",
        f"{output}/summary.json",
        f"{output}/tables/: 15 files (tex, csv, md)",
        f"{output}/figures/: 8 files (svg)",
    ]
    assert {path.name for path in output.iterdir()} == {"index.html", "summary.json", "tables", "figures"}
    assert "drawing performance_profiles" in said.err


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from covey import cli; cli.main(['report', '--help']); "
        "print([m for m in ('numpy', 'jax', 'matplotlib', 'covey.report') if m in sys.modules], file=sys.stderr)"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    print(f"{time.perf_counter() - started:.2f} s")
    assert done.stdout.startswith("covey report RUNS")
    assert done.stderr.strip() == "[]"


def test_a_report_imports_no_jax(bench: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from covey import cli; "
        f"cli.main(['report', {str(bench)!r}, 'output={tmp_path / 'report'}', '{FAST}']); "
        "print([m for m in ('jax', 'flax', 'hydra', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_options(bench: Path, tmp_path: Path) -> None:
    output = tmp_path / "report"
    words = ["legend={mappo: 'MAPPO, ours'}", "order=[mappo]", "pairs=[[mappo,ippo]]", "normalisation=minmax"]
    assert run(bench, f"output={output}", FAST, "title=a=b", *words) == 0
    summary = summary_of(output)
    assert summary["title"] == "a=b"
    assert summary["algorithms"] == ["MAPPO, ours", "ippo"]
    assert [(c["first"], c["second"]) for c in summary["improvements"]] == [("MAPPO, ours", "ippo")]
    assert summary["options"]["normalisation"] == "minmax"
    assert summary["aggregates"][0]["mean"]["value"] > summary["aggregates"][1]["mean"]["value"]


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_certainty_of_ranks_needs_two_seeds(tmp_path: Path, seeds: int) -> None:
    made.write_benchmark(tmp_path / "bench", seeds=seeds)
    assert run(tmp_path / "bench", f"output={tmp_path / 'report'}", FAST) == 0
    assert ("How certain the ranks are" in (tmp_path / "report" / "index.html").read_text()) == (seeds > 1)


def test_another_metric(tmp_path: Path) -> None:
    step = {"step_count": 0, "mean_return": [1.0], "win_rate": [0.25, 0.75]}
    (tmp_path / "a.json").write_text(json.dumps({"smax": {"2s3z": {"qmix": {"seed_0": {"step_0": step}}}}}))
    assert run(tmp_path / "a.json", f"output={tmp_path / 'report'}", FAST, "metric=win_rate") == 0
    summary = summary_of(tmp_path / "report")
    assert summary["metric"] == "win_rate"
    assert summary["finals"][0]["mean"]["value"] == 0.5


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("legend", "{mappo: MAPPO}", {"mappo": "MAPPO"}),
        ("legend", "{mappo:MAPPO,ippo:I}", {"mappo": "MAPPO", "ippo": "I"}),
        ("order", "[a,b]", ["a", "b"]),
        ("order", "a", ["a"]),
        ("pairs", "[[a,b]]", [["a", "b"]]),
        ("pairs", "[a,b]", [["a", "b"]]),
        ("formats", "png", ["png"]),
        ("serve", "true", True),
        ("port", "8080", 8080),
        ("title", "true", "true"),
        ("metric", "1e3", "1e3"),
    ],
)
def test_values_are_read_as_typed(name: str, text: str, expected: Any) -> None:
    assert parse_value(name, text) == expected


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["metric=reward"], "unknown metric 'reward'; nearest: mean_return"),
        (["normalisation=anchor"], "unknown value for report.normalisation 'anchor'; nearest: anchors"),
        (["legend={mapo: X}"], "unknown algorithm in the legend 'mapo'; nearest: mappo"),
        (["legend={mappo: ippo}"], "the legend gives two algorithms the name 'ippo'"),
        (["legend={mappo: 3}"], "legend maps names to names"),
        (["legend=[mappo]"], "report.legend takes a mapping"),
        (["order=[mapo]"], "unknown algorithm 'mapo'; nearest: mappo"),
        (["pairs=[[mappo]]"], "a pair is two algorithms, not ['mappo']"),
        (["pairs=[[mappo,qmix]]"], "unknown algorithm 'qmix'"),
        (["formats=[gif]"], "unknown format 'gif'; the formats are png, svg, pdf"),
        (["order=[a"], "cannot read order=[a: it is not YAML"),
        (["port=99999"], "port must be between 0 and 65535"),
        (["serve=maybe"], "report.serve takes bool, not 'maybe'"),
        (["titel=x"], "unknown key of report 'titel'; nearest: title"),
        (["no/such/folder"], "no file or folder 'no/such/folder'"),
    ],
)
def test_bad_words(
    bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert line in fails(capsys, bench, f"output={tmp_path / 'report'}", *words)
    assert not (tmp_path / "report").exists()


def test_no_paths_no_results_no_output_folder(bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "report needs run directories" in fails(capsys)
    (tmp_path / "empty").mkdir()
    assert "no results in" in fails(capsys, tmp_path / "empty")
    (tmp_path / "file").write_text("")
    assert "cannot write to" in fails(capsys, bench, f"output={tmp_path / 'file'}", FAST)


@pytest.mark.parametrize(
    "content", ['{"a": {"b"', "[1, 2]", "\x00\xff", '{"kind": "other"}', "", '{"a": {"b": {"c": {"seed_0": {}}}}}']
)
def test_a_file_that_holds_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content.encode("latin-1"))
    assert "no results in" in fails(capsys, path, f"output={tmp_path / 'report'}")


LONG, HUGE = "x" * 300, 10**400


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (f"legend={{mappo: {LONG}, {LONG}: x}}", "unknown algorithm in the legend"),
        (f"pairs=[[mappo,{LONG}]]", "unknown algorithm"),
        (LONG, "cannot read"),
        (f"{LONG}.json", "cannot read"),
        (f"output={LONG}", "cannot write to"),
    ],
)
def test_long_words(
    bench: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in fails(capsys, bench, FAST, word)


def test_a_long_name_in_the_legend_is_not_a_path(bench: Path, tmp_path: Path) -> None:
    assert run(bench, f"output={tmp_path / 'report'}", FAST, f"legend={{mappo: {LONG}}}") == 0
    assert LONG in summary_of(tmp_path / "report")["algorithms"]


def deep(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


@pytest.mark.parametrize("levels", [200, 100_000])
@pytest.mark.parametrize("name", ["environment.json", "config.yaml", "status/a-seed_0.json", "benchmark.yaml"])
def test_deeply_nested_files_make_a_page(tmp_path: Path, name: str, levels: int) -> None:
    bench = tmp_path / "bench"
    folder = made.write_run(bench / "a")
    write_benchmark_files(bench)
    beside = "/" in name or name == "benchmark.yaml"
    ((bench if beside else folder) / name).write_text(deep(levels))
    assert run(bench, f"output={tmp_path / 'report'}", FAST) == 0
    problems = summary_of(tmp_path / "report")["problems"]
    assert beside or any(problem["where"] == str(folder / name) for problem in problems)


def test_numbers_of_any_size_make_a_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A seed of 5,000 digits, a budget and times of 400 digits, and returns whose squares are not finite."""
    folder = made.write_run(tmp_path / "runs", algorithm="huge", returns=(0.0, 1e308, 1e308))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"experiment": {"frames": HUGE}}))
    with open(folder / "metrics.jsonl", "a") as metrics:
        metrics.write(f'3\n[]\n{{"kind": "train", "elapsed_seconds": {HUGE}, "compiling_seconds": {HUGE}}}\n')
    step = {"step_count": 0, "mean_return": [1.0]}
    runs = {f"seed_{'9' * 5000}": {"s": step}, "seed_1": {"s": step}}
    (tmp_path / "runs" / "long.json").write_text(json.dumps({"a": {"b": {"mappo": runs}}}))
    assert run(tmp_path / "runs", f"output={tmp_path / 'report'}", "formats=svg") == 0
    assert "Warning" not in capfd.readouterr().err
    summary = summary_of(tmp_path / "report")
    assert {final["algorithm"]: final["mean"]["value"] for final in summary["finals"]} == {"huge": 0.0, "mappo": 1.0}
    said = [problem["what"] for problem in summary["problems"]]
    assert "some lines of its metrics are not records" in said
    assert "6 of 8 values of mean_return are null, not finite or too large" in said


def test_a_negative_step_count_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = {"s": {"step_count": -5, "mean_return": [1.0]}}
    path = tmp_path / "negative.json"
    path.write_text(json.dumps({"a": {"b": {"mappo": {"seed_0": steps}}}}))
    assert "s has no step_count of 0 or more" in fails(capsys, path)
    steps["t"] = {"step_count": 5, "mean_return": [2.0]}
    path.write_text(json.dumps({"a": {"b": {"mappo": {"seed_0": steps}}}}))
    assert run(path, f"output={tmp_path / 'report'}", FAST) == 0
    assert summary_of(tmp_path / "report")["finals"][0]["mean"]["value"] == 2.0


def test_a_speed_file_with_a_number_of_any_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(made.write_speed(tmp_path / "speed.json", "laptop", 1e4).read_text())
    content["machine"]["memory_bytes"] = content["rows"][0]["frames_per_second"]["update"] = HUGE
    (tmp_path / "speed.json").write_text(json.dumps(content))
    assert run(tmp_path / "speed.json", f"output={tmp_path / 'report'}") == 0
    content["rows"][0]["frames_per_second"] = {"whole": HUGE}
    (tmp_path / "speed.json").write_text(json.dumps(content))
    assert "holds no speeds" in fails(capsys, tmp_path / "speed.json")
    (tmp_path / "speed.json").write_text('{"kind": "covey-speed", "a": ' + "[" * 100_000)
    assert "cannot read" in fails(capsys, tmp_path / "speed.json")


def speed_columns(output: Path) -> list[str]:
    return re.findall(r'<th scope="col"[^>]*>([^<]*: cpu x2)</th>', (output / "index.html").read_text())


def test_speeds_in_folders_are_shown_and_told_apart(bench: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made.write_speed(tmp_path / "a" / "speed.json", "tower", 1e4)
    assert run(tmp_path / "a", f"output={tmp_path / 'report'}") == 0  # without runs
    assert set(speed_columns(tmp_path / "report")) == {"tower: cpu x2"}
    (tmp_path / "a" / "b").mkdir()
    made.write_speed(tmp_path / "a" / "b" / "speed.json", "tower", 2e4)
    made.write_speed(tmp_path / "a" / "later.json", "tower", 3e4)
    made.write_speed(tmp_path / "other.json", "laptop", 4e4)
    (tmp_path / "a" / "bad.json").write_text('{"kind": "covey-speed"}')
    words = [bench, tmp_path / "a", tmp_path / "a" / "later.json", tmp_path / "other.json"]
    assert run(*words, f"output={tmp_path / 'report'}", FAST) == 0
    assert set(speed_columns(tmp_path / "report")) == {
        f"tower ({tmp_path / 'a' / 'b' / 'speed.json'}): cpu x2",
        f"tower ({tmp_path / 'a' / 'speed.json'}): cpu x2",
        "tower (later): cpu x2",
        "laptop: cpu x2",
    }
    assert [p["where"] for p in summary_of(tmp_path / "report")["problems"]] == [str(tmp_path / "a" / "bad.json")]


def test_a_folder_of_bad_speeds_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text('{"kind": "covey-speed"}')
    assert "bad.json holds no speeds" in fails(capsys, tmp_path)
    assert "bad.json holds no speeds" in fails(capsys, tmp_path / "bad.json")


def test_bad_files_beside_good_ones_are_named(bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.json").write_text('{"a": {"b"')
    assert run(bench, tmp_path / "cut.json", f"output={tmp_path / 'report'}", FAST) == 0
    problems = summary_of(tmp_path / "report")["problems"]
    assert [problem["where"] for problem in problems] == [str(tmp_path / "cut.json")]
    assert "1 thing to know about these results" in capsys.readouterr().out
    assert "damaged or not JSON" in (tmp_path / "report" / "index.html").read_text()


def test_names_that_are_not_unicode_and_coveys_own_files_are_not_problems(tmp_path: Path) -> None:
    made.write_foreign(tmp_path / "odd.json", names=["a\ud800b", "a\tb", "a b"], task="x\u0000y")
    made.write_speed(tmp_path / "speed.json", "laptop", 1e4)
    assert run(tmp_path, f"output={tmp_path / 'report'}", "formats=svg") == 0
    assert run(tmp_path, f"output={tmp_path / 'report'}", FAST) == 0  # its own summary.json is there now
    summary = summary_of(tmp_path / "report")
    assert len(set(summary["algorithms"])) == 3
    assert not any("speed.json" in p["where"] or "summary.json" in p["where"] for p in summary["problems"])


@pytest.mark.parametrize("odd", ["text", 3, [1, "<b>"], {"number": {}, "kind": []}, None])
def test_odd_environments_make_a_page(tmp_path: Path, odd: Any) -> None:
    names = ("device", "packages", "git_commit", "cpu_count", "platform", "python", "started", "command", "returns")
    made.write_run(tmp_path / "runs", environment=dict.fromkeys(names, odd))
    assert run(tmp_path / "runs", f"output={tmp_path / 'report'}", FAST) == 0
    assert "<b>" not in (tmp_path / "report" / "index.html").read_text().replace("<b>vmas/", "")


def write_benchmark_files(folder: Path) -> None:
    """What `covey benchmark` leaves for three experiments: one done, one failed, one not started."""
    experiments = [
        {"name": name, "task": "vmas/balance", "algorithm": "mappo", "seeds": seeds, "command": f"covey train {name}"}
        for name, seeds in (("first", [0]), ("second", [0, 1]))
    ]
    folder.mkdir(exist_ok=True)
    (folder / "benchmark.yaml").write_text(
        yaml.safe_dump({"kind": "covey-benchmark", "commands": ["covey benchmark x"], "experiments": experiments})
    )
    (folder / "status").mkdir()
    for name, state, error in (
        ("first-seed_0", "done", None),
        ("second-seed_0", "failed", "it ran <b>out</b> of memory"),
    ):
        status = {"kind": "covey-status", "state": state, "error": error, "log": f"status/{name}.log"}
        (folder / "status" / f"{name}.json").write_text(json.dumps(status))


def test_the_page_of_a_benchmark_shows_failures_and_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.write_run(tmp_path / "bench" / "first")
    write_benchmark_files(tmp_path / "bench")
    assert run(tmp_path / "bench", f"output={tmp_path / 'report'}", FAST) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "1 of 3 done" in page and "1 failed, 1 waiting" in page
    assert "it ran &lt;b&gt;out&lt;/b&gt; of memory" in page
    assert "covey benchmark x" in page and "covey train first" in page
    assert "1 experiment failed" in capsys.readouterr().out
    assert summary_of(tmp_path / "report")["problems"] == []


def write_failed(folder: Path, seed: int) -> Path:
    """A run that failed after its second evaluation."""
    path = made.write_run(folder, algorithm="wild", seed=seed, returns=(0.0, 5.0))
    (path / "config.yaml").write_text((path / "config.yaml").read_text().replace("frames: 1000", "frames: 2000"))
    results = json.loads((path / "results.json").read_text())
    del results["vmas"]["balance"]["wild"][f"seed_{seed}"]["absolute_metrics"]
    (path / "results.json").write_text(json.dumps(results))
    (path / "failure.json").write_text(json.dumps({"kind": "covey-failure", "error": "iteration 9: loss is nan"}))
    return path


def test_failed_runs_are_marked_on_the_page_in_tables_and_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(5):
        made.write_run(tmp_path / "runs" / "stable", algorithm="stable", seed=seed)
        if seed < 3:
            write_failed(tmp_path / "runs" / "wild", seed)
        else:
            made.write_run(tmp_path / "runs" / "wild", algorithm="wild", seed=seed, returns=(0.0, 50.0, 60.0))
    assert run(tmp_path / "runs", f"output={tmp_path / 'report'}", FAST) == 0
    mark = "† wild on vmas/balance: 3 of 5 seeds failed (0, 1, 2)"
    printed = capsys.readouterr().out
    assert mark in printed and "wild on vmas/balance: seed 0 failed, stopped at 1,000 of 2,000 frames" in printed
    assert "Few seeds" not in printed
    page = (tmp_path / "report" / "index.html").read_text()
    assert mark in page and re.search("0:\u00a05[.0]*†", page)
    finals = (tmp_path / "report" / "tables" / "finals.md").read_text()
    assert "| vmas/balance † |" in finals and mark in finals
    summary = summary_of(tmp_path / "report")
    assert summary["finals"][1]["failed"] == ["0", "1", "2"]
    [comparison] = summary["improvements"]
    assert comparison["probability"]["value"] == pytest.approx(3 / 5)


def test_the_terminal_shows_the_warnings_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.write_benchmark(tmp_path / "bench", seeds=2)
    for i in range(30):
        (tmp_path / "bench" / f"odd{i}.json").write_text("{")
    assert run(tmp_path / "bench", f"output={tmp_path / 'report'}", FAST) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Few seeds: 2") for line in printed)
    at = printed.index("30 things to know about these results:")
    assert "odd0.json: damaged or not JSON, left out" in printed[at + 1]
    assert printed[at + 21] == "  and 10 more: the page names them"
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("Few seeds: 2") == 4  # at the leaderboard, the ranks, the profiles, the probabilities


def test_a_mean_rank_has_no_interval(bench: Path, tmp_path: Path) -> None:
    assert run(bench, f"output={tmp_path / 'report'}", FAST) == 0
    lines = (tmp_path / "report" / "tables" / "aggregates.md").read_text().splitlines()
    assert lines[0].endswith("| Ranks, 95% | Mean rank |") and lines[2].endswith("| 2 | 2.000 |")


def test_groups_that_oppose_each_other_have_a_table(tmp_path: Path) -> None:
    path = made.write_run(tmp_path / "runs", environment={"teams": [["adversary"], ["agent"]]})
    text = (path / "results.json").read_text()
    results = json.loads(text)
    for step in results["vmas"]["balance"]["mappo"]["seed_0"].values():
        step |= {"adversary_return": step["mean_return"], "agent_return": [-x for x in step["mean_return"]]}
    (path / "results.json").write_text(json.dumps(results))
    assert run(tmp_path / "runs", f"output={tmp_path / 'report'}", FAST) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "adversary against agent; mean_return is that of adversary" in page and "Return of" in page
    groups = (tmp_path / "report" / "tables" / "groups.csv").read_text()
    assert "vmas/balance,mappo,agent,-50.0" in groups


def test_a_benchmark_without_results_has_a_page(tmp_path: Path) -> None:
    write_benchmark_files(tmp_path / "bench")
    assert run(tmp_path / "bench", f"output={tmp_path / 'report'}") == 0
    assert "No results yet." in (tmp_path / "report" / "index.html").read_text()


# ----------------------------------------------------------------------------------------------------------- serving


def ask(port: int, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.getheader("Last-Modified")


def test_the_server_serves_the_report_and_nothing_else(bench: Path, tmp_path: Path) -> None:
    output = tmp_path / "report"
    build([str(bench)], ReportOptions(output=str(output), formats=()), "covey report")
    (output / "secret.txt").write_text("no")
    (tmp_path / "above.html").write_text("no")
    with serve.make_server(output, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        assert ask(port, "/figures/%00")[0] == ask(port, "/%00index.html")[0] == 404
        status, body, date = ask(port, "/")
        assert status == 200 and b"<h1>" in body and date
        assert ask(port, "/summary.json")[0] == ask(port, "/tables/finals.csv")[0] == 200
        assert ask(port, "/", "HEAD")[:2] == (200, b"")
        for path in (
            "/secret.txt",
            "/../above.html",
            "/tables/",
            "/tables/../secret.txt",
            "/%2e%2e/above.html",
            "//secret.txt",
        ):
            assert ask(port, path)[0] == 404, path
        assert ask(port, "/", host="evil.example:80")[0] == 404
        server.shutdown()


def test_serving_rebuilds_when_results_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(serve, "REST", 0.0)
    runs, output = tmp_path / "runs", tmp_path / "runs" / "report"
    made.write_run(runs / "a", seed=0)
    options = ReportOptions(output=str(output), formats=())
    build([str(runs)], options, "covey report")
    built: list[int] = []

    def rebuild() -> None:
        build([str(runs)], options, "covey report")
        built.append(len(summary_of(output)["runs"]))

    serve.watch(output, [runs], rebuild, serve.fingerprint(output, [runs]), looks=5)
    assert built == []  # nothing changed, and the report itself does not count
    added = threading.Timer(0.05, lambda: made.write_run(runs / "a", seed=1))
    added.start()
    serve.watch(output, [runs], rebuild, serve.fingerprint(output, [runs]), looks=200)
    assert built[-1] == 2


def test_results_written_during_the_first_build_are_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(serve, "REST", 0.0)
    runs, output = tmp_path / "runs", tmp_path / "report"
    made.write_run(runs / "a", seed=0)

    def build_slowly(*arguments: Any) -> list[str]:
        """A run finishes while the first report is being written."""
        lines = build(*arguments)
        if not (runs / "a" / "seed_1").exists():
            made.write_run(runs / "a", seed=1)
        return lines

    def watch_once(server: Any, folder: Path, paths: Any, build: Any, seen: Any) -> None:
        serve.watch(folder, paths, build, seen, looks=1)

    monkeypatch.setattr(report, "build", build_slowly)
    monkeypatch.setattr(serve, "serve", watch_once)
    assert run(runs, f"output={output}", FAST, "serve=true", "port=0") == 0
    assert len(summary_of(output)["runs"]) == 2


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    made.write_run(tmp_path / "runs")
    command = [sys.executable, "-m", "covey.cli", "report", "runs", FAST, "serve=true", "port=0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = next(line for line in process.stdout if line.startswith("http://"))
            port = int(address.split("/")[2].rpartition(":")[2])
            assert b"<h1>Results</h1>" in ask(port, "/")[1]
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def test_what_the_last_report_wrote_is_removed_and_nothing_else(bench: Path, tmp_path: Path) -> None:
    output = tmp_path / "report"
    assert run(bench, f"output={output}", "formats=png") == 0
    own = ["figures/task_mine.png", "figures/task_curves.pdf", "tables/mine.csv", "figures/notes.txt"]
    for name in own:
        (output / name).write_text("mine")
    made.write_run(tmp_path / "runs")
    assert run(tmp_path / "runs", f"output={output}", "formats=svg") == 0
    left = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert left == {"index.html", "summary.json", *summary_of(output)["files"], *own}
    assert "figures/task_vmas-balance.svg" in left and not any("improvement" in name for name in left)


@pytest.mark.parametrize(
    "files", [["../mine.txt", "/mine.txt", "figures/../../mine.txt", 3, "figures", "a\0b/c"], "x", {}]
)
def test_a_list_of_files_outside_the_report_removes_nothing(tmp_path: Path, files: Any) -> None:
    output = tmp_path / "report"
    (output / "figures" / "folder").mkdir(parents=True)
    (tmp_path / "mine.txt").write_text("mine")
    (output / "mine.txt").write_text("mine")
    listed = (
        [*files, str(tmp_path / "mine.txt"), "figures/folder", "figures/a\0b"] if isinstance(files, list) else files
    )
    (output / "summary.json").write_text(json.dumps({"kind": "covey-report", "files": listed}))
    made.write_run(tmp_path / "runs")
    assert run(tmp_path / "runs", f"output={output}", FAST) == 0
    assert (
        (tmp_path / "mine.txt").exists() and (output / "mine.txt").exists() and (output / "figures" / "folder").is_dir()
    )


def test_a_port_in_use_is_reported_before_anything_is_built(
    bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve.make_server(tmp_path, 0) as server:
        port = server.server_address[1]
        line = fails(capsys, bench, f"output={tmp_path / 'report'}", "serve=true", f"port={port}")
        assert f"cannot listen on port {port}" in line and "port=0" in line
    assert not (tmp_path / "report").exists()
