"""The built-in loops."""

from covey.registry import register_loop

register_loop(
    "online",
    "covey.loops.online:build_online_loop",
    config="covey.loops.config:OnlineConfig",
    description="collects in compiled environments and learns from what was just collected",
)
register_loop(
    "replay",
    "covey.loops.online:build_replay_loop",
    config="covey.loops.config:ReplayConfig",
    description="collects into a replay buffer and learns from samples of it",
)
