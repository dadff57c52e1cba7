"""Simulators that are not JAX: ordinary Python, stepped in worker processes.

    simulator.py   what a simulator is: `reset` and `step` of one copy, in NumPy
    episodes.py    one copy's episodes: seeds, time limit, who is alive, checks; runs in the simulator's process
    layout.py      where in shared memory each copy's answers and actions are
    worker.py      a process that steps several copies
    pool.py        many copies in several processes, as the loop sees them
    env.py         such a task as an `Env`, for specs and wrappers

    check.py       `covey check` for such a task

Everything else in this folder adapts simulators of other packages. Only `env.py`, `pool.py` and `check.py` import JAX:
worker processes do without it.
"""
