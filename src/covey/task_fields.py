"""Other names for fields of tasks. No JAX here: the report reads older configurations with this.

VMAS has a switch for a shared reward in some scenarios, under three names. covey's field is `reward`, for every task.
"""

from __future__ import annotations

from covey.registry import OtherNames, Switch

_SHARED = Switch(field="reward", off="individual", on="shared")
SHARED_REWARD_NAMES: OtherNames = dict.fromkeys(("shared_rew", "shared_reward", "share_reward"), _SHARED)
