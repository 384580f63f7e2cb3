"""CUDA sources of the GPU primitives: `registry` is the table of them."""
