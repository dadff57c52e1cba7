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
register_loop(
    "actor_learner",
    "covey.loops.actor_learner:build_actor_learner",
    config="covey.loops.config:ActorLearnerConfig",
    description="actors step environments or simulators beside the learner, which learns from their batches in order",
    like="online",
    host=True,
)
register_loop(
    "actor_replay",
    "covey.loops.actor_learner:build_actor_replay",
    config="covey.loops.config:ActorReplayConfig",
    description="actors step environments or simulators beside the learner, which learns from a replay buffer",
    like="replay",
    host=True,
)
