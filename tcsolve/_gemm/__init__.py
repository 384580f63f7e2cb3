"""The public products of matrices."""
