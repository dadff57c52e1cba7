"""Whether a simulator keeps the contract: `covey check` for tasks that are stepped in processes.

It plays the simulator at random in this process, in the way that a worker steps it, and applies the rules that compiled
environments must keep (`envs.check`).
"""

from __future__ import annotations

import dataclasses
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from covey.envs.check import Checked, check_resets, check_spec, check_steps, summarise
from covey.envs.host import layout
from covey.envs.host.episodes import Episodes, choice_widths
from covey.envs.host.pool import as_timestep
from covey.envs.host.simulator import Source
from covey.envs.host.worker import STEP, describe, run
from covey.errors import CoveyError, UsageError
from covey.specs import Continuous, EnvSpec
from covey.types import TimeStep

NUM_COPIES = 2
MOST_STEPS = 256
SHOWN_FIELDS = {  # of a group, and what messages call them
    "next_observation": "observations",
    "observation": "observations",
    "next_action_mask": "action masks",
    "action_mask": "action masks",
    "reward": "rewards",
    "shaping": "shaping",
    "terminated": "terminations",
    "alive": "living agents",
}
STEPS_AGAIN = 64  # that are played a second time with the same seed


def check_simulator(source: Source, *, seed: int = 0) -> Checked:
    """Plays a few hundred random legal steps; raises UsageError for the first thing that is wrong."""
    name = f"task {source.name}"
    try:
        described = source.simulator()
        check_spec(described, name)  # type: ignore[arg-type]
        description = describe(source, described)
        tree = layout.layout(description)
        arrays = layout.arrays(tree, NUM_COPIES, bytearray(layout.num_bytes(tree, NUM_COPIES)))
        arrays["seed"][...] = seed
        copies = make_copies(source, arrays)
        num_steps = min(2 * description.spec.time_limit, MOST_STEPS)
        played = play(description.spec, arrays, copies, num_steps, seed)
        fresh, used = (
            play(description.spec, arrays, those, min(num_steps, STEPS_AGAIN), seed)
            for those in (make_copies(source, arrays), copies)
        )
    except UsageError:
        raise
    except CoveyError as error:
        text = str(error).removeprefix(source.name).removeprefix(":").strip()
        raise UsageError(f"{name}: {text}") from error
    check_seeds(played, fresh, used, name)
    check_resets(description.spec, played, name)
    check_steps(description.spec, played, name)
    checked = summarise(description.spec, played, name)
    remains = difference(played, used)
    if remains:
        note = f"the same seed gave {remains} after other episodes had been played"
        checked = dataclasses.replace(checked, notes=(*checked.notes, note))
    return checked


def make_copies(source: Source, arrays: dict[str, Any]) -> list[Episodes]:
    """New copies of the simulator, each with its rows."""
    return [
        Episodes(source.simulator(), source.config, layout.rows(arrays, number), number) for number in range(NUM_COPIES)
    ]


def play(spec: EnvSpec, arrays: dict[str, Any], copies: list[Episodes], num_steps: int, seed: int) -> dict[str, Any]:
    """Random legal play, as `envs.check.play` describes it."""
    random = np.random.default_rng(seed)
    arrays["episode"][...] = arrays["elapsed"][...] = 0
    for copy in copies:
        copy.begin()
    firsts = shown(arrays)
    before, steps = firsts, []
    for _ in range(num_steps):
        for name, group in spec.groups.items():
            mask = getattr(before.groups[name], "action_mask", None)
            arrays["actions"][name][...] = random_actions(group.action, arrays["actions"][name].shape, mask, random)
        run(STEP, copies)
        after = shown(arrays)
        steps.append({"before": before, "after": after, "lived": at_the_end(before, after), "ended": after.last})
        before = after
    return {"firsts": firsts, **jax.tree.map(lambda *leaves: np.stack(leaves), *steps)}


def check_seeds(played: dict[str, Any], fresh: dict[str, Any], used: dict[str, Any], name: str) -> None:
    """Raises UsageError unless the same seed and actions gave the same again in `fresh` copies.

    What copies give that were `used` before may differ, because resuming plays episodes again in new processes only.
    But where resets differ there, and not between two seeds in fresh copies, the seed is not used.
    """
    found = difference(played, fresh)
    if found:
        raise UsageError(f"{name}: the same seed gave {found}; draw everything random from reset's seed")
    one, other = (jax.tree.map(itemgetter(number), fresh["firsts"]) for number in (0, 1))
    if first_difference(played["firsts"], used["firsts"]) and not first_difference(one, other):
        raise UsageError(f"{name}: reset ignores its seed: other seeds give the same, and the same seed gives another")


def difference(played: dict[str, Any], again: dict[str, Any]) -> str | None:
    """The first thing in which the same episodes differed, in words."""
    found = first_difference(played["firsts"], again["firsts"])
    if found:
        return f"{found} at a reset"
    for number in range(len(again["ended"])):
        one, other = (jax.tree.map(itemgetter(number), steps["after"]) for steps in (played, again))
        found = first_difference(one, other)
        if found:
            return f"{found} at step {number + 1}"
    return None


def first_difference(one: TimeStep, other: TimeStep) -> str | None:
    """The first field in which two time steps differ, in words."""
    for group, step in one.groups.items():
        for field, words in SHOWN_FIELDS.items():
            pair = getattr(step, field), getattr(other.groups[group], field)
            if not all(map(np.array_equal, *map(jax.tree.leaves, pair))):
                return f"other {words} of group {group}"
    for field in ("last", "truncated", "state", "next_state", "metrics"):
        pair = getattr(one, field), getattr(other, field)
        if not all(map(np.array_equal, *map(jax.tree.leaves, pair))):
            return f"another {field}" if field != "metrics" else "other metrics"
    return None


def at_the_end(before: TimeStep, after: TimeStep) -> TimeStep:
    """`after`, with `alive` as it was at the end of the step's own episode, before any reset."""
    groups = {
        name: dataclasses.replace(
            group,
            alive=np.where(  # type: ignore[arg-type]
                after.last[..., None], before.groups[name].alive & ~group.terminated, group.alive
            ),
        )
        for name, group in after.groups.items()
    }
    return dataclasses.replace(after, groups=groups)


def shown(arrays: dict[str, Any]) -> TimeStep:
    """The current time steps of all copies, copied out of the shared memory."""
    return as_timestep(layout.map_leaves(np.copy, arrays["step"]))


def random_actions(action: Any, shape: tuple[int, ...], mask: Any, random: np.random.Generator) -> np.ndarray:
    """Legal actions, each with equal probability."""
    if isinstance(action, Continuous):
        low, high = np.maximum(action.low, -1e6), np.minimum(action.high, 1e6)
        return random.uniform(low, high, shape)
    widths = choice_widths(action)
    scores = random.random((*shape[:2], sum(widths)))
    scores = scores if mask is None else np.where(mask, scores, -1.0)
    chosen = [part.argmax(-1) for part in np.split(scores, np.cumsum(widths)[:-1], axis=-1)]
    return np.stack(chosen, axis=-1).reshape(shape)
