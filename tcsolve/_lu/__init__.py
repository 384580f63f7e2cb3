"""LU with partial pivoting: norms, scaling, elimination, factors."""
