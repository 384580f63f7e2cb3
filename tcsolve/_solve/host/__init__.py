"""Systems that LAPACK solves, and stacks of small systems, on the host."""
