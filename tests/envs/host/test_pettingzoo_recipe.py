"""Finding and making environments; what is missing or wrong is one line."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from playing import play

from covey.envs.config import Reward
from covey.envs.host.pettingzoo import recipe
from covey.envs.host.pettingzoo.general import AnyConfig, make_any
from covey.envs.host.simulator import Source
from covey.errors import CoveyError, UsageError
from covey.experiment.configuration.compose import compose
from covey.registry import build_config, tasks

TOYS = "zoo"
READY = [entry.name for entry in tasks if entry.name.startswith(("pettingzoo/", "magent2/"))]
READY.remove("pettingzoo/any")


def error(module: str, kind: type[CoveyError] = UsageError, **fields: Any) -> str:
    with pytest.raises(kind) as caught:
        make_any(AnyConfig(module=module, **fields))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "module",
    ["sisl/multiwalker-v9", "pettingzoo.sisl.multiwalker_v9", "pettingzoo.sisl.multiwalker.multiwalker:parallel_env"],
)
def test_the_ways_to_name_an_environment(module: str) -> None:
    game = play("pettingzoo/any", module=module, kwargs={"n_walkers": 2}, time_limit=7)
    assert game.spec.groups["agents"].num_agents == 2
    assert game.simulator.environment.unwrapped.env.max_cycles == 8


def test_a_class_with_turns_that_can_be_parallel() -> None:
    game = play("pettingzoo/any", module="pettingzoo.sisl.multiwalker.multiwalker:env", time_limit=7)
    game.advance()
    assert game.spec.groups["agents"].num_agents == 3


def test_what_is_not_there() -> None:
    assert error("") == "task.module says which environment, for example task.module=sisl/multiwalker-v9"
    assert error("pettingzoo.sisl.waterworld_v4").startswith(
        "there is no module 'pettingzoo.sisl.waterworld_v4'; nearest in pettingzoo.sisl: "
    )
    assert re.fullmatch(
        r"PettingZoo 1\.\d+\.\d+ has no 'sisl/multiwalker-v8'; nearest: sisl/multiwalker-v9.*",
        error("sisl/multiwalker-v8"),
    )
    assert error("no_such_package.thing") == "there is no module 'no_such_package.thing'"
    assert error("json") == "module 'json' has no parallel_env or env that makes an environment"
    assert error(f"{TOYS}:Nothing") == f"module '{TOYS}' has no Nothing that makes an environment"
    assert error("collections:OrderedDict") == (
        "'collections:OrderedDict' does not make a parallel PettingZoo environment: "
        "OrderedDict has no possible_agents, reset, step"
    )


def test_an_argument_that_the_environment_does_not_know(tmp_path: Any) -> None:
    config = build_config(AnyConfig(module="sisl/multiwalker-v9", kwargs={"n_runners": 2}), {}, "pettingzoo/any")
    source = Source(name="pettingzoo/any", make=make_any, config=config)
    with pytest.raises(
        CoveyError, match=r"^pettingzoo/any cannot be made: TypeError: .*unexpected keyword argument 'n_runners'$"
    ):
        source.simulator()


@pytest.mark.parametrize(
    ("package", "task", "extra"),
    [
        ("pettingzoo", "pettingzoo/multiwalker", "pettingzoo"),
        ("Box2D", "pettingzoo/multiwalker", "pettingzoo"),
        ("mpe2", "pettingzoo/simple_spread", "pettingzoo"),
        ("magent2", "magent2/battle", "magent2"),
        ("pyspiel", "pettingzoo/hanabi", "pettingzoo"),
    ],
)
def test_a_package_that_is_not_installed(package: str, task: str, extra: str) -> None:
    """In a process of its own, in which importing the package fails as where it is not installed."""
    code = f"""
import sys
sys.modules[{package!r}] = None
from covey.errors import MissingExtra
from covey.registry import tasks
from covey.envs.host.simulator import Source
entry = tasks[{task!r}]
try:
    Source(name=entry.name, make=entry.make, config=entry.defaults()).simulator()
except MissingExtra as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    module = entry.module if (entry := tasks[task].defaults().recipe()) else ""
    assert run.stdout == f"'{module}' needs the extra: pip install 'covey[{extra}]'\n"


