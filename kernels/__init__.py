"""The CUDA sources of the GPU primitives; the module `registry` lists them."""
