"""Two CPU devices against one: how much faster the same training runs.

The experiment is that of `throughput.py`: 64 environments in all, rollouts of 128, 4 epochs of 2 minibatches, two
layers of 128. With two devices, each has half of the environments, and gradients are averaged. JAX fixes its devices
when it starts, so every measurement is a process of its own; the two numbers of devices are measured in turn and the
best of each counts. Other programs on the machine's cores make the ratio smaller: run it on a quiet one.
"""

from __future__ import annotations

import common

TARGET = 1.7


def main(arguments: list[str] | None = None) -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--task", default="lbf/8x8-2p-2f-coop")
    parser.add_argument("--devices", type=int, default=2, help="compared with one (default 2)")
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--rollout", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3, help="processes for each number of devices")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, of which the best counts, in each process")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each round")
    options = parser.parse_args(arguments)

    shared = ["--task", options.task, "--parts", "training"]
    for name in ("environments", "rollout", "rounds", "seconds"):
        shared += [f"--{name}", str(getattr(options, name))]
    rates: dict[int, list[float]] = {1: [], options.devices: []}
    for _ in range(options.repeats):
        for number, measured in rates.items():
            figures = common.run_script("throughput.py", "--devices", str(number), *shared)
            measured.append(figures["rows"][0]["frames_per_second"]["training"])
    ratio = max(rates[options.devices]) / max(rates[1])
    print(f"{options.task}, training")
    for number, measured in rates.items():
        print(f"  {number} device{'s' if number > 1 else ' '}  {max(measured):12,.0f} frames/s")
    print(f"  ratio     {common.verdict(ratio, TARGET)}")
    figures = {"task": options.task, "frames_per_second": rates, "ratio": ratio, "target": TARGET}
    common.write_figures(options.output, figures)


if __name__ == "__main__":
    main()
