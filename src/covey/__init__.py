"""covey: trains, benchmarks and evaluates teams of learning agents, compiled end to end in JAX."""
