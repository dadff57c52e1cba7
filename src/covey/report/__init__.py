"""From result files to statistics, figures, tables and the page. Imports nothing that trains.

runs.py         files and folders of covey, BenchMARL, Mava and OG-MARL  →  list[Run], list[Problem]
anchors.py      what a random team earns and what was published, per task
statistics.py   bootstrap, profiles, improvement, tests, ranks: NumPy arrays in, NumPy arrays out
summary.py      list[Run] and options  →  Summary: every number that the page and the tables show
"""
