"""The built-in names, one module per kind or suite. Strings and plain fields only: listing them imports no JAX."""

from covey.catalog import algorithms, gigastep, jaxmarl, jumanji, loops, models, pettingzoo, probes, simulators, vmas  # noqa: F401
