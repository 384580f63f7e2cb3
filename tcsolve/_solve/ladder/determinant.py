"""The logarithm of a determinant from factors of any precision, if they are accurate enough for it.

Factors M of A give ``log |det A| = log |det M| + Re log det(I + E)`` with ``E = M^-1 A - I``.  For small E
the second term is the trace of E up to ``||E||_F^2``.  Both are estimated with a few random vectors of
signs: the mean of ``z^T E z`` is the trace [1]_, and the mean of ``||E z||^2`` is ``||E||_F^2``.

For complex matrices only factors in FP64 are used.  The sign of the determinant is then a complex number, and
its error is that of ``Im log det M``.  The test of less precise factors does not bound this error: it allows
an error that is proportional to ``log |det A|``, which may be large.

References
----------
.. [1] M. F. Hutchinson, Comm. Statist. Simulation Comput. 19 (1990), 433-450.
"""

import math
from typing import NamedTuple

import numpy as np

__all__ = ["LogDeterminant", "determinants", "log_determinant"]

# The error that is allowed, relative to log |det A|: eight digits.
DIGITS = 1e-8
# Seed and number of the vectors; and the multiple of the standard error that is counted as error.
SEED, VECTORS, SURE = 0, 8, 4
# For a larger ||E||_F the trace of E says little about the determinant.
SMALL = 0.1
# For fewer rows, FP64 factors take little time; and solves that round to FP32 may hide E.
LEAST_ROWS = 64


class LogDeterminant(NamedTuple):
    """The determinant ``sign * exp(logabsdet)``, as `numpy.linalg.slogdet` returns it.

    Attributes
    ----------
    sign : float or complex
        ``det A / |det A|``; 0 if the matrix is singular, NaN if it is not finite.
    logabsdet : float
        Natural logarithm of ``|det A|``; -inf if the matrix is singular, NaN if it is not finite.
    """

    sign: complex
    logabsdet: float


def determinants(ops, factors):
    """Return the signs and the logarithms of the moduli of the determinants of a stack, on the host."""
    xp, (pivots, signs) = ops.xp, factors.diagonal()
    size = xp.abs(pivots)
    found = ops.host((pivots / size).prod(axis=1) * signs, xp.log(size).sum(axis=1))
    return tuple(np.array(v) for v in found)


def log_determinant(ladder):
    """Return the `LogDeterminant` of the matrix of a `Ladder`."""
    if not ladder.system.finite:
        return LogDeterminant(math.nan, math.nan)
    rung, matrix = ladder.make_valid(), ladder.system.matrix
    may_be_coarse = len(matrix) >= LEAST_ROWS and matrix.dtype.kind != "c"
    if may_be_coarse and not rung.is_exact and not rung.bad_pivot:
        found = _of(ladder.system, rung.factors, rung.scaling)
        if _error(ladder.system, rung) <= DIGITS * abs(found.logabsdet):
            return found
    factors = rung.factors if rung.is_exact else ladder.factors_apart()
    if factors.bad_pivot:
        return LogDeterminant(0.0, -math.inf)
    return _of(ladder.system, factors, None)


def _of(system, factors, scaling):
    """Return the `LogDeterminant` that the factors of the scaled matrix give."""
    ops, xp = system.ops, system.ops.xp
    diagonal, sign = factors.diagonal()
    diagonal = ops.converted(diagonal, np.result_type(diagonal.dtype, np.float64))
    size = xp.abs(diagonal)
    phase, log = ops.host((diagonal / size).prod(), xp.log(size).sum())
    log = float(log)
    scalings = scaling, None if system.frame is None else system.frame.scaling
    for scales in filter(None, scalings):
        (exponents,) = ops.host((xp.log2(scales.row) + xp.log2(scales.col)).sum())
        log -= float(exponents) * math.log(2)
    return LogDeterminant(phase[()] * sign, log)


def _error(system, rung):
    """Return an estimate of the error of `_of` for a rung; infinite if its factors are too coarse."""
    ops, n = system.ops, len(system.matrix)
    z = np.random.default_rng(SEED).choice([-1.0, 1.0], (n, VECTORS)).astype(system.wide)
    z = ops.xp.asarray(z)
    y = rung.correct(ops.product(system.matrix, z))
    y = y - z
    traces, squares = ops.host((z * y).sum(axis=0), (y * y).sum(axis=0))
    square = float(np.mean(squares))
    if not square <= SMALL**2:
        return math.inf
    spread = float(np.std(traces, ddof=1)) / math.sqrt(VECTORS)
    return abs(float(np.mean(traces))) + SURE * spread + square
