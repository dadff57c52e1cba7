"""Batched pure functions: returns, losses, distributions, normalisation, schedules. No state, no covey beyond types."""
