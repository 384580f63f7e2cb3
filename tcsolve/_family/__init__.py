"""The functions of scipy.linalg beside `solve`, with verified answers."""
