"""The functions of scipy.linalg other than `solve`, with verified answers."""
