"""The page in a real browser: it opens from disk without errors, its controls work, its numbers are right.

Without a browser these tests fail, unless COVEY_NO_BROWSER is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made
import pytest
from browser import Browser, Page, find_browser

from covey.report.report import ReportOptions, report
from covey.report.sections import pictures
from covey.report.serve import make_server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_browser() is None and os.environ.get("COVEY_NO_BROWSER"):
        pytest.skip("no Chromium, and COVEY_NO_BROWSER is set")
    with Browser.start() as started:
        yield started


def write_report(paths: list[Path], output: Path, **options: Any) -> Path:
    report([str(path) for path in paths], ReportOptions(output=str(output), formats=(), **options))
    return output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over two algorithms on two tasks, three seeds each."""
    root = tmp_path_factory.mktemp("page")
    return write_report([made.write_benchmark(root / "bench")], root / "report", title="Two & two")


@pytest.fixture
def page(browser: Browser, folder: Path) -> Page:
    opened = browser.open((folder / "index.html").as_uri())
    opened.evaluate("sessionStorage.clear()")
    return opened


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def interval(text: str) -> tuple[float, float]:
    found = re.search(r"\[(.+), (.+)\]", text)
    assert found is not None, text
    return float(found[1]), float(found[2])


def curves(page: Page, chart: str = "efficiency") -> Any:
    """Which algorithms have a curve in the first chart of a kind."""
    return page.evaluate(
        f"[...document.querySelector('[data-chart={chart}]').querySelectorAll('g.series')].map(g => +g.dataset.series)"
    )


def test_it_opens_from_disk_without_errors_and_requests_nothing_else(page: Page, folder: Path) -> None:
    assert page.complaints() == []
    assert page.requests() == [(folder / "index.html").as_uri()]
    assert page.evaluate("document.querySelector('h1').textContent") == "Two & two"
    sections = page.evaluate("[...document.querySelectorAll('h2')].map(h => h.id)")
    assert sections == ["summary", "leaderboard", "curves", "profiles", "improvement", "tasks", "cost", "reproduce"]
    assert page.evaluate("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))")


