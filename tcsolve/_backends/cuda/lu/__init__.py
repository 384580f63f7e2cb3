"""Our own LU on CuPy, and solves with its factors."""
