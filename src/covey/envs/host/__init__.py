"""Simulators that are not JAX: ordinary Python, stepped in worker processes.

    simulator.py   what a simulator is: `reset` and `step` of one copy, in NumPy
    episodes.py    episodes of one copy: seeds, time limit, lives, checks; it runs where the simulator does
    layout.py      where in shared memory each copy's answers and actions are
    worker.py      a process that steps several copies
    pool.py        many copies in several processes, as the loop sees them
    env.py         such a task as an `Env`, for specs and wrappers

Everything else in this folder adapts simulators of other packages. Only `env.py` and `pool.py` may import JAX: worker
processes do without it.
"""
