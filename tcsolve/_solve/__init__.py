"""The public solvers: check the system, choose the device and the precision, factor, refine, report."""
