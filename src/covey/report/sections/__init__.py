"""The sections of the report's page: functions from a summary to markup, or to None if there is nothing to show.

    overview.py      what was run, on which machines, and what is odd about it
    over_tasks.py    leaderboard, learning curves, profiles, probability of improvement
    by_task.py       curve, final values, references and tests of each task
    pictures.py      animations of teams
    cost.py          how long runs took; speeds of machines
    reproduce.py     how to train each run again

Tables and text are complete without the script, which only draws the charts and makes the toolbar work.
"""
