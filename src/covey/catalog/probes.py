"""The probe environments."""

from covey.registry import register_task

_PROBES = {
    "constant": ("ConstantReward", "reward 1 for anything: every value is 1"),
    "observed": ("ObservedReward", "the reward is what is seen: values equal observations"),
    "delayed": ("DelayedReward", "reward after two steps: values γ and 1"),
    "truncation": ("TruncationOnly", "reward 1 until the time limit cuts: the value is 1 / (1 − γ)"),
    "death": ("Death", "an agent dies mid-episode: its value counts its own steps only"),
    "copy": ("CopyAction", "name what is seen: best 1, chance 0.5"),
    "masked": ("MaskedActions", "the best action is illegal: best 1, a broken mask 10"),
    "choices": ("ManyChoices", "multi-discrete actions: best 1"),
    "target": ("ContinuousTarget", "continuous actions: best 1"),
    "selfish": ("Selfish", "continuous actions: each agent's best is 1, the group's sum wants agent 0 at −1"),
    "rows": ("Rows", "observations [N, F]: best 1"),
    "image_and_vector": ("ImageAndVector", "an image and a vector in a dictionary: best 1, by one of them alone 0.5"),
    "compare": ("Compare", "above the team's mean or not: best 1, each alone below 0.55"),
    "memory": ("Memory", "a cue to remember: best 1, without memory 0.5"),
    "two_step": ("TwoStep", "two agents must agree in the second step: best 8, by a sum of values 7"),
    "groups": ("TwoGroups", "two unlike groups: best 1 and 0.5"),
    "team": ("Team", "two groups share a reward: values are 1 plus what one of them sees"),
    "team_two_step": ("TeamTwoStep", "two groups must agree in the second step: best 8, each group by itself 7"),
    "team_target": ("TeamTarget", "two groups with continuous actions share a reward: best 2"),
}
for _name, (_class, _description) in _PROBES.items():
    register_task(
        f"probe/{_name}",
        f"covey.envs.probes:{_class}",
        config="covey.envs.probes:ProbeConfig",
        description=_description,
    )
