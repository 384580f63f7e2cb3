"""The primitives on CuPy, with our CUDA kernels."""
