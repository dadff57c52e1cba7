"""Whether a simulator keeps the contract: `covey check` for tasks that are stepped in processes.

It plays the simulator at random in this process, in the way that a worker steps it, and applies the rules that compiled
environments must keep (`envs.check`).
"""

from __future__ import annotations

import dataclasses
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


def check_simulator(source: Source, *, seed: int = 0) -> Checked:
    """Plays a few hundred random legal steps; raises UsageError for the first thing that is wrong."""
    name = f"task {source.name}"
    try:
        simulators = [source.simulator() for _ in range(NUM_COPIES)]
        check_spec(simulators[0], name)  # type: ignore[arg-type]
        description = describe(source, simulators[0])
        tree = layout.layout(description)
        arrays = layout.arrays(tree, NUM_COPIES, bytearray(layout.num_bytes(tree, NUM_COPIES)))
        arrays["seed"][...] = seed
        copies = [
            Episodes(simulator, source.config, layout.rows(arrays, number), number)
            for number, simulator in enumerate(simulators)
        ]
        played = play(description.spec, arrays, copies, min(2 * description.spec.time_limit, MOST_STEPS), seed)
    except UsageError:
        raise
    except CoveyError as error:
        raise UsageError(f"{name}: {error}") from error
    check_resets(description.spec, played, name)
    check_steps(description.spec, played, name)
    return summarise(description.spec, played, name)


def play(spec: EnvSpec, arrays: dict[str, Any], copies: list[Episodes], num_steps: int, seed: int) -> dict[str, Any]:
    """Random legal play, as `envs.check.play` describes it."""
    random = np.random.default_rng(seed)
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
