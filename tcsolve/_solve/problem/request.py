"""A call of `solve` or `factor`: its options, checked together with its arrays."""

import time
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arguments import require_count
from tcsolve._backends.select import ops_for
from tcsolve._checks import check_array, check_options, check_shapes, require_finite, result_dtype
from tcsolve._errors import InputError
from tcsolve._plan import Plan
from tcsolve._steps import note

__all__ = [
    "RESIDUALS",
    "Request",
    "check_factor",
    "check_solve",
    "real_if",
    "require_finite_arrays",
    "require_residual",
]

# The names of the residuals of a solve (see `ladder.residuals`).
RESIDUALS = "fp64", "double-double"


class Request(NamedTuple):
    """The checked options of a solve.

    `with_fp64` tells whether the residual is 'fp64'.  Without `estimate`, only x and its status are
    wanted.  Then the ladder does not time its phases, and rcond may be a bound instead of an estimate if it
    is known to be at least machine epsilon.
    """

    lower: bool
    transposed: bool
    check_finite: bool
    precision: str | Plan
    device: str
    estimate: bool
    residual: str  # one of RESIDUALS
    structure: str | None  # its long name
    start: float  # `time.perf_counter` at the start of the call
    shape: tuple | None  # of x; None if SciPy divides by the one element of A
    dtype: Any  # of x
    lent: bool = False  # a may be overwritten

    @property
    def with_fp64(self):
        return self.residual == "fp64"


def check_solve(a, b, assume_a, options):
    """Return (ops, a, b, request) for the arguments of `solve`, or raise an error.

    The options are the first ones of a `Request`, up to `residual`.
    """
    note("check")
    start, (_, transposed, _, precision, device, _, residual) = time.perf_counter(), options
    require_residual(residual)
    structure = check_options(assume_a, precision, device)
    a, b = check_array(a, "a"), check_array(b, "b")
    ops = ops_for(a, b)
    if a.ndim < 2:
        a = a.reshape(1, -1)
    if transposed and a.dtype.kind == "c":
        raise NotImplementedError(
            "scipy.linalg.solve can currently not solve a^T x = b for a complex a, nor can tcsolve.solve: "
            "pass np.swapaxes(a, -1, -2) instead of transposed=True"
        )
    one = a.size == 1 and _is_one_element(a, b)
    shape = None if one else check_shapes(a, b)[0]
    return ops, a, b, Request(*options, structure, start, shape, result_dtype(a, b))


def require_residual(residual):
    """Raise an InputError unless this is the name of a residual."""
    if not isinstance(residual, str) or residual not in RESIDUALS:
        raise InputError(f"residual is {residual!r}; it needs one of {', '.join(RESIDUALS)}")


def _is_one_element(a, b):
    """Tell whether SciPy divides b by the one element of a; if not, a and b are a stack of 1 x 1 systems."""
    rows = 1 if b.ndim == 0 else b.shape[0] if b.ndim == 1 else b.shape[-2]
    return rows != 1 or (a.ndim <= 2 and b.ndim <= 2)


def check_factor(a, assume_a, precision, device, nrhs):
    """Return (ops, a, nrhs) for the arguments of `factor`, or raise an error."""
    note("check")
    structure = check_options(assume_a, precision, device)
    nrhs = require_count("factor: nrhs", nrhs)
    if structure not in (None, "general"):
        raise InputError(
            f"factor: assume_a is {assume_a!r}; only 'general' matrices can be factored, "
            "use solve for the others"
        )
    a = check_array(a, "a")
    if a.ndim < 2 or a.shape[-2] != a.shape[-1] or a.shape[-1] == 0:
        raise InputError(
            f"factor: a has shape {a.shape}; square matrices (..., n, n), n > 0, are needed"
        )
    return ops_for(a), a, nrhs


def require_finite_arrays(xp, **arrays):
    """Raise the error that SciPy raises if one of the arrays, given by name, holds NaN or Inf."""
    for name, x in arrays.items():
        require_finite(bool(xp.isfinite(x).all()), name)


def real_if(a, dtype):
    """Return `dtype`, the dtype of x, or the real dtype of the same precision if a is real."""
    if dtype.kind == "c" and a.dtype.kind != "c":
        return np.dtype(np.float32 if dtype.char == "F" else np.float64)
    return dtype
