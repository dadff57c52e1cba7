"""Benchmarks, which are many experiments at once, and the speed of this machine.

benchmark.py         what a benchmark is: from the arguments of `covey benchmark` to a list of experiments
benchmark_files.py   the files in a benchmark's folder: benchmark.yaml and the status of each experiment
local.py             runs a benchmark on this machine
pool.py              hands experiments to worker processes and records their results
worker_process.py    a worker process, as seen by the process that started it
worker.py            a worker process, as seen from inside: trains one experiment after another
progress.py          how far a running experiment is, read from its metrics.jsonl
overview.py          what the user sees meanwhile
devices.py           the machine's cores and accelerators, and how workers share them

speed.py             `covey speed`: measures, prints and writes
speed_rules.py       what limits the speed, and which settings to recommend
timing.py            compiles and times the parts of an experiment
"""
