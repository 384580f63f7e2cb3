"""Compiling, launching, recording: what all CUDA modules stand on."""
