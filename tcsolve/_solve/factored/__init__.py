"""Factored matrices and stacks, with factors that are used for many solves."""
