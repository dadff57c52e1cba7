"""Environments with PettingZoo's interface: its own, those of mpe2 and MAgent2, and anybody's.

    recipe.py     how an environment is made and described; the fields that all of these tasks share
    spaces.py     Gymnasium's spaces as specs, and how observations are written into arrays
    parallel.py   environments in which all agents act at once
    turns.py      games in which one agent acts at a time
    general.py    any environment, by the name of its module

    sisl.py, butterfly.py, mpe.py, classic.py, magent2.py
                  tasks with fields of their own

None of these files imports PettingZoo or Gymnasium before an environment is made, so tasks can be listed without them.
"""
