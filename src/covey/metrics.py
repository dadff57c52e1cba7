"""The names of covey's own metrics, fixed here: the same word in code, log keys, result files and documents.

A task declares its own metrics beside these (`EnvSpec.metrics`). No JAX here: the report imports this too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

# What a record is, and when it was made.
KIND = "kind"
FRAMES = "frames"
ITERATION = "iteration"
ELAPSED_SECONDS = "elapsed_seconds"
RESULTS_CHECKSUM = "results_crc32"

# The kinds of record.
TRAIN = "train"
EVALUATION = "evaluation"
ABSOLUTE = "absolute"

# Metrics of episodes.
MEAN_RETURN = "mean_return"
EPISODE_LENGTH = "episode_length"

# Metrics of time.
FRAMES_PER_SECOND = "frames_per_second"
COMPILING_SECONDS = "compiling_seconds"
COLLECTING_SECONDS = "collecting_seconds"
UPDATING_SECONDS = "updating_seconds"
EVALUATING_SECONDS = "evaluating_seconds"

# Metrics of learning from replay. An iteration without updates has no metrics of updates.
UPDATES = "updates"

# Metrics of an update. Each algorithm gives some of them, named after its group: `agents/entropy`.
UPDATE: Mapping[str, str] = {
    "policy_loss": "the policy's part of the loss",
    "value_loss": "the critic's part of the loss",
    "q_loss": "the loss of the values of actions",
    "q_value": "mean value of the actions taken; for SAC and DDPG, mean target of the critics",
    "entropy": "mean entropy of the policy, in nats",
    "kl": "estimated divergence of the updated policy from the one that collected, in nats",
    "rho": "mean ratio of the policy's probability of an action to that by the policy that took it, before clipping",
    "clip_fraction": "share of policy ratios beyond the clipping range",
    "explained_variance": "share of the returns' variance that the critic explains",
    "grad_norm": "global norm of the gradient before clipping",
    "actor_grad_norm": "global norm of the actor's gradient before clipping",
    "critic_grad_norm": "global norm of the critic's gradient before clipping",
    "epsilon": "share of random actions now",
    "noise": "standard deviation of the noise on actions now",
    "alpha": "weight of the entropy now",
    "lr": "the optimiser's step size now",
}

DESCRIPTIONS: Mapping[str, str] = {
    KIND: "what the record is: train, evaluation or absolute",
    FRAMES: "environment steps taken in training so far, over all environments",
    ITERATION: "collections and updates done so far",
    ELAPSED_SECONDS: "seconds of training so far, without interruptions",
    MEAN_RETURN: "return of an episode: the sum of an agent's rewards, mean over a group's agents, mean over groups; "
    "where groups oppose each other, over those of the task's first team",
    RESULTS_CHECKSUM: "checksum of what results.json says about an evaluation",
    EPISODE_LENGTH: "steps in an episode",
    UPDATES: "gradient updates in this iteration",
    **UPDATE,
    FRAMES_PER_SECOND: "frames collected and learned from per second",
    COMPILING_SECONDS: "seconds spent compiling",
    COLLECTING_SECONDS: "seconds spent collecting",
    UPDATING_SECONDS: "seconds spent updating",
    EVALUATING_SECONDS: "seconds spent evaluating",
}

# These differ between two runs that are otherwise equal to the bit.
WALL_CLOCK = frozenset(
    {
        ELAPSED_SECONDS,
        FRAMES_PER_SECOND,
        COMPILING_SECONDS,
        COLLECTING_SECONDS,
        UPDATING_SECONDS,
        EVALUATING_SECONDS,
    }
)


def group_return(group: str) -> str:
    """A group's return: the mean over its agents of the sum of their rewards."""
    return f"{group}_return"


def scored_groups(teams: Sequence[Sequence[str]], opponents: Collection[str] = ()) -> tuple[str, ...]:
    """The groups in `mean_return`: those of the first team, without fixed `opponents`, which are never scored.

    If opponents play all groups of a team, the next team counts as the first.
    """
    own = (tuple(group for group in team if group not in opponents) for team in teams)
    return next((team for team in own if team), ())


def shown_groups(teams: Sequence[Sequence[str]], opponents: Collection[str] = ()) -> tuple[str, ...]:
    """The groups whose returns are shown one by one, in place of `mean_return`.

    All groups, if teams oppose each other (one wins what the other loses) or fixed `opponents` play; otherwise none.
    """
    return tuple(group for team in teams for group in team) if len(teams) > 1 or opponents else ()
