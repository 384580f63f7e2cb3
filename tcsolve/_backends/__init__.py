"""The primitives on each array library, and the choice between them."""