def test_listing_and_configuring_imports_no_simulator() -> None:
    code = (
        "import sys; from covey.registry import tasks\n"
        "names = [e.name for e in tasks if e.host and e.defaults() and e.name.startswith(('pettingzoo', 'magent2'))]\n"
        "assert len(names) == 21, len(names)\n"
        "assert not {'jax', 'gymnasium', 'pettingzoo', 'pygame', 'mpe2', 'magent2'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_simulators_are_silent_and_need_no_display() -> None:
    code = (
        "from covey.registry import tasks\n"
        "from covey.envs.host.simulator import Source\n"
        "entry = tasks['pettingzoo/multiwalker']\n"
        "copy = Source(name=entry.name, make=entry.make, config=entry.defaults()).simulator()\n"
        "copy.reset(0); picture = copy.render()\n"
        "assert picture.ndim == 3 and picture.std() > 0\n"
    )
    hidden = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "SDL_VIDEODRIVER")}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=hidden)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_offered_arguments_are_dropped_where_they_are_unknown() -> None:
    def make(size: int, max_cycles: int = 0) -> tuple[int, int]:
        return size, max_cycles

    assert recipe.call_with_known(make, {"size": 3}, {"render_mode": "rgb_array", "max_cycles": 5}) == (3, 5)
    with pytest.raises(TypeError, match="'colour'"):
        recipe.call_with_known(make, {"size": 3, "colour": 1}, {"render_mode": "rgb_array"})


def changed(config: Any, name: str) -> Any:
    """A configuration with another valid value of a field."""
    value = getattr(config, name)
    others: list[Any]
    match value:
        case bool():
            others = [not value]
        case enum.Enum():
            others = [member for member in type(value) if member is not value]
        case _:
            others = [value + 2, value - 2, value / 2]
    for each in others:
        with contextlib.suppress(ValueError):
            return dataclasses.replace(config, **{name: each})
    raise AssertionError(f"{name} takes none of {others}")


def test_every_task_passes_on_each_of_its_fields() -> None:
    """A field with no effect would be a field that lies."""
    shared = {field.name for field in dataclasses.fields(recipe.PettingZooConfig)}
    for name in READY:
        config = tasks[name].defaults()
        for field in dataclasses.fields(config):
            if field.name in shared:
                continue
            assert changed(config, field.name).recipe() != config.recipe(), (name, field.name)


def test_limits_of_benchmarl_and_pettingzoo_have_their_own_names() -> None:
    config = build_config(
        tasks["pettingzoo/multiwalker"].defaults(),
        {"n_walkers": 4, "max_cycles": 70, "shared_reward": True, "render_mode": "human"},
        "task",
    )
    assert (config.num_walkers, config.time_limit, config.reward) == (4, 70, Reward.shared)
    assert config.recipe().arguments["shared_reward"] and config.recipe().shared_reward == ("agents",)


def test_a_command_line_can_say_all_of_it() -> None:
    words = (
        "task=pettingzoo/any task.module=butterfly/knights_archers_zombies-v11 task.kwargs.num_archers=3 "
        "task.agent_groups={shooters:[archer],others:knight} task.teams=[[shooters],[others]] task.max_cycles=30"
    )
    task = compose(words.split()).task.config
    assert task.kwargs == {"num_archers": 3} and task.time_limit == 30
    spec = make_any(task).spec
    assert {name: group.num_agents for name, group in spec.groups.items()} == {"shooters": 3, "others": 2}
    assert spec.teams == (("shooters",), ("others",))


@pytest.mark.parametrize("name", ["pettingzoo/any", *READY])
def test_every_task_can_be_composed(name: str) -> None:
    assert compose([f"task={name}"]).task.config == tasks[name].defaults()


def test_algorithms_without_continuous_actions_get_discrete_ones() -> None:
    assert compose(["algorithm=qmix", "task=pettingzoo/simple_spread"]).task.config.continuous_actions is False
    assert compose(["algorithm=maddpg", "task=pettingzoo/simple_spread"]).task.config.continuous_actions is True
