"""Many experiments at once: what a benchmark is, running it on this machine, and how fast this machine is."""
