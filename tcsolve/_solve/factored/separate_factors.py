"""Factors of each matrix of a stack by itself, for precisions other than FP64.

`ops.vendor` factors a whole stack, but only in FP64.
"""

from typing import Any, NamedTuple

import numpy as np

from tcsolve._backends.select import numpy_ops
from tcsolve._solution import code_of
from tcsolve._solve.factored.factorization import Factorization
from tcsolve._solve.vendor.system import Part

__all__ = ["SeparateFactors"]


class SeparateFactors(NamedTuple):
    """A `Factorization` for each matrix of a stack; the systems are solved one after the other."""

    each: tuple
    nbytes: int
    bytes_planned: int

    @classmethod
    def of(cls, ops, a, precision, nrhs):
        """Factor the matrices of a (m, n, n), which are kept."""
        ops = numpy_ops if ops.device == "cpu" else ops
        how = {"nrhs": nrhs, "check_finite": False}
        each = tuple(Factorization.of(ops, one, precision, **how) for one in a)
        held = sum(f.nbytes for f in each) - a.nbytes
        # The matrices are factored one after the other, and the factors of each one are kept.
        planned = held + max((f.bytes_planned for f in each), default=0)
        return cls(each, held, planned)

    @property
    def precision(self):
        """The names of the precisions, joined by '+'."""
        return "+".join(dict.fromkeys(f.precision for f in self.each)) or "fp64"

    @property
    def rungs(self):
        """Every precision that was tried."""
        return tuple(dict.fromkeys(name for f in self.each for name in f.rungs))

    def solved(self, xp, b, trans):
        """Return the `Part` for the columns b (m, n, k) of A x = b, or of A^T x = b or A^H x = b."""
        how = {"trans": trans, "check_finite": False}
        found = [f.solve_ex(columns, **how) for f, columns in zip(self.each, b, strict=True)]
        never = np.zeros(len(found), bool)
        return Part(
            x=xp.stack([s.x for s in found]),
            codes=np.array([code_of(s.status) for s in found]),
            rconds=np.array([s.rcond for s in found]),
            error=np.array([s.backward_error for s in found]),
            steps=np.array([s.iterations for s in found]),
            apart=never,
            spoilt=never,
        )

    def rconds(self):
        """Return rcond of each matrix, (m,)."""
        return np.array([f.rcond() for f in self.each], float)

    def determinants(self, dtype: Any):
        """Return the signs of the determinants, in a dtype, and the logarithms of their moduli, (m,) each."""
        found = [f.slogdet() for f in self.each]
        signs = np.array([one.sign for one in found], dtype)
        return signs, np.array([one.logabsdet for one in found], float)
