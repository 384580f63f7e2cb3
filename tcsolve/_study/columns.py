"""The columns of the rows of a study."""

__all__ = ["COLUMNS", "CRASHED", "FACTS", "NESTED", "RAISED", "SKIPPED"]

# What is known of a matrix before any plan is tried.
FACTS = ("n", "nnz", "dtype", "kappa", "kappa_norm", "kappa_scaled", "skeel", "dominance", "spread")
# Columns with many values in one row; tables leave them out.
NESTED = ("history", "spectrum")
SKIPPED, CRASHED, RAISED = "SKIPPED", "CRASHED", "RAISED"
# The columns of a table, in order.  All other columns, such as the fields of the plan, come after 'plan'.
COLUMNS = (
    *("matrix", "source", *FACTS, "plan"),
    *("status", "converged", "reason", "steps", "inner_steps", "cycles", "rungs"),
    *("backward_error", "bound", "forward_error", "growth", "rcond"),
    *("seconds", "factor_seconds", "solve_seconds", "joules", "watts", "gflops_per_watt", "energy"),
    *("device", "blas_threads", "model", "panels", "seed", "rhs"),
    *("study", "key", "date", "versions"),
)
