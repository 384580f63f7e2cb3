"""Studies of convergence: many matrices times many plans, one row for each run."""
