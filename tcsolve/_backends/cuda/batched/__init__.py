"""Stacks of systems, and systems with a structure, on CuPy."""
