"""Recording: the run directory and everything in it, who may write to it, and loggers beside it."""
