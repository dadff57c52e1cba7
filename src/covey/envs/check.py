"""Checks that an environment keeps the contract of `types.py`. This is for users' own tasks, whose mistakes would
otherwise show far away, inside an algorithm.

`check_shapes` traces a reset and a step and compares what they give with the spec; it computes nothing, and covey calls
it before it trains on a task that is not its own. `check_env` also plays at random and looks at the values. Whatever is
wrong raises a `UsageError` of one line that names the field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Env
from covey.envs.wrappers import Lifetimes
from covey.errors import CoveyError, UsageError, place_in_users_code
from covey.metrics import EPISODE_LENGTH, MEAN_RETURN, group_return
from covey.observations import AGENT_ID, describe, describe_shape, dtypes, map_entries
from covey.ops.exploration import sample_uniform
from covey.types import (
    ActionSpec,
    Array,
    Continuous,
    Discrete,
    EnvSpec,
    GroupSpec,
    GroupStep,
    Key,
    MetricSpec,
    MultiDiscrete,
    ObservationShape,
    PyTree,
    TimeStep,
)

_T = TypeVar("_T")

REDUCTIONS = ("sum", "last", "max")
NUM_ENVS = 16
MOST_STEPS = 256


def check_env(env: Env, name: str = "environment", *, seed: int = 0) -> Checked:
    """Checks `env` against its spec, abstractly and in random play; raises UsageError with the first thing wrong.

        print(covey.check_env(MyEnv(MyConfig())))

    Messages begin with `name`. The result says what was checked, and prints as a few lines.
    """
    check_shapes(env, name)
    spec = env.spec
    num_steps = min(2 * spec.time_limit, MOST_STEPS)
    played = run_users_code(name, "random play", jax.jit(lambda key: play(env, key, num_steps)), jax.random.key(seed))
    played = jax.device_get(played)
    check_resets(spec, played, name)
    check_steps(spec, played, name)
    return summarise(spec, played, name)


# ---------------------------------------------------------------------------------------------------- shapes and types


def check_shapes(env: Env, name: str) -> None:
    """Compares what a reset and a step give, traced and not computed, with the spec."""
    spec = check_spec(env, name)
    state, first = _trace(name, "reset", lambda *given: env.reset(*given), jax.random.key(0))
    check_timestep(spec, first, name, "reset")
    actions = {group: abstract_action(part) for group, part in spec.groups.items()}
    next_state, second = _trace(name, "step", lambda *given: env.step(*given), state, actions, jax.random.key(0))
    check_timestep(spec, second, name, "step")
    _check_same(state, next_state, name, "state")
    _check_same(first, second, name, "TimeStep")


def check_spec(env: Env, name: str) -> EnvSpec:
    """The spec, if it makes sense by itself."""
    spec = run_users_code(name, "spec", lambda: env.spec)
    if not isinstance(spec, EnvSpec):
        _fail(name, f"spec is a {type(spec).__name__}, not a covey.types.EnvSpec")
    if not isinstance(spec.groups, Mapping) or not spec.groups:
        _fail(name, "spec.groups must map the name of each group to its GroupSpec, and there must be one")
    for group, part in spec.groups.items():
        _check_group_spec(part, name, f"spec.groups['{group}']")
    if not _is_whole(spec.time_limit, 1):
        _fail(name, f"spec.time_limit must be a number of steps, at least 1, not {spec.time_limit!r}")
    if spec.state_shape is not None:
        _check_shapes_of_entries(spec.state_shape, name, "spec.state_shape")
    if not isinstance(spec.metrics, Mapping):
        _fail(name, f"spec.metrics must map names to MetricSpecs, and is a {type(spec.metrics).__name__}")
    taken = {MEAN_RETURN, EPISODE_LENGTH, *map(group_return, spec.groups)}
    for metric, metric_spec in spec.metrics.items():
        if not isinstance(metric_spec, MetricSpec) or metric_spec.reduction not in REDUCTIONS:
            _fail(name, f"spec.metrics['{metric}'] must be a MetricSpec with reduction one of {', '.join(REDUCTIONS)}")
        if metric in taken:
            _fail(name, f"spec.metrics['{metric}']: covey has a metric of this name; choose another")
    return spec


def _check_group_spec(group: Any, name: str, where: str) -> None:
    if not isinstance(group, GroupSpec):
        _fail(name, f"{where} is a {type(group).__name__}, not a covey.types.GroupSpec")
    if not _is_whole(group.num_agents, 1):
        _fail(name, f"{where}.num_agents must be at least 1, not {group.num_agents!r}")
    _check_observation_spec(group, name, where)
    match group.action:
        case Discrete(num_actions=number):
            good = _is_whole(number, 1)
        case MultiDiscrete(num_actions=numbers):
            good = isinstance(numbers, tuple) and bool(numbers) and all(_is_whole(number, 1) for number in numbers)
        case Continuous(low=low, high=high):
            bounds = list(zip(low, high, strict=False)) if isinstance(low, Sized) and isinstance(high, Sized) else []
            good = bool(bounds) and len(low) == len(high) and all(a < b and math.isfinite(b - a) for a, b in bounds)
        case _:
            _fail(name, f"{where}.action must be Discrete, MultiDiscrete or Continuous, not {group.action!r}")
    if not good:
        wanted = {
            Discrete: "at least one action",
            MultiDiscrete: "a tuple with at least one action for each choice",
            Continuous: "as many finite low as high bounds, each low below its high",
        }
        _fail(name, f"{where}.action needs {wanted[type(group.action)]}, and is {group.action}")


def _check_observation_spec(group: GroupSpec, name: str, where: str) -> None:
    _check_shapes_of_entries(group.observation_shape, name, f"{where}.observation_shape")
    shapes = group.observation_shape if isinstance(group.observation_shape, Mapping) else {"": group.observation_shape}
    for entry, shape in shapes.items():
        if not shape:
            _fail(name, f"{where}.observation_shape{_entry(entry)} is (): a single number per agent is (1,)")
    if AGENT_ID in shapes:
        _fail(name, f"{where}.observation_shape: '{AGENT_ID}' is the entry that covey adds; choose another name")
    given = group.observation_dtype
    if isinstance(given, Mapping) and given.keys() != shapes.keys():
        _fail(name, f"{where}.observation_dtype has the entries {_names(given)}, observation_shape {_names(shapes)}")
    for entry, dtype in (given if isinstance(given, Mapping) else {"": given}).items():
        try:
            np.dtype(dtype)
        except TypeError:
            _fail(name, f"{where}.observation_dtype{_entry(entry)} must be a NumPy type, not {dtype!r}")


def _check_shapes_of_entries(shape: Any, name: str, where: str) -> None:
    """A shape, or a dictionary of shapes by name."""
    if not isinstance(shape, Mapping):
        return _check_shape(shape, name, where)
    if not shape or not all(isinstance(entry, str) for entry in shape):
        _fail(name, f"{where} must map the name of each entry to its shape, and there must be one")
    for entry, own in shape.items():
        _check_shape(own, name, f"{where}{_entry(entry)}")


def _entry(name: str) -> str:
    return f"['{name}']" if name else ""


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)


def _check_shape(shape: Any, name: str, where: str) -> None:
    if not isinstance(shape, tuple) or not all(_is_whole(size, 1) for size in shape):
        _fail(name, f"{where} must be a tuple of sizes, not {shape!r}")


def abstract_action(group: GroupSpec) -> jax.ShapeDtypeStruct:
    """The shape and type of a group's actions."""
    match group.action:
        case Discrete():
            return jax.ShapeDtypeStruct((group.num_agents,), jnp.int32)
        case MultiDiscrete(num_actions=numbers):
            return jax.ShapeDtypeStruct((group.num_agents, len(numbers)), jnp.int32)
        case Continuous() as action:
            return jax.ShapeDtypeStruct((group.num_agents, action.size), jnp.float32)


