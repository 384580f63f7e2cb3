"""Compiling, launching and recording of kernels, for all other CUDA modules."""
