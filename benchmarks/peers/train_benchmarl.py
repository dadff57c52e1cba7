"""How fast BenchMARL trains; run by compare_benchmarl.py and time_to_return.py in its own environment.

    python train_benchmarl.py speed THREADS ITERATIONS ALGORITHM TASK serial|parallel
    python train_benchmarl.py curve THREADS SECONDS base|fine_tuned SEED

Prints JSON. `speed` is frames per second, evaluation and logging off, on a task by covey's name, with PettingZoo's
copies one after another or each in a process. `curve` is navigation, evaluated greedily on 500 episodes after every
iteration, which does not count as training time.
"""

import json
import os
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402
from benchmarl.algorithms import algorithm_config_registry  # noqa: E402
from benchmarl.environments import PettingZooTask, VmasTask  # noqa: E402
from benchmarl.experiment import Callback, Experiment, ExperimentConfig  # noqa: E402
from benchmarl.models.mlp import MlpConfig  # noqa: E402

TASKS = {"vmas/navigation": VmasTask.NAVIGATION, "pettingzoo/multiwalker": PettingZooTask.MULTIWALKER}


def make_experiment(
    config: ExperimentConfig, seed: int, callbacks: list, algorithm: str = "mappo", task: str = "vmas/navigation"
) -> Experiment:
    config.loggers = []
    config.evaluation = False
    config.render = False
    config.create_json = False
    return Experiment(
        task=TASKS[task].get_from_yaml(),
        algorithm_config=algorithm_config_registry[algorithm].get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        critic_model_config=MlpConfig.get_from_yaml(),
        seed=seed,
        config=config,
        callbacks=callbacks,
    )


class Clock(Callback):
    """When each iteration ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_end(self, training_td, group) -> None:
        self.times.append(time.perf_counter())


def speed(threads: int, iterations: int, algorithm: str, task: str, collection: str) -> dict:
    torch.set_num_threads(threads)
    config = ExperimentConfig.get_from_yaml()
    config.parallel_collection = collection == "parallel"
    config.max_n_iters, config.max_n_frames = iterations, None
    clock = Clock()
    make_experiment(config, 0, [clock], algorithm, task).run()
    seconds = (clock.times[-1] - clock.times[0]) / (len(clock.times) - 1)  # without the first, which warms up
    frames = config.collected_frames_per_batch(on_policy=algorithm in ("ippo", "mappo"))
    return {"frames_per_second": frames / seconds, "seconds_per_iteration": seconds}


class Curve(Callback):
    """Greedy returns by training time, start-up included, until they stay high or time is up."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.paused = 0.0
        self.points: list[dict] = []

    def on_train_end(self, training_td, group) -> None:
        elapsed = time.perf_counter() - START - self.paused
        begun = time.perf_counter()
        frames = (len(self.points) + 1) * self.experiment.config.on_policy_collected_frames_per_batch
        self.points.append({"seconds": elapsed, "frames": frames, **evaluate(self.experiment)})
        print(json.dumps(self.points[-1]), file=sys.stderr, flush=True)
        self.paused += time.perf_counter() - begun
        last = [point["return"] for point in self.points[-4:]]
        if elapsed > self.limit or (len(last) == 4 and sum(last[:3]) >= 2.7):
            print(json.dumps({"points": self.points}), flush=True)
            os._exit(0)


def evaluate(experiment: Experiment) -> dict:
    """The mean return over agents of 500 greedy episodes, each up to its own end, and who is at its goal there."""
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    env = VmasTask.NAVIGATION.get_from_yaml().get_env_fun(500, True, 12345, "cpu")()
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        rollout = env.rollout(100, policy=experiment.policy, auto_cast_to_device=True, break_when_any_done=False)
    reward = rollout["next", "agents", "reward"][..., 0].mean(-1)  # [envs, steps]
    done = rollout["next", "done"][..., 0]
    running = (done.long().cumsum(1) - done.long()) == 0
    to_goal = rollout["next", "agents", "observation"][..., 4:6].norm(dim=-1)  # [envs, steps, agents]
    last = running.sum(1) - 1
    at_goal = to_goal[torch.arange(len(last)), last] < 0.1
    return {"return": float((reward * running).sum(1).mean()), "at_goal": float(at_goal.float().mean())}


def curve(threads: int, seconds: float, fine_tuned: bool, seed: int) -> None:
    torch.set_num_threads(threads)
    config = ExperimentConfig.get_from_yaml()
    if fine_tuned:
        config.gamma, config.max_n_frames = 0.9, 10_000_000
        config.on_policy_collected_frames_per_batch, config.on_policy_n_envs_per_worker = 60_000, 600
        config.on_policy_minibatch_size = 4096
    make_experiment(config, seed, [Curve(seconds)]).run()


if __name__ == "__main__":
    if sys.argv[1] == "speed":
        print(json.dumps(speed(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:7])))
    else:
        number = int(sys.argv[5]) if len(sys.argv) > 5 else 0
        curve(int(sys.argv[2]), float(sys.argv[3]), len(sys.argv) > 4 and sys.argv[4] == "fine_tuned", number)
