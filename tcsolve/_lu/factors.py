"""The factors of our own LU and of the LU of LAPACK or cuSOLVER, and solves with them."""

import copy
import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arithmetic.formats import inverses_serve
from tcsolve._arithmetic.matrix_parts import column_tops
from tcsolve._contract.lu import Packed
from tcsolve._contract.vectors import solve_scaled

__all__ = ["NO_BAD_PIVOT", "BlockedFactors", "NativeFactors", "PivotedLU", "factor_native"]

# `info` starts with this column, larger than any real one; the first bad pivot lowers it.
NO_BAD_PIVOT = 2**31 - 1


class PivotedLU(NamedTuple):
    """Computed factors of a matrix.  M stands for their exact product P^T L U.

    A solve with the factors applies M^-1, or M^-T if `transposed`.

    Attributes
    ----------
    lu : array, shape (n, n)
        Both triangles; the diagonal is that of U.
    order : array of int, shape (n,)
        Row i of L U is row order[i] of M.
    transposed : bool
    """

    lu: Any
    order: Any
    transposed: bool


class BlockedFactors:
    """The factors of our own LU.

    The report of the factorization is read when one of its values is first needed.  Solves may be launched
    before that; their results are used only if the factors turn out good (`are_good`).

    Attributes
    ----------
    packed : Packed
        The factors.  The inverses of diagonal blocks are dropped if they turn out inaccurate.
    """

    def __init__(self, ops, packed, read_report):
        self._ops, self.packed = ops, packed
        self._read_report, self._found = read_report, None

    @classmethod
    def of(cls, ops, packed, report):
        """Return the factors; the `report` of `LUOps.finish` is read later."""
        return cls(ops, packed, ops.reading(report))

    lu = property(lambda self: self.packed.lu)
    order = property(lambda self: self.packed.order)
    inverses = property(lambda self: self.packed.inverses)

    def __getstate__(self):
        self._read()
        return self.__dict__ | {"_read_report": None}

    def _read(self):
        """Return (bad pivot, number of row swaps, misled); the first call waits for the factorization."""
        if self._found is None:
            (report,) = self._read_report()
            info, swapped, condition, beyond = (float(x) for x in report)
            bad_pivot = 0 if info == NO_BAD_PIVOT else int(info)
            if self.inverses is not None:
                if bad_pivot or not inverses_serve(condition, self.lu.dtype.char):
                    self.packed = self.packed._replace(inverses=None)
            self._found = bad_pivot, int(swapped), beyond != 0
        return self._found

    @property
    def bad_pivot(self):
        """1-based column of the first pivot that is zero or not finite; 0 if all are good."""
        return self._read()[0]

    @property
    def misled(self):
        """Whether A did not behave as a dominant matrix; then these factors must not be used.

        Either a pivot was not the largest entry of its column, or an entry was larger than a small multiple
        of its expected bound.
        """
        return self._read()[2]

    @property
    def nbytes(self):
        """Number of bytes of the factors."""
        return sum(x.nbytes for x in self.packed if x is not None)

    def solve_scaled(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, to the precision of the factors; b is FP64, its entries of any size."""
        return self._ops.lu.solve_packed(self.packed, b, adjoint)

    def aside(self, name, body, then=None):
        """Start body(), which solves with these factors, as `Ops.aside`.

        The results are valid only if `are_good`.
        """
        if self.inverses is None:
            return None
        return self._ops.aside(self.lu, (self.order, self.inverses), name, body, then)

    def ahead(self, a, b, steps):
        """Start the first refinement steps with these factors of a, as `LUOps.ahead`.

        The results are valid only if `are_good`.
        """
        if self.inverses is None:
            return None
        return self._ops.lu.ahead(self.packed, a, b, steps)

    @property
    def are_good(self):
        """Whether solves that were started before the report was read are valid."""
        return not self.bad_pivot and not self.misled and self.inverses is not None

    def widened(self):
        """Return the same factors converted to FP64, to solve with fewer rounding errors."""
        wide = np.result_type(self.lu.dtype, np.float64)
        twin = copy.copy(self)
        twin.packed = Packed(self.lu.astype(wide), self.order, None)
        return twin

    def triangles(self):
        """Return `PivotedLU`."""
        return PivotedLU(self.lu, self.order, False)

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.lu.diagonal(), -1 if self._read()[1] % 2 else 1

    def gecon(self, norm_one):
        """Return None: these factors have no estimator; use `_lu.norms.condest`."""
        return None


@dataclass(frozen=True)
class NativeFactors:
    """The factors of getrf, from LAPACK or cuSOLVER."""

    ops: Any
    dtype: Any
    factors: Any
    bad_pivot: int
    nbytes: int
    misled = False  # getrf searches whole columns for its pivots

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, in the dtype of the factors."""
        return self.factors.solve(b, adjoint)

    def solve_scaled(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, to the precision of the factors; b is FP64, its entries of any size."""
        solve = functools.partial(self.solve, adjoint=adjoint)
        sizes = column_tops(self.ops, b)
        return solve_scaled(self.ops.xp, sizes, solve, b, self.dtype)

    def ahead(self, a, b, steps):
        """Return None: nothing is started; the steps are launched one by one."""
        return None

    def aside(self, name, body, then=None):
        """Return None: nothing is started (see `Ops.aside`)."""
        return None

    def widened(self):
        """Return the same factors converted to FP64, to solve with fewer rounding errors."""
        wide = np.result_type(self.dtype, np.float64)
        lu = self.ops.converted(self.factors.lu, wide)
        # The inverses of diagonal blocks are too inaccurate for solves in FP64.
        factors = self.factors._replace(lu=lu, inverses=None)
        return replace(self, factors=factors, dtype=wide, nbytes=lu.nbytes)

    def triangles(self):
        """Return `PivotedLU`."""
        return PivotedLU(self.factors.lu, self.factors.order, self.factors.transposed)

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        swaps = self.factors.swaps
        odd = np.count_nonzero(swaps != np.arange(len(swaps))) % 2
        return self.factors.lu.diagonal(), -1 if odd else 1

    def gecon(self, norm_one):
        """Return the estimate of rcond in the 1-norm, or None if the library has no estimator."""
        return self.factors.gecon(norm_one)


def factor_native(ops, a, dtype, overwrite_a=False):
    """Factor a by getrf in `dtype`, and return `NativeFactors`; a is modified only with `overwrite_a`."""
    factors, bad_pivot = ops.lu.getrf(a, dtype, overwrite_a)
    return NativeFactors(ops, dtype, factors, bad_pivot, a.size * dtype.itemsize)
