"""Factors of a stack in parts, of transposes, of a real A for complex b, or computed only when needed.

Each has `solve(rhs, adjoint=False)` and `taken(which)`, as the factors of `ops.vendor.factor`.
"""

import numpy as np

from tcsolve._arrays import as_host
from tcsolve._solve.vendor.system import as_read, some_of

__all__ = ["InParts", "Later", "Paired", "Turned"]


class InParts:
    """The LU factors of a long stack a (m, n, n), at most `size` matrices in one part."""

    def __init__(self, xp, parts, starts):
        self._xp, self._parts, self._starts = xp, parts, starts

    @classmethod
    def of(cls, ops, a, columns, size):
        """Factor a; `columns` as in `ops.vendor.factor`."""
        starts = range(0, len(a), size)
        parts = [ops.vendor.factor(a[i : i + size], "general", columns) for i in starts]
        return cls(ops.xp, parts, np.array([*starts, len(a)]))

    @property
    def info(self):
        return self._xp.concatenate([part.info for part in self._parts])

    @property
    def nbytes(self):
        return sum(part.nbytes for part in self._parts)

    def solve(self, rhs, adjoint=False):
        for part, start, stop in zip(self._parts, self._starts, self._starts[1:], strict=False):
            some = rhs[start:stop]
            some[...] = part.solve(some, adjoint)
        return rhs

    def diagonal(self):
        """Return the diagonals of U (m, n), and the signs of the permutations (m,)."""
        diagonals, signs = zip(*(part.diagonal() for part in self._parts), strict=True)
        return self._xp.concatenate(diagonals), self._xp.concatenate(signs)

    def taken(self, which):
        """Return the factors of some of the matrices; their numbers must increase."""
        which = as_host(which)
        cuts = np.searchsorted(which, self._starts)
        numbers = [
            which[i:j] - start for i, j, start in zip(cuts, cuts[1:], self._starts, strict=False)
        ]
        parts = [p.taken(some) for p, some in zip(self._parts, numbers, strict=True) if some.size]
        starts = np.cumsum([0, *(some.size for some in numbers if some.size)])
        return InParts(self._xp, parts, starts)

    # `_xp` is a module, which cannot be copied or pickled.  Only factors on the host are copied, so it is
    # NumPy.

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_xp"}

    def __setstate__(self, state):
        self.__dict__.update(state, _xp=np)


class Turned:
    """The factors of A^T, or of A^H if `conjugated`, from those of A."""

    def __init__(self, xp, factors, conjugated):
        self._xp, self._factors, self._conjugated = xp, factors, conjugated

    def solve(self, rhs, adjoint=False):
        if self._conjugated or rhs.dtype.kind != "c":
            return self._factors.solve(rhs, not adjoint)
        conj = self._xp.conj
        return conj(self._factors.solve(conj(rhs), not adjoint))

    def taken(self, which):
        return Turned(self._xp, self._factors.taken(which), self._conjugated)


class Paired:
    """The factors of a real A, for complex right-hand sides."""

    def __init__(self, xp, factors):
        self._xp, self._factors = xp, factors

    def solve(self, rhs, adjoint=False):
        c = rhs.shape[1]
        pairs = self._factors.solve(self._xp.concatenate([rhs.real, rhs.imag], axis=1), adjoint)
        rhs.real[...], rhs.imag[...] = pairs[:, :c], pairs[:, c:]
        return rhs

    def taken(self, which):
        return Paired(self._xp, self._factors.taken(which))


class Later:
    """The factors of systems that one launch has solved; they are computed when `solve` is first called.

    `probes` is the number of random vectors that are expected with b.  `which` has the numbers of the
    systems; None stands for all.
    """

    def __init__(self, ops, system, probes, which=None):
        self._ops, self._system, self._probes, self._which = ops, system, probes, which
        self._factors = None

    def solve(self, rhs, adjoint=False):
        """Solve as the factors of `vendor.factor` do."""
        if self._factors is None:
            system = some_of(self._ops, self._system, self._which)
            system, k = as_read(self._ops, system), system.b.shape[2]
            self._factors = self._ops.vendor.factor(system.a, system.kind, k + self._probes)
        return self._factors.solve(rhs, adjoint)

    def taken(self, which):
        """Return the factors of some of the systems, whose matrices are not copied yet."""
        which = as_host(which)
        which = which if self._which is None else self._which[which]
        return Later(self._ops, self._system, self._probes, which)
