"""`covey check`, `covey.check_env`: a task of one's own that breaks its spec is refused in one line, at each start."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulators import Clock, ClockConfig

import covey
from covey import cli, registry
from covey.envs.base import first_step, make_env, next_step
from covey.envs.check import check_shapes
from covey.errors import UsageError
from covey.types import Continuous, Discrete, EnvSpec, GroupSpec, MetricSpec, MultiDiscrete, TimeStep

GROUP = "agents"
AGENTS, ACTIONS = 3, 2
Change = Callable[[TimeStep], TimeStep]
NUMBERS: dict[str, Any] = {"low": -1.0, "high": 1.0}  # where tuples belong


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThingConfig(covey.TaskConfig):
    time_limit: int = 6
    broken: str = "no"


class Thing:
    """A task that keeps the contract; subclasses break it. Episodes end by themselves with their fourth step."""

    render: Any  # `Env` has it, but a task can do without

    def __init__(self, config: ThingConfig = ThingConfig()) -> None:  # noqa: B008
        self.config = config

    @property
    def group_spec(self) -> GroupSpec:
        return GroupSpec(num_agents=AGENTS, observation_shape=(4,), action=Discrete(ACTIONS))

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            groups={GROUP: self.group_spec},
            time_limit=self.config.time_limit,
            state_shape=(2,),
            metrics={"score": MetricSpec()},
            returns="one for each step",
        )

    def observe(self, state: Any) -> Any:
        return jnp.zeros((AGENTS, 4)) + state["place"]

    def shown(self, state: Any) -> dict[str, Any]:
        mask = jnp.ones((AGENTS, ACTIONS), bool)
        return {
            "action_masks": {GROUP: mask},
            "state": jnp.zeros(2) + state["place"],
            "metrics": {"score": state["place"]},
        }

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        state = {"place": jax.random.uniform(key), "elapsed": jnp.zeros((), jnp.int32)}
        return state, first_step({GROUP: self.observe(state)}, **self.shown(state))

    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state = state | {"elapsed": state["elapsed"] + 1}
        ended = state["elapsed"] >= 4
        observation = {GROUP: self.observe(state)}
        return state, next_step(observation, {GROUP: jnp.ones(AGENTS)}, terminated=ended, **self.shown(state))


def changed(timestep: TimeStep, **fields: Callable[[Any], Any]) -> TimeStep:
    """`timestep` with fields of its group replaced, each by a function of what it was."""
    group = timestep.groups[GROUP]
    group = dataclasses.replace(group, **{name: change(getattr(group, name)) for name, change in fields.items()})
    return dataclasses.replace(timestep, groups={GROUP: group})


def after_reset(change: Change) -> type[Thing]:
    class Broken(Thing):
        def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
            state, timestep = super().reset(key)
            return state, change(timestep)

    return Broken


def after_step(change: Change) -> type[Thing]:
    class Broken(Thing):
        def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
            state, timestep = super().step(state, action, key)
            return state, change(timestep)

    return Broken


def both(change: Change) -> type[Thing]:
    class Broken(after_step(change)):  # type: ignore[misc] # mypy knows no base class that is computed
        def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
            state, timestep = super().reset(key)
            return state, change(timestep)

    return Broken


def with_spec(**fields: Any) -> type[Thing]:
    class Broken(Thing):
        @property
        def spec(self) -> EnvSpec:
            return dataclasses.replace(super().spec, **fields)

    return Broken


def with_group(**fields: Any) -> type[Thing]:
    class Broken(Thing):
        @property
        def group_spec(self) -> GroupSpec:
            return dataclasses.replace(super().group_spec, **fields)

    return Broken


def with_entries(shape: Any, dtype: Any = np.float32) -> type[Thing]:
    """A task that shows the entry `far [4]`, whatever its spec says."""

    class Broken(with_group(observation_shape=shape, observation_dtype=dtype)):  # type: ignore[misc]
        def observe(self, state: Any) -> Any:
            return {"far": super().observe(state)}

    return Broken


class Wide(Thing):
    def observe(self, state: Any) -> Any:
        return jnp.zeros((AGENTS, 5))


class Growing(Thing):
    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = super().step(state, action, key)
        return state | {"place": jnp.zeros(2)}, timestep


class Forgetful(Thing):
    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = super().step(state, action, key)
        return {"place": state["place"]}, timestep


class Raising(Thing):
    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> Any:
        if state["elapsed"] > 3:  # a traced value has no truth
            return state, None
        return super().step(state, action, key)


class Misspelling(Thing):
    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        return super().step(state, {GROUP: action["agent"]}, key)


class Resetless:
    spec = Thing().spec


class Bare(Thing):
    def reset(self, key: jax.Array) -> Any:
        return super().reset(key)[1]


def replaced(**fields: Any) -> Change:
    return lambda timestep: dataclasses.replace(timestep, **fields)


NO = jnp.zeros((), bool)
SHAPES = {
    "observation": (Wide, "reset gives observation [3, 5] for group 'agents'; its spec says [3, 4]"),
    "dtype": (
        both(lambda t: changed(t, observation=lambda x: x.astype(jnp.int32))),
        "reset gives observation of type int32 for group 'agents'; its spec says float32",
    ),
    "next_observation": (
        after_step(lambda t: changed(t, next_observation=lambda x: x[:2])),
        "step gives next_observation [2, 4] for group 'agents'; its spec says [3, 4]",
    ),
    "observation in parts": (
        both(lambda t: changed(t, observation=lambda x: {"image": x})),
        "reset gives observation as a dict for group 'agents'; its spec says [3, 4]",
    ),
    "reward": (
        after_step(lambda t: changed(t, reward=lambda x: x.sum())),
        "step gives reward [] for group 'agents'; it must be [3], one for each agent",
    ),
    "reward dtype": (
        both(lambda t: changed(t, reward=lambda x: x.astype(jnp.int32))),
        "reset gives reward of type int32 for group 'agents'; it must be float32",
    ),
    "alive": (
        after_step(lambda t: changed(t, alive=lambda x: x[0])),
        "step gives alive [] for group 'agents'; it must be [3], one for each agent",
    ),
    "terminated": (
        after_step(lambda t: changed(t, terminated=lambda x: x.astype(jnp.float32))),
        "step gives terminated of type float32 for group 'agents'; it must be bool",
    ),
    "shaping": (
        after_step(lambda t: changed(t, shaping=lambda _: jnp.zeros(AGENTS))),
        "step gives TimeStep.groups['agents'].shaping and reset does not: both must give the same structure",
    ),
    "mask": (
        both(lambda t: changed(t, action_mask=lambda x: x[:, :1])),
        "reset gives action_mask [3, 1] for group 'agents'; its spec says [3, 2]",
    ),
    "one mask": (
        both(lambda t: changed(t, next_action_mask=lambda _: None)),
        "reset gives action_mask and no next_action_mask for group 'agents'",
    ),
    "mask of continuous": (
        with_group(action=Continuous((-1.0,), (1.0,))),
        "reset gives action_mask [3, 2] for group 'agents', whose actions are continuous",
    ),
    "group": (
        with_spec(groups={"walkers": Thing().group_spec}),
        "reset gives no group 'walkers'; its spec has one (it gives 'agents')",
    ),
    "last": (after_step(replaced(last=jnp.zeros(3, bool))), "step gives last [3]; it must be one flag, []"),
    "truncated": (both(replaced(truncated=jnp.zeros(()))), "reset gives truncated of type float32; it must be bool"),
    "state": (both(replaced(state=jnp.zeros(3))), "reset gives state [3]; its spec says [2]"),
    "no state": (with_spec(state_shape=None), "reset gives state [2]; its spec has state_shape=None"),
    "missing state": (both(replaced(state=None)), "reset gives state as None; its spec says [2]"),
    "metrics": (
        with_spec(metrics={"score": MetricSpec(), "wins": MetricSpec()}),
        "reset gives metrics 'score': it lacks 'wins', unlike its spec",
    ),
    "metric": (
        both(replaced(metrics={"score": jnp.zeros(2)})),
        "reset gives metric 'score' [2]; it must be one number",
    ),
    "state in parts": (both(replaced(state=(jnp.zeros(2),))), "reset gives state as a tuple; its spec says [2]"),
    "metrics without names": (both(replaced(metrics=jnp.zeros(2))), "reset gives metrics [2]; they must be a dict"),
    "metric in parts": (both(replaced(metrics={"score": {}})), "reset gives metric 'score' as a dict; it must be one"),
    "no metrics": (with_spec(metrics=None), "spec.metrics must map names to MetricSpecs, and is a NoneType"),
    "state of the environment": (
        Growing,
        "step gives state['place'] as float32[2], reset as float32[]: they must agree",
    ),
    "structure": (Forgetful, "reset gives state['elapsed'] and step does not: both must give the same structure"),
    "not a pair": (Bare, "reset must give a state and a covey.types.TimeStep, and gives TimeStep"),
    "no reset": (Resetless, "reset raises AttributeError: 'Resetless' object has no attribute 'reset'"),
    "raising": (Raising, "step raises TracerBoolConversionError: Attempted boolean conversion of traced array"),
    "misspelling": (Misspelling, "step raises KeyError: 'agent' (test_check.py, line "),
    "reserved metric": (with_spec(metrics={"mean_return": MetricSpec()}), "covey has a metric of this name"),
    "reduction": (with_spec(metrics={"score": MetricSpec(reduction="mean")}), "reduction one of sum, last, max"),
    "time limit": (with_spec(time_limit=0), "spec.time_limit must be a number of steps, at least 1, not 0"),
    "no groups": (with_spec(groups={}), "spec.groups must map the name of each group to its GroupSpec"),
    "agents": (with_group(num_agents=0), "spec.groups['agents'].num_agents must be at least 1, not 0"),
    "shape": (with_group(observation_shape=[4]), "observation_shape must be a tuple of sizes, not [4]"),
    "scalar": (with_group(observation_shape=()), "a single number per agent is (1,)"),
    "dictionary": (
        with_group(observation_shape={"far": (4,), "near": (2,)}),
        "reset gives observation as an array [3, 4] for group 'agents'; its spec says a dict of 'far', 'near'",
    ),
    "entries": (
        with_entries({"far": (4,), "near": (2,)}),
        "reset gives observation with 'far' for group 'agents': it lacks 'near', unlike its spec",
    ),
    "more entries": (
        with_entries({"near": (2,)}),
        "reset gives observation with 'far' for group 'agents': it has 'far', unlike its spec",
    ),
    "shape of an entry": (
        with_entries({"far": (5,)}),
        "reset gives observation['far'] [3, 4] for group 'agents'; its spec says [3, 5]",
    ),
    "type of an entry": (
        with_entries({"far": (4,)}, {"far": np.uint8}),
        "reset gives observation['far'] of type float32 for group 'agents'; its spec says uint8",
    ),
    "types by name": (
        with_group(observation_shape={"far": (4,)}, observation_dtype={"near": np.uint8}),
        "observation_dtype has the entries 'near', observation_shape 'far'",
    ),
    "shape of an entry in the spec": (
        with_group(observation_shape={"far": 4}),
        "observation_shape['far'] must be a tuple of sizes, not 4",
    ),
    "scalar entry": (with_group(observation_shape={"far": ()}), "observation_shape['far'] is (): a single number"),
    "no entries": (with_group(observation_shape={}), "observation_shape must map the name of each entry to its shape"),
    "reserved entry": (with_group(observation_shape={"agent_id": (3,)}), "'agent_id' is the entry that covey adds"),
    "action": (with_group(action=5), "action must be Discrete, MultiDiscrete or Continuous, not 5"),
    "bounds": (with_group(action=Continuous((1.0,), (-1.0,))), "each low below its high"),
    "one bound": (with_group(action=Continuous(**NUMBERS)), "as many finite low as high bounds"),
    "choices": (with_group(action=MultiDiscrete(())), "at least one action for each choice"),
}


def own(_: Any) -> jax.Array:
    return jnp.arange(AGENTS, dtype=jnp.float32)


VALUES = {
    "nan": (
        after_step(lambda t: changed(t, reward=lambda x: x.at[1].set(jnp.nan))),
        "step gives groups['agents'].reward with a nan in it",
    ),
    "infinite metric": (both(replaced(metrics={"score": jnp.float32(jnp.inf)})), "metrics['score'] with a inf in it"),
    "reward at reset": (after_reset(lambda t: changed(t, reward=lambda x: x + 1)), "reset gives a reward for group"),
    "ends at reset": (after_reset(replaced(last=~NO)), "reset gives last=true"),
    "nobody": (after_reset(lambda t: changed(t, alive=jnp.zeros_like)), "reset gives nobody alive"),
    "masked out": (
        both(
            lambda t: changed(
                t, action_mask=lambda x: x.at[2].set(False), next_action_mask=lambda x: x.at[2].set(False)
            )
        ),
        "reset gives group 'agents' an action_mask that leaves agent 2 no legal action",
    ),
    "truncated before the end": (after_step(replaced(truncated=~NO)), "step gives truncated=true where last=false"),
    "successor": (
        after_step(lambda t: changed(t, next_observation=lambda x: x + 1)),
        "step gives a next_observation other than observation for group 'agents', though no episode ended",
    ),
    "all dead": (
        after_step(lambda t: changed(t, alive=jnp.zeros_like)),
        "step gives nobody alive and last=false: the episode must end with its last agent",
    ),
    "broken promise": (
        type(
            "Mortal",
            (after_step(lambda t: changed(t, alive=lambda x: x.at[0].set(False))), with_spec(keeps_lifetimes=True)),
            {},
        ),
        "step lets an agent of group 'agents' die other than once; its spec says keeps_lifetimes",
    ),
    "unequal rewards": (
        type("Unequal", (after_step(lambda t: changed(t, reward=own)), with_group(shared_reward=True)), {}),
        "step gives agents of group 'agents' different values of reward; its spec says shared_reward",
    ),
    "unequal shaping": (
        type("Unequal", (both(lambda t: changed(t, shaping=own)), with_group(shared_reward=True)), {}),
        "step gives agents of group 'agents' different values of shaping; its spec says shared_reward",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_what_is_refused_before_anything_is_computed(case: str) -> None:
    env, line = SHAPES[case]
    with pytest.raises(UsageError, match=re.escape(line)) as raised:
        check_shapes(env(), "task mine/thing")
    assert str(raised.value).startswith("task mine/thing: ") and "\n" not in str(raised.value)


@pytest.mark.parametrize("case", VALUES)
def test_what_random_play_finds(case: str) -> None:
    env, line = VALUES[case]
    check_shapes(env(), "environment")
    with pytest.raises(UsageError, match=re.escape(line)):
        covey.check_env(env())


def test_what_keeps_the_contract_is_summarised() -> None:
    text = str(covey.check_env(Thing(), "task mine/thing"))
    assert text.startswith("task mine/thing: keeps the contract\n")
    assert "3 agents, each sees [4] float32 and has 2 actions, masked" in text
    assert "after 4 to 4 steps" in text and "agents 1 to 1" in text
    assert "note" not in text


class Unexplained(Thing):
    def step(self, state: Any, action: dict[str, jax.Array], key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = super().step(state, action, key)
        return state, changed(timestep, terminated=jnp.zeros_like)


def test_notes() -> None:
    assert "neither truncated nor terminated" in str(covey.check_env(Unexplained()))


@pytest.mark.parametrize("task", ["probe/death", "probe/choices", "probe/target", "probe/groups"])
def test_environments_of_covey_pass(task: str) -> None:
    covey.check_env(make_env(task), task)


# ------------------------------------------------------------------------------------------------------------- starts


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mine/thing`, whose field says how it is broken."""
    entries = {entry.name: entry for entry in registry.tasks}
    monkeypatch.setattr(registry.tasks, "_entries", entries)
    registry.register_task(
        "mine/thing",
        lambda config: {"no": Thing, "wide": Wide, "not_finite": VALUES["nan"][0]}[config.broken](config),
        config=ThingConfig,
        description="a task of one's own",
    )


