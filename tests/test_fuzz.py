"""No odd command line ends in a traceback, a hang or more than one line (tests/fuzz.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz.py")


def failures(seed: int, number: int, seconds: int) -> list[str]:
    """What failed. The fuzzer is a process of its own, which it ends itself where a command hangs outside Python."""
    command = [sys.executable, str(SCRIPT), "--seed", str(seed), "--number", str(number)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
    shown = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [f"{item['index']}: covey {item['words']} ({item['output']}): {item['problem']}" for item in shown]
    return found if done.returncode in (0, 1) else [*found, f"exit code {done.returncode}: {done.stderr[-3000:]}"]


def test_a_hundred_odd_commands() -> None:
    assert failures(0, 100, 600) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_thousand_odd_commands(seed: int) -> None:
    assert failures(seed, 250, 3600) == []


def test_every_verb_is_fuzzed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import fuzz

    from covey import cli

    assert set(fuzz.VERBS) == set(cli.VERBS)
    assert all(hasattr(fuzz.Generator, verb) for verb in fuzz.VERBS)


@pytest.mark.parametrize(
    "words",
    [["show", "no_such_key=1"], ["list", "tasks", "lbf"], ["list", "presets"]],
)
def test_the_fuzzer_notices(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback and an unknown exit code count as failures, a refusal in one line does not."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import fuzz

    from covey import cli

    assert fuzz.run(fuzz.Command(tuple(words))) is None

    def fail(arguments: object) -> None:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setitem(cli.VERBS, words[0], cli.Verb(fail, ""))
    assert "ZeroDivisionError" in (fuzz.run(fuzz.Command(tuple(words))) or "")
    monkeypatch.setattr(cli, "main", lambda arguments: 3)
    assert "exit code 3" in (fuzz.run(fuzz.Command(tuple(words))) or "")
