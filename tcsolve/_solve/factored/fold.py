"""The right-hand sides of a stack, ordered so that each matrix occurs once."""

import math

import numpy as np

__all__ = ["Fold"]


class Fold:
    """How a stack of matrices and a stack of right-hand sides broadcast.

    Several right-hand sides of one matrix become columns of one system.  So no matrix is copied.

    Parameters
    ----------
    batch : tuple of int
        The leading dimensions of both stacks, broadcast against each other.
    own, extra : list of int
        The axes of the batch that count matrices, and those that count right-hand sides of one matrix.
    """

    def __init__(self, batch, own, extra):
        self.batch, self._own, self._extra, self.is_plain = batch, own, extra, not extra

    @classmethod
    def of(cls, of_a, of_b):
        """Compare the leading dimensions of matrices (..., n, n) and of right-hand sides (..., n, k)."""
        batch = np.broadcast_shapes(of_a, of_b)
        of_a = (1,) * (len(batch) - len(of_a)) + of_a
        axes = range(len(batch))
        extra = [i for i in axes if of_a[i] == 1 != batch[i]]
        return cls(batch, [i for i in axes if i not in extra], extra)

    def _sizes(self, axes):
        return [self.batch[i] for i in axes]

    def columns(self, xp, b):
        """Return b (..., n, k) as (m, n, K): the K right-hand sides of each of m matrices."""
        (*_, n, k), d = b.shape, len(self.batch)
        b = xp.broadcast_to(b, (*self.batch, n, k))
        b = xp.transpose(b, (*self._own, d, *self._extra, d + 1))
        count = math.prod(self._sizes(self._own))
        return b.reshape(count, n, math.prod(self._sizes(self._extra)) * k)

    def answers(self, xp, x, k):
        """Return x (m, n, K) as (..., n, k)."""
        n, d = x.shape[1], len(self.batch)
        x = x.reshape(*self._sizes(self._own), n, *self._sizes(self._extra), k)
        order = tuple(np.argsort([*self._own, d, *self._extra, d + 1]).tolist())
        return xp.ascontiguousarray(xp.transpose(x, order))

    def of_columns(self, v, k):
        """Return numbers (m, K) of each column as (..., k)."""
        axes = [*self._own, *self._extra]
        v = v.reshape(*self._sizes(axes), k)
        return v.transpose(np.argsort([*axes, len(axes)]))

    def of_matrices(self, v):
        """Return numbers (m,) of each matrix as (...); those of a matrix are repeated for its systems."""
        v = v.reshape(*self._sizes(self._own), *(1 for _ in self._extra))
        return np.broadcast_to(v.transpose(np.argsort([*self._own, *self._extra])), self.batch)
