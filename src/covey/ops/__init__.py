"""Batched pure functions: returns, losses, distributions, normalisation, schedules. They hold no state, and import
nothing of covey but `covey.types`."""