def test_check_from_the_command_line(registered: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "task=mine/thing"]) == 0
    assert "task mine/thing: keeps the contract" in capsys.readouterr().out
    assert cli.main(["check", "task=mine/thing", "task.broken=not_finite"]) == 2
    assert capsys.readouterr().err == "covey: task mine/thing: step gives groups['agents'].reward with a nan in it\n"
    assert cli.main(["check"]) == 2
    assert "check needs a task" in capsys.readouterr().err


def test_every_start_refuses_it(registered: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["task=mine/thing", "task.broken=wide", f"run_dir={tmp_path / 'run'}"]
    assert cli.main(["train", *words]) == 2
    line = "covey: task mine/thing: reset gives observation [3, 5] for group 'agents'; its spec says [3, 4]\n"
    assert capsys.readouterr().err == line
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="its spec says"):
        make_env("mine/thing", broken="wide")
    with pytest.raises(UsageError, match="task mine/thing: making it raises KeyError: 'typo'"):
        make_env("mine/thing", broken="typo")


def test_tasks_of_covey_are_not_traced_once_more(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not registry.tasks["mine/thing"].built_in
    assert all(entry.built_in for entry in registry.tasks if not entry.name.startswith("mine/"))
    monkeypatch.setattr("covey.envs.check.check_shapes", lambda *_: pytest.fail("traced"))
    assert np.all(make_env("probe/copy").reset(jax.random.key(0))[1].groups[GROUP].alive)


def test_a_simulator_registered_as_a_compiled_task_is_told_what_it_lacks() -> None:
    covey.register_task("toy/clock", Clock, config=ClockConfig, description="counts its steps")
    try:
        with pytest.raises(UsageError, match=r"task 'toy/clock': .* add host=True to register_task"):
            covey.make_env("toy/clock")
    finally:
        registry.tasks._entries.pop("toy/clock")
