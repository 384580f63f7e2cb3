"""Stacks of systems on CuPy."""