def test_the_numbers_on_the_page_are_those_of_the_json(page: Page, folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    cells = page.evaluate(
        "[...document.querySelectorAll('#scores tbody tr')].map(tr => [tr.cells[0].textContent.trim(),"
        " Object.fromEntries([...tr.querySelectorAll('[data-field]')].map(td => [td.dataset.field, td.textContent]))])"
    )
    aggregates = {aggregate["algorithm"]: aggregate for aggregate in summary["aggregates"]}
    assert [name for name, _ in cells] == ["mappo", "ippo"]  # the best first
    for name, fields in cells:
        for field in ("iqm", "median", "mean", "optimality_gap"):
            expected = aggregates[name][field]
            assert number(fields[field]) == pytest.approx(expected["value"], abs=5.1e-4)
            assert interval(fields[field]) == pytest.approx((expected["low"], expected["high"]), abs=5.1e-4)
    finals = page.evaluate(
        "[...document.querySelectorAll('.finals tbody tr')].map(tr =>"
        " [tr.cells[0].textContent.trim(), tr.querySelector('[data-field=mean]').textContent])"
    )
    assert len(finals) == len(summary["finals"]) == 4
    for (name, text), final in zip(finals, summary["finals"], strict=True):
        assert name == final["algorithm"]
        assert number(text) == pytest.approx(final["mean"]["value"], abs=5.1e-3)
        assert interval(text) == pytest.approx((final["mean"]["low"], final["mean"]["high"]), abs=5.1e-3)
    # By hand: MAPPO's seeds reach 40, 42, 44 and IPPO's 30, 32, 34 on both tasks.
    assert [number(text) for _, text in finals] == [32.0, 42.0, 32.0, 42.0]
    matrix = page.evaluate(
        "[...document.querySelectorAll('#improvement-matrix tbody tr')]"
        ".map(tr => [...tr.cells].map(td => td.textContent))"
    )
    assert [number(matrix[0][2]), number(matrix[1][1])] == [0.0, 1.0]  # IPPO never beats MAPPO


def test_the_embedded_data_is_that_of_the_json(page: Page, folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    data = page.evaluate("JSON.parse(document.getElementById('data').textContent)")
    assert data.keys() <= summary.keys()
    assert all(summary[key] == value for key, value in data.items())


def test_toggling_an_algorithm_hides_its_curve(page: Page) -> None:
    assert [curves(page, chart) for chart in ("efficiency", "profiles", "task")] == [[0, 1]] * 3
    page.evaluate("document.querySelector('[data-algorithm=\"0\"]').click()")
    assert [curves(page, chart) for chart in ("efficiency", "profiles", "task")] == [[1]] * 3
    assert page.evaluate("document.querySelector('[data-algorithm=\"0\"]').ariaPressed") == "false"
    page.evaluate("document.querySelector('[data-algorithm=\"1\"]').click()")
    assert curves(page) == []
    assert "switched off" in page.evaluate("document.querySelector('[data-chart=task]').textContent")
    page.evaluate("document.querySelector('[data-algorithm=\"0\"]').click()")
    assert curves(page) == [0]
    assert page.complaints() == []


def test_colour_keys_are_pale_only_if_an_algorithm_is_switched_off(page: Page) -> None:
    page.evaluate("document.querySelector('[data-algorithm=\"0\"]').click()")
    pale = "[...document.querySelectorAll('.swatch')].filter(s => getComputedStyle(s).opacity !== '1')"
    assert page.evaluate(f"{pale}.map(s => getComputedStyle(s).opacity)") == ["0.25"]
    assert page.evaluate(f"{pale}[0].parentElement.dataset.algorithm") == "0"
    page.evaluate("document.querySelector('[data-algorithm=\"0\"]').click()")
    assert page.evaluate(f"{pale}.length") == 0


def test_the_controls_work_by_keyboard(page: Page) -> None:
    page.evaluate("document.querySelector('[data-algorithm=\"1\"]').focus()")
    page.press(" ")
    assert curves(page) == [0]
    page.evaluate("document.querySelector('[data-chart=task] svg').focus()")
    page.press("End")
    readout = page.evaluate("document.querySelector('[data-chart=task] .readout').innerText")
    assert "2,000 frames" in readout and "ippo" in readout and "mappo" not in readout
    page.press("Home")
    assert page.evaluate("document.querySelector('[data-chart=task] .readout b').innerText").startswith("0 frames")
    page.press("Escape")
    assert page.evaluate("document.querySelector('[data-chart=task] .readout').hidden")


def test_pointing_shows_the_values_there(page: Page, folder: Path) -> None:
    box = page.evaluate(
        "(() => { const c = document.querySelector('[data-chart=task] svg');"
        " c.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const b = c.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] })()"
    )
    page.move(box[0] + box[2] - 130, box[1] + box[3] / 2)  # near the end of the curves, left of the labels
    assert page.evaluate("document.querySelector('[data-chart=task] .readout').offsetHeight") < 100  # two short lines
    [ippo, mappo] = page.evaluate(
        "[...document.querySelectorAll('[data-chart=task] .readout i')].map(i => i.innerText)"
    )[::-1]
    [task] = [
        task
        for task in json.loads((folder / "summary.json").read_text())["task_curves"]
        if task["task"] == "vmas/balance"
    ]
    for text, curve in zip((ippo, mappo), task["by_frames"], strict=True):
        assert number(text) == pytest.approx(curve["y"]["value"][-1], abs=5e-3)
        assert interval(text) == pytest.approx((curve["y"]["low"][-1], curve["y"]["high"][-1]), abs=5e-2)


@pytest.mark.parametrize(
    "switch", ["[value=seconds]", "[data-switch=logX]", "[data-switch=logY]", "[data-switch=seeds]"]
)
def test_switches_redraw_the_curves(page: Page, switch: str) -> None:
    drawn = "document.querySelector('[data-chart=task] svg').innerHTML"
    before = page.evaluate(drawn)
    page.evaluate(f"document.querySelector('{switch}').click()")
    assert page.evaluate(drawn) != before
    assert "NaN" not in page.evaluate(drawn) and "Infinity" not in page.evaluate(drawn)
    assert page.complaints() == []


def test_an_unfinished_seed_is_drawn_as_far_as_it_got(browser: Browser, tmp_path: Path) -> None:
    for seed in range(2):
        made.write_run(tmp_path / "runs", seed=seed)
    run = made.write_run(tmp_path / "runs", seed=2, returns=(0.0, 30.0), gif=False)
    config = (run / "config.yaml").read_text().replace("frames: 1000", "frames: 2000")
    (run / "config.yaml").write_text(config)
    opened = browser.open((write_report([tmp_path / "runs"], tmp_path / "report") / "index.html").as_uri())
    opened.evaluate("document.querySelector('[data-switch=seeds]').click()")
    paths = opened.evaluate(
        "[...document.querySelectorAll('[data-chart=task] .seed')].map(p => p.getAttribute('d').split('L').length)"
    )
    assert paths == [3, 3, 2]
    assert opened.complaints() == []


def test_collected_returns_are_offered_if_evaluations_are_few(browser: Browser, tmp_path: Path) -> None:
    run = made.write_run(tmp_path / "runs")
    records = [
        {"kind": "train", "frames": 20 * i, "elapsed_seconds": i / 10, "collection/mean_return": i / 2}
        for i in range(1, 101)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    opened = browser.open((write_report([tmp_path / "runs"], tmp_path / "report") / "index.html").as_uri())
    opened.evaluate("sessionStorage.clear()")
    points = "document.querySelector('[data-chart=task] .line').getAttribute('d').split('L').length"
    assert opened.evaluate(points) == 3
    opened.evaluate("document.querySelector('[data-switch=collected]').click()")
    assert opened.evaluate(points) == 100
    assert opened.complaints() == []


def test_log_x_spaces_by_decades(page: Page) -> None:
    page.evaluate("document.querySelector('[data-switch=logX]').click()")
    path = page.evaluate("document.querySelector('[data-chart=task] .line').getAttribute('d')")
    assert len(path.split("L")) == 2  # a logarithmic axis cannot show frame 0


def test_dark_and_light_follow_the_system_and_the_button(browser: Browser, folder: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    url = (folder / "index.html").as_uri()
    light, dark = browser.open(url), browser.open(url, dark=True)
    assert light.evaluate(colour) != dark.evaluate(colour)
    wanted = dark.evaluate(colour)
    light.evaluate("sessionStorage.clear(); document.getElementById('theme').click()")
    assert light.evaluate(colour) == wanted


def test_a_phone_scrolls_tables_but_not_the_page(browser: Browser, folder: Path) -> None:
    phone = browser.open((folder / "index.html").as_uri(), width=360, height=740)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    assert phone.complaints() == []


def test_charts_pictures_and_controls_have_names(page: Page) -> None:
    labels = page.evaluate("[...document.querySelectorAll('.chart svg')].map(c => c.getAttribute('aria-label'))")
    assert len(labels) == 4 and all(len(label) > 30 for label in labels)
    assert "mappo 42.00 at 2,000" in labels[2]
    alternatives = page.evaluate("[...document.querySelectorAll('img')].map(i => i.alt)")
    assert alternatives[0] == "A team trained by ippo playing an episode of vmas/balance"
    assert len(alternatives) == 4
    assert page.evaluate("[...document.querySelectorAll('img')].every(i => i.naturalWidth === 8)")
    assert page.evaluate(
        "[...document.querySelectorAll('button, input')].every(b => b.textContent || b.labels?.length || b.hidden)"
    )


def test_pictures_that_are_too_large_or_not_pictures_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "LARGEST_PICTURE", 1000)
    for name, content in (
        ("large", made.make_gif() + bytes(1000)),
        ("small", made.make_gif()),
        ("none", b"<svg onload=x>"),
    ):
        (made.write_run(tmp_path / name, algorithm=name) / "team.gif").write_bytes(content)
    text = (write_report([tmp_path], tmp_path / "report") / "index.html").read_text()
    assert text.count("data:image/gif") == 1
    assert f"too large for this page: <code>{tmp_path / 'large' / 'seed_0' / 'team.gif'}</code>" in text


def test_pictures_can_be_paused(page: Page) -> None:
    page.evaluate("document.querySelector('.teams button').click()")
    assert page.evaluate(
        "document.querySelector('.teams img').hidden && !document.querySelector('.teams canvas').hidden"
    )


def test_commands_and_configurations_are_shown(page: Page) -> None:
    text = page.evaluate("document.querySelector('#reproduce').parentElement.textContent")
    assert "covey train algorithm=mappo seeds=3" in text
    assert "frames: 2000" in text and "run_dir" not in text
    assert "Seeds 0, 1, 2" in text


def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    made.write_foreign(tmp_path / "hostile.json", names=made.HOSTILE, task=made.HOSTILE[0])
    environment = {
        "platform": made.HOSTILE[0],
        "device": made.HOSTILE[1],
        "command": ["x", made.HOSTILE[1]],
        "started": "</script>",
    }
    made.write_run(tmp_path / made.HOSTILE[0].replace("/", "_"), environment=environment, seed=7)
    folder = write_report([tmp_path], tmp_path / "report", title=made.HOSTILE[3])
    opened = browser.open((folder / "index.html").as_uri())
    assert opened.evaluate("window.stolen") is None
    assert opened.complaints() == []
    assert opened.requests() == [(folder / "index.html").as_uri()]
    assert opened.evaluate("document.scripts.length") == 2
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert opened.evaluate("document.title") == made.HOSTILE[3]
    chips = opened.evaluate("[...document.querySelectorAll('.chip')].map(c => c.textContent)")
    assert set(made.HOSTILE) < set(chips)
    opened.evaluate("document.querySelector('[data-chart=task] svg').focus()")
    opened.press("End")
    assert made.HOSTILE[0] in opened.evaluate("document.querySelector('[data-chart=task] .readout').textContent")
    assert opened.evaluate("window.stolen") is None


def test_the_policy_blocks_an_injected_script(browser: Browser, folder: Path, tmp_path: Path) -> None:
    text = (folder / "index.html").read_text().replace("<main", "<script>window.stolen = 3</script><main")
    (tmp_path / "index.html").write_text(text)
    opened = browser.open((tmp_path / "index.html").as_uri())
    assert opened.evaluate("window.stolen") is None
    assert any("Content Security Policy" in complaint for complaint in opened.complaints())


@pytest.mark.parametrize(
    "write",
    [
        lambda path: made.write_foreign(path, names=["only"], seeds=1),
        lambda path: made.write_foreign(path, names=["only"], seeds=3),
        lambda path: made.write_foreign(path, names=["a", "b"], seeds=1),
        lambda path: path.write_text('{"s": {"t": {"a": {"seed_0": {"absolute_metrics": {"mean_return": [1, 2]}}}}}}'),
        lambda path: path.write_text(
            '{"s": {"t": {"a": {"seed_0": {"step_0": {"step_count": 0, "mean_return": [NaN, 1]},'
            ' "step_1": {"step_count": 9, "mean_return": [NaN]}}}}}}'
        ),
    ],
    ids=["one run", "one algorithm", "one seed", "no evaluation", "NaN"],
)
def test_little_data_makes_a_correct_page(browser: Browser, tmp_path: Path, write: Callable[[Path], Any]) -> None:
    write(tmp_path / "data.json")
    folder = write_report([tmp_path / "data.json"], tmp_path / "report")
    opened = browser.open((folder / "index.html").as_uri())
    assert opened.complaints() == []
    text = opened.evaluate("document.body.innerText")
    assert "NaN" not in text and "undefined" not in text and "null" not in text.replace("are null, not", "")
    assert "NaN" not in opened.evaluate("document.querySelector('main').innerHTML")


def test_a_served_page_reloads_when_it_changes(browser: Browser, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "index.html", tmp_path)
    os.utime(tmp_path / "index.html", (1e9, 1e9))
    with make_server(tmp_path, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opened = browser.open(f"http://127.0.0.1:{server.server_address[1]}/")
        assert opened.evaluate("document.getElementById('live').innerText") == "● live"
        opened.evaluate("document.querySelector('[data-algorithm=\"0\"]').click()")
        summaries = (
            "[...document.querySelectorAll('details')].filter(d => d.open).map(d => d.innerText.split('\\n')[0])"
        )
        for name in ("How the numbers were made", "mappo on vmas/navigation"):
            opened.evaluate(f"[...document.querySelectorAll('summary')].find(s => s.innerText === '{name}').click()")
        inside = "[...document.querySelectorAll('details[open] > details > summary')]"
        opened.evaluate(f"{inside}.find(s => s.innerText === 'Configuration').click()")
        opened.evaluate("[...document.querySelectorAll('footer summary')][0].click()")
        opened.wait("sessionStorage.getItem('covey-report-open')?.includes('beside this page')")
        text = (folder / "index.html").read_text().replace("<h1>Two &amp; two</h1>", "<h1>New</h1>")
        text = re.sub(r"<summary>\d+ files", "<summary>1,234 files", text)
        (tmp_path / "index.html").write_text(text)
        opened.wait("document.querySelector('h1')?.innerText === 'New' && document.readyState === 'complete'")
        assert curves(opened) == [1]  # the choice is kept
        names = [
            "How the numbers were made",
            "mappo on vmas/navigation",
            "Configuration",
            "1,234 files beside this page",
        ]
        assert opened.evaluate(summaries) == names  # and so is what was open
        assert opened.complaints() == []
        server.shutdown()


def test_speeds_are_side_by_side(browser: Browser, tmp_path: Path) -> None:
    files = [
        made.write_speed(tmp_path / f"{name}.json", name, rate) for name, rate in (("laptop", 1e4), ("tower", 2e4))
    ]
    folder = write_report(files, tmp_path / "report")
    opened = browser.open((folder / "index.html").as_uri())
    assert opened.complaints() == []
    table = opened.evaluate("[...document.querySelector('table').rows].map(r => [...r.cells].map(c => c.textContent))")
    assert table == [
        ["Environments", "laptop: cpu x2", "tower: cpu x2"],
        ["64", "10,000 (compute)", "20,000 (compute)"],
    ]
    assert "covey train experiment.num_envs=64" in opened.evaluate("document.body.innerText")
