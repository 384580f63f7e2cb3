"""Errors of answers divided by their bounds, computed independently of the library.

Errors are computed on the host in extended precision where NumPy has it, so that the rounding of
the measurement does not count. A NaN or Inf in an answer gives inf, which meets no bound.
"""

import numpy as np

# Unit roundoff by the character of the dtype.
UNIT = {"f": 2.0**-24, "F": 2.0**-24, "d": 2.0**-53, "D": 2.0**-53}

# Whether a long double has more digits than FP64, so that residuals of small systems are rounded less.
LONG = np.finfo(np.longdouble).nmant > 52

# The largest `ratio` of a good answer.  It is 2, not 1, because the residual that the library tested has
# rounding errors (for small n as large as the bound), and complex arithmetic has, too.
MET = 2


def residual_error(dtype, n):
    """Return the error that a kernel's residual of a small system may have, relative to ||A|| max |x|.

    In FP64 it is nearly exact.  In FP32 it is a plain sum in FP64, whose products are exact.
    """
    return 2.0**-60 if dtype.char in "dD" else 4 * n * 2.0**-53


def host(x):
    """Return x, an array of NumPy or CuPy, as a NumPy array."""
    return x.get() if hasattr(x, "get") else np.asarray(x)


def wide(x):
    """Return x on the host in extended precision."""
    x = host(x)
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble, copy=False)


def _columns(x):
    return x[:, None] if x.ndim == 1 else x


def inf_norm(a):
    """Return the infinity norm of a matrix."""
    return np.abs(wide(a)).sum(axis=1).max(initial=0)


def backward_error(a, x, b):
    """Return ``||b - A x|| / (||A|| ||x||)`` in infinity norms, the worst of all columns."""
    a, x, b = wide(a), _columns(wide(x)), _columns(wide(b))
    if x.size == 0:
        return 0.0
    if not np.isfinite(x).all():
        return np.inf
    residual = np.abs(b - a @ x).max(axis=0)
    size = inf_norm(a) * np.abs(x).max(axis=0)
    zero = residual == 0
    return float(np.where(zero, 0, residual / np.where(zero, 1, size)).max())


def ratio(a, x, b):
    """Return the backward error over ``u sqrt(n)``, u the unit roundoff of x; see MET."""
    n = max(1, host(a).shape[0])
    return backward_error(a, x, b) / (UNIT[host(x).dtype.char] * n**0.5)


def worst_ratio(a, x, b):
    """Return the largest `ratio` of stacks (m, n, n), (m, n, k)."""
    return max(ratio(*system) for system in zip(a, x, b, strict=True))


def forward_ratio(a, x, y):
    """Return ``||x - y|| / ||y||`` over ``2 cond(A) u sqrt(n)``, for two answers of one system.

    It is at most 1, to first order, if the backward errors of both answers are at most ``u sqrt(n)``
    (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002, theorem 7.2).
    """
    a = host(a)
    x, y = wide(x), wide(y)
    if x.size == 0:
        return 0.0
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return np.inf
    u = UNIT[np.result_type(host(a), np.float32).char]
    a = a.astype(np.result_type(a, np.float64))
    cond = float(np.linalg.norm(a, np.inf) * np.linalg.norm(np.linalg.inv(a), np.inf))
    gap = np.abs(_columns(x - y)).max(axis=0) / np.abs(_columns(y)).max(axis=0)
    return float(gap.max()) / (2 * cond * u * len(a) ** 0.5)


def lu_error(a, lower, upper):
    """Return ``max |A - L U|`` over ``max |U|``, for A with its rows already in pivot order.

    Elimination in roundoff u has an error of about ``n u`` times the largest entry that ever
    occurs (Higham 2002, theorem 9.3). Here the largest entry of U takes its place.
    """
    product = wide(lower) @ wide(upper)
    return float(np.abs(wide(a) - product).max() / np.abs(wide(upper)).max())
