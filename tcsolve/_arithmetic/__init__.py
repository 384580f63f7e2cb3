"""Number formats, and what rounding does: pure functions."""
