"""Refinement with factors of one precision, and the step to the next."""
