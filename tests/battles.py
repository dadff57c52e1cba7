"""Stand-ins for packages that no registry has: the interface that covey relies on, and games of counting under it.

They are not the packages. What is tested with them is covey's side: who lives, what ends, what is cut, masks, metrics.
Each can be written into a folder as a package, to be found like the real one.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

# Three units and two enemies. Unit 0 is dead after step 2; an attack (6 or 7) takes one of an enemy's three lives.
SMACV2 = """
    import numpy as np

    class StarCraftCapabilityEnvWrapper:
        def __init__(self, **kwargs):
            self.kwargs = kwargs
            self.env = Game(kwargs)

        def __getattr__(self, name):
            return getattr(self.env, name)

    class Game:
        def __init__(self, kwargs):
            self.capabilities = kwargs["capability_config"]
            self.n_agents = self.capabilities["n_units"]
            self.n_enemies = self.capabilities["n_enemies"]
            self.lost = kwargs.get("debug", False)
            self.episode_limit = 4

        def get_env_info(self):
            return {
                "state_shape": 4, "obs_shape": 3, "n_actions": 6 + self.n_enemies, "n_agents": self.n_agents,
                "episode_limit": self.episode_limit,
            }

        def reset(self, episode_config=None):
            self.elapsed, self.lives = 0, [3] * self.n_enemies
            return self.get_obs(), self.get_state()

        def step(self, actions):
            for unit, action in enumerate(actions):
                assert self.get_avail_actions()[unit][action] == 1, (unit, action)
                if action >= 6:
                    self.lives[action - 6] = max(0, self.lives[action - 6] - 1)
            self.elapsed += 1
            if self.lost and self.elapsed == 3:
                return 0, True, {}
            won = not any(self.lives)
            info = {"battle_won": won, "dead_allies": int(self.elapsed >= 2), "dead_enemies": self.lives.count(0)}
            over = won or self.elapsed >= self.episode_limit
            return 20.0 * won, over, info

        def get_obs(self):
            return [np.array([unit, self.elapsed, 0.5], np.float64) for unit in range(self.n_agents)]

        def get_state(self):
            return np.array([self.elapsed, *self.lives, 0.0][:4], np.float64)

        def get_avail_actions(self):
            dead = [1] + [0] * (5 + self.n_enemies)
            living = [0] + [1] * (5 + self.n_enemies)
            return [dead if unit == 0 and self.elapsed >= 2 else living for unit in range(self.n_agents)]

        def close(self):
            pass
"""

# Two units. Actions: nothing (of the dead), stop, four ways, the enemy; space of 7, masks of 8. The enemy has as many
# lives as a global generator said, and unit 0 is dead from step 3 on; both are where `lives` begins with 9.
SMACLITE = """
    import random

    import gymnasium
    import numpy as np

    class SMACliteEnv(gymnasium.Env):
        def __init__(self, map_info):
            self.observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (3,), np.float32)] * 2)
            self.action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(7)] * 2)
            self.hopeless = map_info == "hopeless"

        def reset(self, *, seed=None, options=None):
            self.elapsed, self.lives = 0, random.randint(2, 5)
            return self.seen(), {}

        def step(self, actions):
            assert all(type(action) is int for action in actions)
            for mask, action in zip(self.get_avail_actions(), actions):
                assert mask[action], action
            self.elapsed += 1
            self.lives -= sum(action == 6 for action in actions)
            over = self.lives <= 0 or all(self.dead(unit) for unit in (0, 1))
            return self.seen(), 10.0 * (self.lives <= 0), over, False, {}

        def dead(self, unit):
            return self.elapsed >= 3 and (unit == 0 or self.hopeless)

        def seen(self):
            noise = float(np.random.uniform(-1, 1))
            return tuple(np.array([unit, self.elapsed / 10, noise], np.float32) for unit in (0, 1))

        def get_avail_actions(self):
            return [np.eye(8)[0] if self.dead(unit) else np.array([0, 1, 1, 1, 1, 1, 1, 0]) for unit in (0, 1)]

        def get_state(self):
            return np.array([self.elapsed, self.lives], np.float32)

    for name in ("2s3z", "hopeless"):
        gymnasium.register(f"smaclite/{name}-v0", entry_point=SMACliteEnv, kwargs={"map_info": name})
"""

# Agents of both teams take turns in the list. Each sees its number and the step; an action's first entry is its reward.
# Whoever acts with more than 0.5 crashes; the suite's own limit is an ending.
GIGASTEP = """
    import jax
    import jax.numpy as jnp

    KNOWN = [f"identical_5_vs_5_{seen}_vec_void_{kind}" for seen in ("fobs", "pobs") for kind in ("cont", "disc")]
    STATE_FIRST = False

    class Box:
        low, high = -jnp.ones(3), jnp.ones(3)

    class Discrete:
        n = 27

    def make_scenario(name, **arguments):
        if name not in KNOWN:
            raise ValueError(f"Scenario {name} not found.")
        return Env(name, **arguments)

    class Env:
        def __init__(self, name, max_episode_length=500):
            self.n_agents, self.teams = 5, jnp.array([0, 1, 0, 1, 1])
            self.action_space = Discrete() if name.endswith("disc") else Box()
            self.limit = max_episode_length

        def reset(self, rng):
            state = ({"alive": jnp.ones(5), "drawn": jax.random.uniform(rng)}, {"elapsed": jnp.int32(0)})
            return self.order(self.seen(state), state)

        def step(self, state, actions, rng):
            agents, game = state
            chosen = actions[:, 0] if actions.ndim == 2 else actions / 26.0
            alive = agents["alive"] * (chosen <= 0.5)
            after = ({**agents, "alive": alive}, {"elapsed": game["elapsed"] + 1})
            left = [(alive * (self.teams == team)).sum() for team in (0, 1)]
            over = (left[0] == 0) | (left[1] == 0) | (after[1]["elapsed"] >= self.limit)
            rewards = chosen * agents["alive"]
            return *self.order(self.seen(after), after), rewards, (1 - alive).astype(bool), over

        def seen(self, state):
            agents, game = state
            step = jnp.broadcast_to(game["elapsed"].astype(jnp.float32), 5)
            return jnp.stack([jnp.arange(5.0), step, jnp.broadcast_to(agents["drawn"], 5)], axis=-1)

        def order(self, observations, state):
            return (state, observations) if STATE_FIRST else (observations, state)
"""


def write_package(folder: Path, module: str, source: str) -> Path:
    """A package in `folder` whose `module` (`smacv2.env.starcraft2.wrapper`) has this source."""
    *packages, last = module.split(".")
    place = folder
    for name in packages:
        place = place / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "__init__.py").touch()
    if packages:
        (place / f"{last}.py").write_text(textwrap.dedent(source))
    else:
        (folder / last).mkdir(parents=True)
        (folder / last / "__init__.py").write_text(textwrap.dedent(source))
    return folder
