"""Refinement of approximate solutions."""
