"""The factors of our own LU and of the LU of LAPACK or cuSOLVER, and solves with them."""

from dataclasses import dataclass
from typing import Any

__all__ = ["NO_BAD_PIVOT", "BlockedFactors", "NativeFactors", "factor_native"]

# `info` starts with this column, larger than any real one; the first bad pivot lowers it.
NO_BAD_PIVOT = 2**31 - 1


class BlockedFactors:
    """P A = L U, packed row-major; order[i] is the row of A that became row i.

    The report of the factorization is read when one of its values is first needed.  Work that was launched
    before does not wait for it; its results are used only if the factors are good.

    Attributes
    ----------
    inverses : array or None
        Inverses of diagonal blocks, if the device solves with them; None if they turned out inaccurate.
    """

    def __init__(self, ops, lu, order, report, inverses=None):
        self.ops, self.lu, self.order, self.inverses = ops, lu, order, inverses
        self._read_report, self._found = ops.reading(report), None

    def __getstate__(self):
        self._read()
        return self.__dict__ | {"_read_report": None}

    def _read(self):
        """Return (bad pivot, number of swapped rows, misled); the first call waits for the factorization."""
        if self._found is None:
            (report,) = self._read_report()
            info, swapped, worst, beyond = (float(x) for x in report)
            bad_pivot = 0 if info == NO_BAD_PIVOT else int(info)
            inverses = self.inverses
            if inverses is not None:
                self.inverses = None if bad_pivot else self.ops.trusted(inverses, worst)
            self._found = bad_pivot, int(swapped), beyond != 0
        return self._found

    @property
    def bad_pivot(self):
        """1-based column of the first pivot that is zero or not finite; 0 if all are good."""
        return self._read()[0]

    @property
    def misled(self):
        """Whether an expectation of a dominant matrix failed; then these factors must not be used.

        Either a pivot was not the largest entry of its column, or an entry was larger than its bound.
        """
        return self._read()[2]

    @property
    def nbytes(self):
        """Number of bytes of the factors."""
        extra = 0 if self.inverses is None else self.inverses.nbytes
        return self.lu.nbytes + self.order.nbytes + extra

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, in the dtype of the factors."""
        if not adjoint:
            return self.ops.solve_factored(self.lu, b[self.order], False)
        y = self.ops.solve_factored(self.lu, b, True)
        x = self.ops.xp.empty_like(y)
        x[self.order] = y
        return x

    def solve_scaled(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, to the precision of the factors; b is FP64, its entries of any size."""
        x = self.ops.substitute(self.lu, b, adjoint, self.inverses, self.order)
        return _solve_scaled(self, self.lu.dtype, b, adjoint) if x is None else x

    def aside(self, name, body, then=None):
        """Start body(), which solves with these factors, as `Ops.aside`; valid only if `are_good`."""
        if self.inverses is None:
            return None
        return self.ops.aside(self.lu, (self.order, self.inverses), name, body, then)

    def ahead(self, a, b, steps):
        """Start the first refinement steps with these factors of a, as `Ops.ahead`; valid if `are_good`."""
        if self.inverses is None:
            return None
        return self.ops.ahead(self.lu, self.inverses, self.order, a, b, steps)

    @property
    def are_good(self):
        """Whether solves that were started before the report was read are valid."""
        return not self.bad_pivot and not self.misled and self.inverses is not None

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
        return self.ops.getrs(self.factors, b, adjoint)

    def solve_scaled(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, to the precision of the factors; b is FP64, its entries of any size."""
        return _solve_scaled(self, self.dtype, b, adjoint)

    def ahead(self, a, b, steps):
        """Return None: nothing is started, because steps with getrs are launched one by one."""
        return None

    def aside(self, name, body, then=None):
        """Return None: nothing is started, because getrs leaves no room on the device for other work."""
        return None

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.ops.diagonal(self.factors)

    def gecon(self, norm_one):
        """Return the estimate of rcond by gecon, or None if the library has no estimator."""
        return self.ops.gecon(self.factors, norm_one)


def _solve_scaled(factors, dtype, b, adjoint):
    """Scale each column of b to a largest entry of 1, so that it fits in `dtype`; solve; undo the scaling."""
    xp = factors.ops.xp
    size = factors.ops.column_max(b)
    size = xp.where(size > 0, size, 1.0)
    return factors.solve((b / size).astype(dtype), adjoint) * size


def factor_native(ops, a, dtype, overwrite_a=False):
    """Factor a by getrf in `dtype`, and return `NativeFactors`; a is modified only with `overwrite_a`."""
    factors, bad_pivot = ops.getrf(a, dtype, overwrite_a)
    return NativeFactors(ops, dtype, factors, bad_pivot, a.size * dtype.itemsize)
