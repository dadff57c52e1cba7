"""Loops: how experience reaches `update`, compiled from end to end."""
