"""Factored matrices and stacks of them, which solve many times."""