def mask_width(action: ActionSpec) -> int | None:
    """Entries of an agent's action mask; None for continuous actions, which have no mask."""
    match action:
        case Discrete(num_actions=number):
            return number
        case MultiDiscrete(num_actions=numbers):
            return sum(numbers)
        case _:
            return None


def _trace(name: str, what: str, function: Callable[..., Any], *arguments: Any) -> tuple[PyTree, TimeStep]:
    """What `function` returns, as shapes and types."""
    result = run_users_code(name, what, jax.eval_shape, function, *arguments)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], TimeStep):
        found = (
            ", ".join(type(part).__name__ for part in result) if isinstance(result, tuple) else type(result).__name__
        )
        _fail(name, f"{what} must give a state and a covey.types.TimeStep, and gives {found}")
    return result


def run_users_code(name: str, what: str, function: Callable[..., _T], *arguments: Any) -> _T:
    """What `function` returns. An error inside becomes one line that says where in the user's own files it is."""
    try:
        return function(*arguments)
    except CoveyError:
        raise
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        place = place_in_users_code(error)
        _fail(name, f"{what} raises {type(error).__name__}: {first_line}{f' ({place})' if place else ''}", error)


def check_timestep(spec: EnvSpec, timestep: TimeStep, name: str, what: str) -> None:
    """Compares a traced time step with the spec. `what` is the function that gave it: reset or step."""
    if not isinstance(timestep.groups, dict):
        _fail(name, f"{what} gives groups as a {type(timestep.groups).__name__}, not a dict")
    for group in spec.groups.keys() - timestep.groups.keys():
        _fail(name, f"{what} gives no group '{group}'; its spec has one (it gives {_names(timestep.groups)})")
    for group in timestep.groups.keys() - spec.groups.keys():
        _fail(name, f"{what} gives a group '{group}'; its spec has only {_names(spec.groups)}")
    for group, part in spec.groups.items():
        if not isinstance(timestep.groups[group], GroupStep):
            _fail(name, f"{what} gives group '{group}' as a {type(timestep.groups[group]).__name__}, not a GroupStep")
        _check_group_step(part, timestep.groups[group], name, what, f" for group '{group}'")
    for field in ("last", "truncated"):
        _compare(getattr(timestep, field), (), jnp.bool_, name, f"{what} gives {field}", "it must be one flag, []")
    for field in ("state", "next_state"):
        found = getattr(timestep, field)
        if spec.state_shape is None and found is not None:
            _fail(name, f"{what} gives {field} {_shape(found)}; its spec has state_shape=None")
        if spec.state_shape is not None:
            floats = map_entries(lambda _: jnp.float32, spec.state_shape)
            _compare_entries(found, spec.state_shape, floats, name, f"{what} gives {field}")
    if not isinstance(timestep.metrics, Mapping):
        _fail(name, f"{what} gives metrics {_shape(timestep.metrics)}; they must be a dict by name")
    for metric in spec.metrics.keys() ^ timestep.metrics.keys():
        has = "lacks" if metric in spec.metrics else "has"
        _fail(name, f"{what} gives metrics {_names(timestep.metrics)}: it {has} '{metric}', unlike its spec")
    for metric, value in timestep.metrics.items():
        if getattr(value, "shape", None) != ():
            _fail(name, f"{what} gives metric '{metric}' {_shape(value)}; it must be one number, []")


