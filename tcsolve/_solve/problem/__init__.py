"""What is asked: the system, its structure, its options, its right-hand sides."""
