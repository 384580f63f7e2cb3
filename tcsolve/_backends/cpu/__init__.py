"""The primitives on NumPy: LAPACK and emulated tensor cores."""
