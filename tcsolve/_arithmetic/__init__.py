"""Number formats, rounding, error bounds of products, emulated sums, and parts of matrices."""
