"""Number formats, rounding, and the error bounds of products: pure functions."""
