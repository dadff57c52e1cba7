"""Loops: how experience reaches `update`."""
