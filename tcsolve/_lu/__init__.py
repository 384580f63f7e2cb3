"""LU with partial pivoting: norms, scaling, elimination and factors."""