def _check_group_step(spec: GroupSpec, step: GroupStep, name: str, what: str, of_group: str) -> None:
    agents = (spec.num_agents,)

    def compare(field: str, shape: tuple[int, ...], dtype: Any, said: str) -> None:
        _compare(getattr(step, field), shape, dtype, name, f"{what} gives {field}", said, of_group)

    observation = map_entries(lambda shape: (*agents, *shape), spec.observation_shape)
    for field in ("observation", "next_observation"):
        _compare_entries(
            getattr(step, field), observation, dtypes(spec), name, f"{what} gives {field}", of_group=of_group
        )
    one_each = f"it must be {list(agents)}, one for each agent"
    compare("reward", agents, jnp.float32, one_each)
    compare("alive", agents, jnp.bool_, one_each)
    compare("terminated", agents, jnp.bool_, one_each)
    if step.shaping is not None:
        compare("shaping", agents, jnp.float32, one_each)
    if (step.action_mask is None) != (step.next_action_mask is None):
        given, missing = ("next_action_mask", "action_mask")[:: 1 if step.action_mask is None else -1]
        _fail(name, f"{what} gives {given} and no {missing}{of_group}")
    if step.action_mask is None:
        return
    width = mask_width(spec.action)
    if width is None:
        _fail(name, f"{what} gives action_mask {_shape(step.action_mask)}{of_group}, whose actions are continuous")
    for field in ("action_mask", "next_action_mask"):
        compare(field, (*agents, width), jnp.bool_, f"its spec says {[*agents, width]}")


