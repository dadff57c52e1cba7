"""A 2-D simulator of many robots and its scenarios, after VMAS (Bettini et al., 2022), in JAX."""
