"""Overcooked: two cooks bring onion soups to the counter (`overcooked/`), and its successor with partial view, recipes
and more layouts (`overcooked_v2/`).

Soups are rare, so the suite also offers a shaped reward for useful actions on the way (filling a pot, taking a plate or
a soup). The reward is the sparse one, shared by the team; the agent's own shaped one, times `shaping`, is added for
learning only, and `experiment.shaping_frames` lets it fall to zero. Returns never contain it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from covey.envs.base import SuiteConfig
from covey.envs.jaxmarl.core import NEVER, SuiteEnv, draw_pictures, import_suite, on_host, quiet
from covey.errors import unknown_value
from covey.types import Array, MetricSpec, PyTree

V2_CELLS = {0: "", 1: "", 4: "goal", 5: "pot", 6: "recipe", 7: "button", 9: "plates"}
V2_FIRST_PILE = 10  # from here on, piles of ingredients

RETURNS = "the team's sparse reward, 20 per soup, without any shaping"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OvercookedConfig(SuiteConfig):
    time_limit: int = 400
    layout: str = "cramped_room"  # the kitchen: `covey list tasks overcooked` shows the names
    shaping: float = 1.0  # weight of the shaped reward, which is for learning only; 0: none
    random_reset: bool = False  # start with random positions, hands and pots


@dataclasses.dataclass(frozen=True, kw_only=True)
class OvercookedV2Config(OvercookedConfig):
    agent_view_size: int | None = None  # cells that a cook sees in each direction; null: all
    random_agent_positions: bool = False  # cooks start anywhere; false: where the layout says
    start_cooking_interaction: bool = False  # a full pot waits to be switched on; false: it starts by itself
    negative_rewards: bool = False  # a wrong soup costs what a right one earns
    sample_recipe_on_delivery: bool = False  # a new recipe is drawn after each soup; false: one for the whole episode
    indicate_successful_delivery: bool = False  # cooks see whether the last soup was right


def make_overcooked(config: OvercookedConfig) -> SuiteEnv:
    module = import_suite("overcooked")
    check_layout(config.layout, module.overcooked_layouts)
    with quiet():
        # The last layer of the observation lights up 40 steps before the suite's limit. With no limit it stays dark: a
        # truncation, through which values bootstrap, is not part of the task.
        suite = module.Overcooked(
            layout=module.overcooked_layouts[config.layout], random_reset=config.random_reset, max_steps=NEVER
        )
    return OvercookedEnv(suite, config.shaping)


def make_overcooked_v2(config: OvercookedV2Config) -> SuiteEnv:
    module = import_suite("overcooked_v2")
    check_layout(config.layout, module.overcooked_v2_layouts)
    suite = module.OvercookedV2(
        layout=config.layout,
        random_reset=config.random_reset,
        agent_view_size=config.agent_view_size,
        random_agent_positions=config.random_agent_positions,
        start_cooking_interaction=config.start_cooking_interaction,
        negative_rewards=config.negative_rewards,
        sample_recipe_on_delivery=config.sample_recipe_on_delivery,
        indicate_successful_delivery=config.indicate_successful_delivery,
        max_steps=NEVER,
    )
    return OvercookedV2Env(suite, config.shaping)


def check_layout(layout: str, layouts: Any) -> None:
    if layout not in layouts:
        raise unknown_value("task.layout", layout, list(layouts))


class OvercookedEnv(SuiteEnv):
    metrics: ClassVar = {"deliveries": MetricSpec(reduction="sum", unit="soups")}

    shaping: float

    def __init__(self, suite: Any, shaping: float):
        super().__init__(suite, returns=RETURNS)
        self.shaping = shaping

    def shaped_rewards(self, info: Any) -> dict[str, Array]:
        shaped = info["shaped_reward"]
        return {"agents": self.shaping * jnp.stack([shaped[agent] for agent in self.suite.agents])}

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        return {"deliveries": rewards["agent_0"] > 0}

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        with quiet():
            from jaxmarl.viz.overcooked_visualizer import TILE_PIXELS, OvercookedVisualizer

        padding = self.suite.agent_view_size - 1
        pictures = []
        for state in map(on_host, states):
            # The viewer's public methods open a window; this one returns the pixels.
            picture = OvercookedVisualizer._render_grid(
                state.maze_map[padding:-padding, padding:-padding],
                tile_size=TILE_PIXELS,
                highlight_mask=None,
                agent_dir_idx=state.agent_dir_idx,
                agent_inv=state.agent_inv,
            )
            pictures.append(np.asarray(picture, np.uint8))
        return pictures


class OvercookedV2Env(OvercookedEnv):
    def __init__(self, suite: Any, shaping: float):
        super().__init__(suite, shaping)
        suite.action_spaces = {agent: suite.action_space() for agent in suite.agents}

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        return {"deliveries": after.new_correct_delivery}

    def render(self, states: Sequence[PyTree]) -> list[np.ndarray]:
        return draw_pictures(states, self.draw)

    def draw(self, axes: Any, state: PyTree) -> None:
        """Cells as letters, cooks as triangles, and what lies or is held in small print. The suite's viewer needs a
        package that JaxMARL does not install."""
        from matplotlib.patches import Rectangle

        height, width, _ = state.grid.shape
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), title=f"step {state.step}")
        for (y, x), cell in np.ndenumerate(state.grid[..., 0]):
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="0.75" if cell else "white", edgecolor="0.5"))
            axes.text(x, y, V2_CELLS.get(int(cell), f"I{cell - V2_FIRST_PILE}"), ha="center", va="center")
            axes.text(x, y + 0.35, item_name(state.grid[y, x, 1]), ha="center", va="center", fontsize=7)
        for index, (x, y) in enumerate(zip(state.agents.pos.x, state.agents.pos.y, strict=True)):
            axes.plot(x, y, marker="^v><"[state.agents.dir[index]], markersize=16, color=f"C{index}")
            axes.text(x, y + 0.35, item_name(state.agents.inventory[index]), ha="center", va="center", fontsize=7)


def item_name(item: int) -> str:
    """The suite's code of an item: a bit for a plate, one for cooked, then two for the count of each ingredient."""
    counts = [(int(item) >> shift) & 3 for shift in range(2, 10, 2)]
    ingredients = "".join(str(index) * count for index, count in enumerate(counts))
    return ("plate " if item & 1 else "") + ("soup " if item & 2 else "") + ingredients
