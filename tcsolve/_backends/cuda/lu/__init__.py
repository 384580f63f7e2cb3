"""Our own LU on CuPy, and the solves with its factors."""
