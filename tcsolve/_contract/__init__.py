"""The interface of a backend: primitives of linear algebra for NumPy and for CuPy."""
