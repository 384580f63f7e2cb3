"""The last iterates of slow refinement, and their combination with the smallest residual."""

import numpy as np

__all__ = ["Iterates", "take"]

# Rounding errors of inner products of unit vectors.
ROUNDING = 2.0**-46


class Iterates:
    """The last iterates (x, r) of some columns, the newest at the end, with the Gram matrices of their r.

    The list `given` is emptied, so that the caller does not keep the memory of older iterates.
    """

    def __init__(self, ops, given):
        self._ops, self._given, self._gram = ops, given, None

    def __len__(self):
        return len(self._given)

    @property
    def last(self):
        """The newest (x, r)."""
        return self._given[-1]

    @property
    def nbytes(self):
        """Number of bytes of all iterates."""
        return sum(x.nbytes + r.nbytes for x, r in self._given)

    def add(self, x, r, most):
        """Append (x, r), and keep only the newest `most` iterates."""
        gone = max(0, len(self) + 1 - most)
        self._given = [*self._given, (x, r)][gone:]
        if self._gram is not None:
            self._gram = self._gram[:, gone:, gone:]

    def take(self, index):
        """Keep only the columns `index`; each old vector is freed before the next one is copied."""
        taken = []
        while self._given:
            taken.append(tuple(take(self._ops, v, index) for v in self._given.pop(0)))
        self._given = taken
        if self._gram is not None:
            self._gram = self._gram[index]

    def combined(self):
        """Return the affine combination (x, r) of each column with the smallest ||r||_2."""
        x, r = zip(*self._given, strict=True)
        self._gram = self._ops.gram(r, self._gram)
        weights = _weights(self._gram)
        return self._ops.mixed(x, weights), self._ops.mixed(r, weights)


def _weights(gram):
    """Return the weights w with sum 1 that minimise w^H G w, for each of the Gram matrices G (k, m, m).

    If entries of G have overflowed or underflowed, the weight of the last vector is 1 and the others are 0.
    """
    m = gram.shape[1]
    size = np.sqrt(np.diagonal(gram, axis1=1, axis2=2).real)[:, :, None]
    cosines = gram / size / size.transpose(0, 2, 1) + ROUNDING * np.eye(m)
    usable = np.isfinite(cosines).all(axis=(1, 2)) & (size > 0).all(axis=(1, 2))
    last = np.arange(m) == m - 1
    try:  # unusable matrices are replaced by the identity, because one of them would fail the whole call
        w = np.linalg.solve(np.where(usable[:, None, None], cosines, np.eye(m)), 1 / size) / size
    except np.linalg.LinAlgError:
        return np.broadcast_to(last, gram.shape[:2]).astype(gram.dtype)
    w = w[:, :, 0] / w[:, :, 0].sum(axis=1, keepdims=True)
    return np.where(usable[:, None] & np.isfinite(w).all(axis=1, keepdims=True), w, last)


def take(ops, x, index):
    """Return the columns `index` of x; if these are all columns, x itself without a copy."""
    return x if len(index) == x.shape[1] else x[:, ops.array(index)]
