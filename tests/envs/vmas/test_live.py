"""covey's own simulator against VMAS while it runs, on configurations drawn at random.

It needs a Python that has VMAS (what tools/record_vmas.py needs), which is not covey's own:

    COVEY_VMAS_PYTHON=…/bin/python COVEY_VMAS_SEED=7 python -m pytest -m slow tests/envs/vmas/test_live.py

For each scenario, that Python plays one configuration (`CHOICES` in tools/record_vmas.py) with seeds of its own. The
recording is held against covey by the checks of `replay.py`. Without COVEY_VMAS_SEED, the seed is 0.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from replay import NAMES, Recording, check_free_runs, check_steps, load

TOOL = Path(__file__).parents[3] / "tools" / "record_vmas.py"
PYTHON = os.environ.get("COVEY_VMAS_PYTHON")
SEED = os.environ.get("COVEY_VMAS_SEED", "0")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="COVEY_VMAS_PYTHON names no Python that has VMAS"),
]


@pytest.fixture(scope="module", params=NAMES)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    name, folder = request.param, tmp_path_factory.mktemp("vmas")
    command = [str(PYTHON), str(TOOL), "--random", SEED, "--output", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recorded = load(name, 0, folder)
    print(f"{name}: {recorded.meta['parameters']}")
    return recorded


def test_every_step(recording: Recording) -> None:
    check_steps(recording)


def test_free_runs(recording: Recording) -> None:
    if any(agent.scripted and agent.name.startswith("agent_red") for agent in recording.env.world.agents):
        pytest.skip("in each step, red draws where to go")
    check_free_runs(recording)
