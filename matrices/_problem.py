"""A test problem: a matrix, rounded to its dtype, and right-hand sides with a known solution."""

import operator
from dataclasses import dataclass

import numpy as np

from ._spectrum import standard_normal

__all__ = ["Problem", "check_dtype", "problem_of"]

_DTYPES = tuple(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A linear system with its solution.

    Attributes
    ----------
    name : str
        Name of the matrix.
    a : ndarray, shape (n, n), C order
        The matrix.
    b : ndarray, shape (n,) or (n, nrhs)
        ``a @ x_true``, computed in double precision and rounded to the dtype of ``a``. So ``x_true``
        has a small backward error, but for an ill-conditioned ``a`` the exact solution may differ from it. If
        ``a`` is not finite, ``b`` is the vector that would be ``x_true``.
    x_true : ndarray, shape of b, or None
        The solution that ``b`` was made from. None if ``a`` is not finite. If ``a`` is singular,
        there are other solutions.
    cond : float or None
        2-norm condition number of ``a`` before it is rounded to its dtype, if known.
    """

    name: str
    a: np.ndarray
    b: np.ndarray
    x_true: np.ndarray | None
    cond: float | None

    @property
    def n(self):
        """The order of the matrix."""
        return self.a.shape[0]

    def __repr__(self):
        cond = "None" if self.cond is None else f"{self.cond:.4g}"
        return f"Problem(name={self.name!r}, n={self.n}, dtype={self.a.dtype}, cond={cond})"


def check_dtype(dtype):
    dtype = np.dtype(dtype)
    if dtype not in _DTYPES:
        raise TypeError(f"dtype is {dtype}; it must be one of {', '.join(map(str, _DTYPES))}")
    return dtype


def problem_of(name, a, cond, rng, *, dtype, nrhs, rhs):
    """Round the matrix to its dtype, and make right-hand sides with a known solution."""
    dtype = check_dtype(a.dtype if dtype is None else dtype)
    if np.iscomplexobj(a) and dtype.kind != "c":
        raise TypeError(f"{name} is complex; dtype is {dtype}, it must be complex64 or complex128")
    nrhs = operator.index(nrhs)
    if nrhs < 1:
        raise ValueError(f"nrhs is {nrhs}; it must be at least 1")
    finite = np.isfinite(a).all()
    with np.errstate(over="ignore"):
        a = np.ascontiguousarray(a, dtype)
    if finite and not np.isfinite(a).all():
        raise ValueError(f"{name} has entries beyond the range of {dtype}; use a wider dtype")

    shape = (len(a), nrhs) if nrhs > 1 else len(a)
    if rhs == "ones":
        x = np.ones(shape, dtype)
    elif rhs == "random":
        x = standard_normal(rng, shape, dtype).astype(dtype)
    else:
        raise ValueError(f"rhs is {rhs!r}; it must be 'ones' or 'random'")
    if not finite:
        # Make b finite, so that the solver must notice that the matrix is not.
        return Problem(name, a, x, None, cond)
    double = np.promote_types(dtype, np.float64)
    b = a.astype(double, copy=False) @ x.astype(double, copy=False)
    return Problem(name, a, b.astype(dtype), x, cond)
