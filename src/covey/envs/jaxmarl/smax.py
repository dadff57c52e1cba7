"""SMAX, JaxMARL's StarCraft-like battles, against the suite's scripted enemy.

The reward is the team's: a fallen unit continues to earn what its comrades win. So every unit stays `alive` to the
learner until the battle ends, with one legal action once it has fallen (stop), and `terminated` only with the battle.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, ClassVar

import jax.numpy as jnp

from covey.envs.base import SuiteConfig
from covey.envs.jaxmarl.core import NEVER, SuiteEnv, import_suite
from covey.errors import unknown_value
from covey.types import Array, MetricSpec, PyTree


class AttackMode(enum.Enum):
    """Whom the scripted enemy shoots first."""

    closest = "the nearest unit in range"
    random = "any unit in range"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmaxConfig(SuiteConfig):
    """The defaults are those of JaxMARL's own baselines. The reward is shared by the suite itself."""

    time_limit: int = 100
    map: str = "2s3z"  # the battle: `covey list tasks smax` shows the names
    see_enemy_actions: bool = True  # units see what enemies in sight did last
    walls_cause_death: bool = True  # units that touch the edge of the map die; false: they stop there
    attack_mode: AttackMode = AttackMode.closest  # whom the built-in enemy shoots first
    won_battle_bonus: float = 1.0  # reward for winning


def make_smax(config: SmaxConfig) -> SuiteEnv:
    scenarios = import_suite("smax.smax_env").MAP_NAME_TO_SCENARIO
    if config.map not in scenarios:
        raise unknown_value("task.map", config.map, list(scenarios))
    suite = import_suite("smax").HeuristicEnemySMAX(
        scenario=scenarios[config.map],
        see_enemy_actions=config.see_enemy_actions,
        walls_cause_death=config.walls_cause_death,
        attack_mode=config.attack_mode.name,
        won_battle_bonus=config.won_battle_bonus,
        max_steps=NEVER,
    )
    return SmaxEnv(
        suite,
        returns="the team's, the same for all: the share of the enemies' health destroyed, plus a bonus for winning",
    )


class SmaxEnv(SuiteEnv):
    shared_reward = True
    metrics: ClassVar = {"win_rate": MetricSpec(reduction="last")}

    def action_masks(self, state: PyTree) -> dict[str, Array]:
        masks = self.suite.get_avail_actions(state)
        return {"agents": jnp.stack([masks[agent] for agent in self.suite.agents]).astype(bool)}

    def global_state(self, observations: Any, state: PyTree) -> Array:
        """The suite's, with positions as shares of the map, as a unit sees its own. Unscaled they reach 32, and blow up
        networks that compute weights from them (QMIX's mixer valued battles worth 2 at 30)."""
        suite = self.suite
        num_units = suite.num_allies + suite.num_enemies
        units, types = jnp.split(observations["world_state"], [num_units * len(suite.own_features)])
        size = jnp.array([suite.map_width, suite.map_height], units.dtype)
        units = units.reshape(num_units, -1).at[:, 1:3].divide(size)
        return jnp.concatenate([units.reshape(-1), types])

    def measure(self, before: PyTree, after: PyTree, rewards: Any) -> dict[str, Array]:
        allies, enemies = jnp.split(after.state.unit_alive, [self.suite.num_allies])
        return {"win_rate": ~enemies.any() & allies.any()}

    def draw(self, axes: Any, state: PyTree) -> None:
        """Allies blue, enemies red, each with its health as a bar and its type as a letter. The suite's viewer saves
        and reloads a whole figure per unit of time."""
        from matplotlib.patches import Circle, Rectangle

        suite, units = self.suite, state.state
        axes.set(xlim=(0, suite.map_width), ylim=(0, suite.map_height), title=f"step {units.step}")
        for index in units.unit_alive.nonzero()[0]:
            (x, y), kind = units.unit_positions[index], units.unit_types[index]
            radius = float(suite.unit_type_radiuses[kind])
            axes.add_patch(Circle((x, y), radius, color="tab:blue" if index < suite.num_allies else "tab:red"))
            axes.text(x, y, suite.unit_type_shorthands[kind], color="white", fontsize=6, ha="center", va="center")
            health = units.unit_health[index] / suite.unit_type_health[kind]
            axes.add_patch(Rectangle((x - 0.6, y + radius + 0.1), 1.2 * float(health), 0.2, color="tab:green"))