def _compare_entries(
    found: Any, shape: ObservationShape, dtype: Any, name: str, gives: str, *, of_group: str = ""
) -> None:
    """Compares an array, or each entry of a dictionary, with what the spec says of it."""
    if not isinstance(shape, Mapping):
        return _compare(found, shape, dtype, name, gives, f"its spec says {list(shape)}", of_group)
    if not isinstance(found, dict):
        kind = "None" if found is None else f"an array {_shape(found)}" if hasattr(found, "shape") else _shape(found)
        _fail(name, f"{gives} as {kind.removeprefix('as ')}{of_group}; its spec says a dict of {_names(sorted(shape))}")
    for entry in sorted(shape.keys() ^ found.keys()):
        has = "lacks" if entry in shape else "has"
        _fail(name, f"{gives} with {_names(sorted(found))}{of_group}: it {has} '{entry}', unlike its spec")
    for entry, own in shape.items():
        said = f"its spec says {list(own)}"
        _compare(found[entry], own, dtype[entry], name, f"{gives}{_entry(entry)}", said, of_group)


def _compare(
    found: Any, shape: tuple[int, ...], dtype: Any, name: str, gives: str, said: str, of_group: str = ""
) -> None:
    if found is None:
        _fail(name, f"{gives} as None{of_group}; {said}")
    if getattr(found, "shape", None) != tuple(shape):
        _fail(name, f"{gives} {_shape(found)}{of_group}; {said}")
    if found.dtype != dtype:
        wanted = f"its spec says {np.dtype(dtype)}" if "observation" in gives else f"it must be {np.dtype(dtype)}"
        _fail(name, f"{gives} of type {found.dtype}{of_group}; {wanted}")


def _check_same(after_reset: PyTree, after_step: PyTree, name: str, what: str) -> None:
    """A compiled loop needs the same structure, shapes and types from each step."""
    one, other = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
        for tree in (after_reset, after_step)
    )
    for path in [path for path in {**one, **other} if path not in one or path not in other][:1]:
        giver, lacking = ("reset", "step") if path in one else ("step", "reset")
        _fail(name, f"{giver} gives {what}{path} and {lacking} does not: both must give the same structure")
    for path, leaf in one.items():
        found = other[path]
        if (leaf.shape, leaf.dtype) != (found.shape, found.dtype):
            _fail(name, f"step gives {what}{path} as {_type(found)}, reset as {_type(leaf)}: they must agree")
    structures: list[Any] = [jax.tree.structure(tree) for tree in (after_reset, after_step)]
    if structures[0] != structures[1]:
        _fail(name, f"step gives a {what} whose structure differs from that of reset, in its containers or None")


def _fail(name: str, problem: str, cause: BaseException | None = None) -> NoReturn:
    raise UsageError(f"{name}: {problem}") from cause


def _shape(array: Any) -> str:
    """The shape of an array, or the type of anything else."""
    return str(list(array.shape)) if hasattr(array, "shape") else f"as a {type(array).__name__}"


