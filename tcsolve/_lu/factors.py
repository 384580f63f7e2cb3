"""What a factorization leaves, and the solves with it: our own LU's factors, and the library's."""

from dataclasses import dataclass
from typing import Any

__all__ = ["NO_BAD_PIVOT", "BlockedFactors", "NativeFactors", "factor_native"]

# info starts at a column no matrix has; the first bad pivot lowers it.
NO_BAD_PIVOT = 2**31 - 1


class BlockedFactors:
    """P A = L U, packed row-major; order[i] is the row of A that became row i.

    How the factorization went is read when it is first asked for: what is launched before that runs on
    without waiting, and counts only if the factors turn out good.

    Attributes
    ----------
    inverses : array or None
        Inverses of diagonal blocks, where the device solves with them; None once they are known to be bad.
    """

    def __init__(self, ops, lu, order, report, inverses=None):
        self.ops, self.lu, self.order, self.inverses = ops, lu, order, inverses
        self._read_report, self._found = ops.reading(report), None

    def __getstate__(self):
        self._read()
        return self.__dict__ | {"_read_report": None}

    def _read(self):
        """Return the first bad pivot and the number of swapped rows, waiting for the factorization once."""
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
        """1-based column of the first pivot that is zero or not finite, 0 if there is none."""
        return self._read()[0]

    @property
    def misled(self):
        """Whether a pivot was not the largest of its column, or entries not as small, as was expected.

        These factors must not be used.
        """
        return self._read()[2]

    @property
    def nbytes(self):
        """Bytes held."""
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
        """Return A**-1 b, or A**-H b, for FP64 b of any size, to the precision of the factors."""
        x = self.ops.substitute(self.lu, b, adjoint, self.inverses, self.order)
        return _solve_scaled(self, self.lu.dtype, b, adjoint) if x is None else x

    def aside(self, name, body, then=None):
        """Start body(), which solves with these factors, as `Ops.aside`; it counts if they prove good."""
        if self.inverses is None:
            return None
        return self.ops.aside(self.lu, (self.order, self.inverses), name, body, then)

    def ahead(self, a, b, steps):
        """Start the first steps with these factors of a, as `Ops.ahead`; they count if they prove good."""
        if self.inverses is None:
            return None
        return self.ops.ahead(self.lu, self.inverses, self.order, a, b, steps)

    @property
    def are_good(self):
        """Whether what was solved before anything was known of the factors stands."""
        return not self.bad_pivot and not self.misled and self.inverses is not None

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.lu.diagonal(), -1 if self._read()[1] % 2 else 1

    def gecon(self, norm_one):
        """Return None: the caller's own estimator is needed."""
        return None


@dataclass(frozen=True)
class NativeFactors:
    """The library's own LU (LAPACK's or cuSOLVER's getrf)."""

    ops: Any
    dtype: Any
    factors: Any
    bad_pivot: int
    nbytes: int
    misled = False  # the library looks for every pivot

    def solve(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, in the dtype of the factors."""
        return self.ops.getrs(self.factors, b, adjoint)

    def solve_scaled(self, b, adjoint=False):
        """Return A**-1 b, or A**-H b, for FP64 b of any size, to the precision of the factors."""
        return _solve_scaled(self, self.dtype, b, adjoint)

    def ahead(self, a, b, steps):
        """Start nothing: the library's solves are done one by one."""
        return None

    def aside(self, name, body, then=None):
        """Start nothing: the library's solves leave nothing beside them."""
        return None

    def diagonal(self):
        """Return the diagonal of U and the sign of the permutation."""
        return self.ops.diagonal(self.factors)

    def gecon(self, norm_one):
        """Return the library's rcond, or None if it has no estimator."""
        return self.ops.gecon(self.factors, norm_one)


def _solve_scaled(factors, dtype, b, adjoint):
    """Bring the columns of b to size 1, where small ones cannot underflow in `dtype`, solve, undo it."""
    xp = factors.ops.xp
    size = factors.ops.column_max(b)
    size = xp.where(size > 0, size, 1.0)
    return factors.solve((b / size).astype(dtype), adjoint) * size


def factor_native(ops, a, dtype, overwrite_a=False):
    """Factor a with the library's getrf in `dtype`; a is not modified without leave."""
    factors, bad_pivot = ops.getrf(a, dtype, overwrite_a)
    return NativeFactors(ops, dtype, factors, bad_pivot, a.size * dtype.itemsize)
