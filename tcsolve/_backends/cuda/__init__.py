"""The primitives on CuPy."""
