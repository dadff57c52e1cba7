"""Configuration: dataclasses with every default, how a command line becomes one, and how fields explain themselves."""
