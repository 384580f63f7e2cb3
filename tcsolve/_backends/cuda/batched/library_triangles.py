"""Triangular and diagonal matrices, one or a stack, which are their own factors.

The classes are `StackFactors` of the contract, as those of `library_factors`.
"""

import functools

import cupy
from cupy_backends.cuda.libs import cublas

from tcsolve._arithmetic.formats import PREFIX
from tcsolve._arrays import is_zero
from tcsolve._backends.cuda.batched.layouts import addresses_of, conjugate
from tcsolve._backends.cuda.lu.substitution import (
    begin_and_solve,
    invert_diagonal_blocks,
    substitute,
)
from tcsolve._backends.cuda.runtime import cublas_calls
from tcsolve._cached import cached_property
from tcsolve.kernels.launch_shapes import TRSV_COLUMNS

__all__ = [
    "LOWER",
    "OP_N",
    "UPPER",
    "Diagonal",
    "PackedTriangle",
    "Triangles",
    "ones",
    "solve_triangles",
]

# Largest number of triangles in one call of cuBLAS, which may use a dimension of a grid for them.
MOST_TRIANGLES = 65535
LOWER, UPPER = cublas.CUBLAS_FILL_MODE_LOWER, cublas.CUBLAS_FILL_MODE_UPPER
OP_N = cublas.CUBLAS_OP_N


class PackedTriangle:
    """One real triangular matrix, for our triangular solves with inverted diagonal blocks.

    If the condition number of a diagonal block is above 1e8, x may lose digits, and the verification of x
    shows this.  The rcond of the triangle is then below 1e-8.
    """

    def __init__(self, a, lower, inverses):
        self._a, self._lower, self._inverses = a, lower, inverses

    @classmethod
    def of(cls, a, lower):
        """Return the factors of a (1, n, n)."""
        inverses, _ = invert_diagonal_blocks(a[0], unit_lower=not lower, only_lower=lower)
        return cls(a, lower, inverses)

    @classmethod
    def with_solution(cls, a, lower, b, probes):
        """Return the factors, and the solutions (1, c, n) for b (n, k) and `probes` random vectors."""
        inverses, x = begin_and_solve(a[0], lower, b, probes)
        return cls(a, lower, inverses), x[None]

    @cached_property
    def info(self):
        return _has_zero(cupy.diagonal(self._a, axis1=1, axis2=2))

    def solve(self, rhs, adjoint=False):
        how = {"only_lower": self._lower, "sizes": ones(), "known": True}
        return substitute(self._a[0], rhs[0].T, adjoint, self._inverses, None, None, **how).T[None]

    def taken(self, which):
        return self


def ones():
    """Return the argument `sizes` of `substitute` for right-hand sides that need no scaling, as in FP64."""
    return _ones_of(cupy.cuda.runtime.getDevice())


@functools.cache
def _ones_of(device):
    ones = cupy.ones(max(TRSV_COLUMNS))
    cupy.cuda.get_current_stream().synchronize()  # other streams will read them
    return ones


class Triangles:
    """Triangular matrices, which are their own factors."""

    def __init__(self, a, lower, addresses):
        self._a, self._lower, self._addresses = a, lower, addresses

    @classmethod
    def of(cls, a, lower):
        """Return the factors of a (m, n, n), which must not change."""
        return cls(a, lower, addresses_of(a) if len(a) > 1 else None)

    @cached_property
    def info(self):
        return _has_zero(cupy.diagonal(self._a, axis1=1, axis2=2))

    def solve(self, rhs, adjoint=False):
        if adjoint:
            conjugate(rhs)
        op = cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T
        # cuBLAS sees the transpose, in which a lower triangle is an upper one.
        solve_triangles(self._addresses, UPPER if self._lower else LOWER, op, rhs, self._a)
        return conjugate(rhs) if adjoint else rhs

    def taken(self, which):
        return Triangles.of(self._a[cupy.asarray(which)], self._lower)


def solve_triangles(addresses, uplo, op, rhs, one=None):
    """rhs[s, j] := op(T)**-1 rhs[s, j] for the column-major triangles T at `addresses`.

    A single triangle may be given as the array `one` instead.
    """
    m, c, n = rhs.shape
    char = rhs.dtype.char
    how = (cublas.CUBLAS_SIDE_LEFT, uplo, op, cublas.CUBLAS_DIAG_NON_UNIT, n, c)
    alpha, name = cublas_calls.scalar(1, char), PREFIX[char] + "trsm"
    if m == 1 and one is not None:
        args = (alpha, one.data.ptr, n, rhs.data.ptr, n)
        getattr(cublas, name)(cublas_calls.handle(), *how, *args)
        return
    of_rhs = addresses_of(rhs)
    for first in range(0, m, MOST_TRIANGLES):
        some = slice(first, min(first + MOST_TRIANGLES, m))
        args = (alpha, addresses[some].data.ptr, n, of_rhs[some].data.ptr, n, some.stop - first)
        getattr(cublas, name + "Batched")(cublas_calls.handle(), *how, *args)


class Diagonal:
    """Diagonal matrices, given by their diagonals d (m, n)."""

    def __init__(self, d):
        self._d = d

    @cached_property
    def info(self):
        return _has_zero(self._d)

    def solve(self, rhs, adjoint=False):
        rhs /= (self._d.conj() if adjoint else self._d)[:, None]
        return rhs

    def taken(self, which):
        return Diagonal(self._d[cupy.asarray(which)])


def _has_zero(diagonals):
    return is_zero(diagonals).any(axis=1).astype(cupy.int32)
