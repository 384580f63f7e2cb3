"""Products of matrices on CuPy."""
