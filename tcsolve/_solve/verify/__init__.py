"""Residuals and backward errors of an answer."""
