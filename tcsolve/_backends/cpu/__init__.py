"""The primitives on NumPy: LAPACK, and tensor cores emulated."""