def _type(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _names(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


# --------------------------------------------------------------------------------------------------------- random play


def play(env: Env, key: Key, num_steps: int) -> dict[str, PyTree]:
    """Random legal play in `NUM_ENVS` environments, each reset when its episode ends or reaches the limit.

    firsts   [B]      time steps of resets, the first ones
    before   [T, B]   what was acted on
    after    [T, B]   what the environment answered
    lived    [T, B]   ... and with the flags as `Lifetimes` settles them
    ended    [T, B]
    """
    spec, living = env.spec, Lifetimes(env)
    key_first, key_steps = jax.random.split(key)
    states, firsts = jax.vmap(living.reset)(jax.random.split(key_first, NUM_ENVS))

    def step(carry: tuple[PyTree, TimeStep, Array], key: Key) -> tuple[tuple[PyTree, TimeStep, Array], PyTree]:
        state, timestep, elapsed = carry
        key_act, key_env, key_reset = jax.random.split(key, 3)
        keys = jax.random.split(key_act, len(spec.groups))
        actions = {
            name: sample_uniform(group.action, timestep.groups[name].alive.shape, timestep.groups[name].action_mask, k)
            for (name, group), k in zip(spec.groups.items(), keys, strict=True)
        }
        keys_env = jax.random.split(key_env, NUM_ENVS)
        _, after = jax.vmap(env.step)(state[0], actions, keys_env)
        next_state, lived = jax.vmap(living.step)(state, actions, keys_env)
        ended = after.last | (elapsed + 1 >= spec.time_limit)
        fresh = jax.vmap(living.reset)(jax.random.split(key_reset, NUM_ENVS))

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        state, acted_on_next = jax.tree.map(choose, fresh, (next_state, lived))
        elapsed = jnp.where(ended, 0, elapsed + 1)
        return (state, acted_on_next, elapsed), {"before": timestep, "after": after, "lived": lived, "ended": ended}

    start = (states, firsts, jnp.zeros(NUM_ENVS, jnp.int32))
    _, steps = jax.lax.scan(step, start, jax.random.split(key_steps, num_steps))
    return {"firsts": firsts, **steps}


def check_resets(spec: EnvSpec, played: Mapping[str, Any], name: str) -> None:
    """What holds at the beginning of every episode."""
    first = played["firsts"]
    _check_numbers(first, name, "reset")
    for group, step in first.groups.items():
        for field in ("reward", "terminated"):
            if getattr(step, field).any():
                _fail(name, f"reset gives a {field} for group '{group}': nobody has acted yet")
        _check_masks(spec.groups[group].action, step.action_mask, name, f"reset gives group '{group}'")
    for field in ("last", "truncated"):
        if getattr(first, field).any():
            _fail(name, f"reset gives {field}=true: no episode ends before its first step")
    if not np.all(np.any(np.concatenate([step.alive for step in first.groups.values()], -1), -1)):
        _fail(name, "reset gives nobody alive")


def check_steps(spec: EnvSpec, played: Mapping[str, Any], name: str) -> None:
    """What holds after every step."""
    before, after, ended = played["before"], played["after"], played["ended"]
    _check_numbers(after, name, "step")
    if (after.truncated & ~after.last).any():
        _fail(name, "step gives truncated=true where last=false: only an ending can be a truncation")
    for group, step in after.groups.items():
        _check_masks(spec.groups[group].action, step.action_mask, name, f"step gives group '{group}'")
        for field, successor in (("observation", "next_observation"), ("action_mask", "next_action_mask")):
            shown, next_shown = getattr(step, field), getattr(step, successor)
            if not _same_where(~after.last, shown, next_shown):
                _fail(name, f"step gives a {successor} other than {field} for group '{group}', though no episode ended")
        lived, going = played["lived"].groups[group], ~after.last[..., None]
        if (
            spec.keeps_lifetimes
            and ((step.terminated != lived.terminated) | (going & (step.alive != lived.alive))).any()
        ):
            _fail(name, f"step lets an agent of group '{group}' die other than once; its spec says keeps_lifetimes")
        if spec.groups[group].shared_reward:
            _check_shared([lived], name, f"agents of group '{group}'", "shared_reward")
    for sharing in spec.shared_rewards:
        steps = [played["lived"].groups[group] for group in sharing]
        _check_shared(steps, name, f"groups {' and '.join(sharing)}", "shared_rewards")
    if before.state is not None and not _same_where(~after.last, after.state, after.next_state):
        _fail(name, "step gives a next_state other than state, though no episode ended")
    alive = np.concatenate([step.alive for step in played["lived"].groups.values()], -1)
    if (~alive.any(-1) & ~ended).any():
        _fail(name, "step gives nobody alive and last=false: the episode must end with its last agent")


def _same_where(mask: np.ndarray, one: PyTree, other: PyTree) -> bool:
    """Whether two trees of one structure are equal where `mask`, over the leading axes, is true."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a[mask], b[mask]) for a, b in pairs)


def _check_shared(steps: Sequence[GroupStep], name: str, whose: str, promise: str) -> None:
    """All agents that were alive when they acted learn from the same value: algorithms rely on it."""
    counts = np.concatenate([step.alive | step.terminated for step in steps], -1)
    for field in ("reward", "shaping"):
        given = [getattr(step, field) for step in steps]
        if any(values is None for values in given):
            continue
        values = np.concatenate(given, -1)
        least, most = np.where(counts, values, np.inf).min(-1), np.where(counts, values, -np.inf).max(-1)
        if (most > least).any():
            _fail(name, f"step gives {whose} different values of {field}; its spec says {promise}")


def _check_numbers(timestep: TimeStep, name: str, what: str) -> None:
    """Nothing is NaN or infinite."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(timestep)[0]:
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            value = leaf[~np.isfinite(leaf)][0]
            _fail(name, f"{what} gives {jax.tree_util.keystr(path).lstrip('.')} with a {value} in it")


def _check_masks(action: ActionSpec, mask: np.ndarray | None, name: str, gives: str) -> None:
    """Every agent has a legal action, even a dead one: actions are drawn for all."""
    if mask is None:
        return
    numbers = action.num_actions if isinstance(action, MultiDiscrete) else (mask.shape[-1],)
    for number, choice in enumerate(np.split(mask, np.cumsum(numbers)[:-1], axis=-1)):
        if not choice.any(-1).all():
            agent = int(np.argwhere(~choice.any(-1))[0][-1])
            of_choice = f" in choice {number}" if len(numbers) > 1 else ""
            _fail(name, f"{gives} an action_mask that leaves agent {agent} no legal action{of_choice}")


# ------------------------------------------------------------------------------------------------------------- summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What was checked, in words, and what is allowed but worth a second look."""

    name: str
    facts: Mapping[str, str]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        lines = [
            f"{self.name}: keeps the contract",
            *(f"  {fact:{width}}  {text}" for fact, text in self.facts.items()),
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def summarise(spec: EnvSpec, played: Mapping[str, Any], name: str) -> Checked:
    after, lived, ended = played["after"], played["lived"], played["ended"]
    num_steps, num_envs = ended.shape
    lengths = _episode_lengths(ended)
    facts = {f"group {group}": _describe_group(part, after.groups[group]) for group, part in spec.groups.items()}
    facts["state"] = "none" if spec.state_shape is None else describe_shape(spec.state_shape)
    if spec.metrics:
        facts["metrics"] = ", ".join(spec.metrics)
    facts["played"] = f"{num_steps} random steps in {num_envs} environments, {ended.sum()} episodes ended" + (
        f" after {min(lengths)} to {max(lengths)} steps" if lengths else ""
    )
    rewards = {group: np.where(step.alive | step.terminated, step.reward, 0.0) for group, step in lived.groups.items()}
    facts["rewards"] = ", ".join(f"{group} {x.min():.4g} to {x.max():.4g}" for group, x in rewards.items())
    facts["verified"] = (
        "spec, groups, shapes, types, masks, state, metrics, flags, finite numbers, reset and step of one structure"
    )
    return Checked(name=name, facts=facts, notes=tuple(_notes(spec, played, rewards)))


def _describe_group(spec: GroupSpec, step: GroupStep) -> str:
    match spec.action:
        case Discrete(num_actions=number):
            actions = f"{number} actions"
        case MultiDiscrete(num_actions=numbers):
            actions = f"choices among {' × '.join(map(str, numbers))} actions"
        case Continuous() as action:
            actions = f"{action.size} continuous actions"
    mask = ", masked" if step.action_mask is not None else ""
    agents = f"{spec.num_agents} agent{'s' if spec.num_agents > 1 else ''}"
    return f"{agents}, each sees {describe(spec)} and has {actions}{mask}"


def _episode_lengths(ended: np.ndarray) -> list[int]:
    """The lengths of the episodes that ended, from `ended [T, B]`."""
    return [length for column in ended.T for length in np.diff(np.flatnonzero(column), prepend=-1).tolist()]


def _notes(spec: EnvSpec, played: Mapping[str, Any], rewards: Mapping[str, np.ndarray]) -> list[str]:
    after, lived = played["after"], played["lived"]
    notes = []
    cut_off = np.concatenate([step.alive for step in lived.groups.values()], -1).any(-1)
    if (after.last & ~after.truncated & cut_off).any():
        notes.append("some episodes end with neither truncated nor terminated; covey takes that to be a truncation")
    if not played["ended"].any():
        notes.append("no episode ended, so endings were not checked")
    observations = [step.observation for step in played["firsts"].groups.values()]
    if all((x == x[:1]).all() for x in jax.tree.leaves(observations)):
        notes.append("every reset shows the same observations; if that is not intended, reset does not use its key")
    silent = [group for group, x in rewards.items() if not x.any()]
    if silent:
        notes.append(f"random play earned nothing for {', '.join(silent)}")
    if not spec.returns:
        notes.append("spec.returns is empty; a sentence there tells readers of results what an agent's return is")
    return notes
