"""The calls of `cpu.py --ratios`: what each case runs, its peers, and the largest ratio that is wanted."""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

import tcsolve

MOST_EXCESS = 25e-6  # seconds that a small solve may take beyond SciPy


@dataclass(frozen=True)
class Case:
    """A call of ours and those of its peers, all without arguments.

    Attributes
    ----------
    group, name : str
    n : int
    ours : callable
    peers : dict of str to callable
    wanted : float
        Largest allowed quotient of our time and the fastest peer's.  With `excess`, our time may instead
        exceed the peer's by `excess` seconds.
    excess : float or None
    least : callable or None
        The calls of LAPACK and BLAS that a verified answer of this kind cannot do without, and nothing else.
    """

    group: str
    name: str
    n: int
    ours: Any
    peers: dict
    wanted: float | None = None
    excess: float | None = None
    least: Any = None


def cases(most):
    """Yield the `Case`s with n up to `most`."""
    for group in (_small, _low, _newton, _factored, _structured, _stacks):
        yield from (case for case in group() if case.n <= most)


def _system(n, dtype="d", columns=None):
    rng = np.random.default_rng(7)
    a = rng.standard_normal((n, n))
    a = (a + 1j * rng.standard_normal((n, n)) if dtype in "FD" else a).astype(dtype)
    return a, a @ np.ones(n if columns is None else (n, columns), dtype)


def _definite(n):
    a, _ = _system(n)
    a = a @ a.T / n + np.eye(n)
    return a, a @ np.ones(n)


def _calls(a, b, **options):
    """Return our solve and SciPy's."""
    return (
        lambda: tcsolve.solve(a, b, **options),
        {"scipy": lambda: scipy.linalg.solve(a, b, **options)},
    )


def _small():
    for n in (4, 10, 50):
        for name, dtype in (("FP64", "d"), ("FP32", "f"), ("complex", "D")):
            yield Case("small", name, n, *_calls(*_system(n, dtype)), excess=MOST_EXCESS)
        yield Case("small", "pos", n, *_calls(*_definite(n), assume_a="pos"), excess=MOST_EXCESS)
    for n in (100, 200, 400):
        yield Case("FP32 arrays", "FP32", n, *_calls(*_system(n, "f")), 1.3)


def _low():
    for n, name in itertools.product((4, 10, 20, 50, 100, 120), ("fp16", "bf16", "fp16x3")):
        a, b = _system(n, columns=5 * n)
        ours = lambda a=a, b=b, name=name: tcsolve.solve(a, b, precision=name)  # noqa: E731
        peer = lambda a=a, b=b: scipy.linalg.solve(a, b, assume_a="gen")  # noqa: E731
        yield Case("forced low rung, 5 n columns", name, n, ours, {"scipy": peer}, 5.0)


def _newton():
    for n, wanted in ((50, 1.6), (100, 1.15), (200, 1.1), (500, 1.0)):
        a, b = _system(n)
        fresh = [a + i * 1e-3 * np.eye(n) for i in range(20)]
        ours, of_scipy, of_numpy = (itertools.cycle(fresh) for _ in range(3))
        peers = {
            "scipy": lambda m=of_scipy, b=b: scipy.linalg.solve(next(m), b),
            "numpy": lambda m=of_numpy, b=b: np.linalg.solve(next(m), b),
        }
        run = lambda m=ours, b=b: tcsolve.solve(next(m), b)  # noqa: E731
        yield Case("fresh matrices", "FP64", n, run, peers, wanted)


def _factored():
    for n, k in itertools.product((400, 2000), (1, 50)):
        a, b = _system(n, columns=k)
        scipys = scipy.linalg.lu_factor(a)
        for precision, wanted in (("fp32", 3.0), ("fp64", 2.0)):
            factors = tcsolve.factor(a, precision=precision)
            yield _solve_by(factors, scipys, a, b, f"{precision} factors, {k} columns", wanted)
        # Each x above is (1, ..., 1).  For such an x, even FP64 factors may need a step of refinement.  So a
        # random b is timed, too.  The largest entries of its x are above 1, and the bound allows a residual
        # in proportion to the largest entry.
        b = np.random.default_rng(8).standard_normal((n, k))
        yield _solve_by(factors, scipys, a, b, f"fp64 factors, {k} random columns", 2.0)


def _solve_by(factors, scipys, a, b, name, wanted):
    """Return the `Case` of a solve with factors of a by tcsolve and by SciPy."""
    return Case(
        "Factorization.solve",
        name,
        len(a),
        lambda: factors.solve(b),
        {"lu_solve": lambda: scipy.linalg.lu_solve(scipys, b)},
        wanted,
        least=_solves_and_products(a, b, factors),
    )


def _solves_and_products(a, b, factors):
    """Return a function that solves and multiplies as often as `factors.solve(b)`: once for each residual."""
    dtype = np.float32 if factors.precision == "fp32" else np.float64
    getrf, getrs = scipy.linalg.get_lapack_funcs(("getrf", "getrs"), dtype=dtype)
    lu, swaps, _ = getrf(a.T.astype(dtype))
    rhs, x = np.asfortranarray(b, dtype), np.asfortranarray(b)
    times = int(factors.solve_ex(b).iterations.max()) + 1

    def product():
        if x.shape[1] == 1:
            return scipy.linalg.blas.dgemv(1.0, a.T, x[:, 0], trans=1)
        return scipy.linalg.blas.dgemm(1.0, a.T, x, trans_a=1)

    def least():
        for _ in range(times):
            getrs(lu, swaps, rhs, trans=1)
            product()

    return least


def _structured():
    for n in (20, 200, 1000, 2000):
        a, _ = _system(n)
        triangle = np.triu(a) + n * np.eye(n)
        band = np.triu(np.tril(triangle + triangle.T, 3), -3)
        for name, matrix in (("upper triangular", triangle), ("banded", band)):
            ours, peers = _calls(matrix, matrix @ np.ones(n), assume_a=name)
            yield Case("structures", name, n, ours, peers, 1.2)
        ours, peers = _calls(triangle, triangle @ np.ones(n))
        yield Case("structures", "a triangle that is found", n, ours, peers, 1.2)
        b, diagonals = np.random.default_rng(8).standard_normal(n), np.zeros((7, n))
        for d in range(-3, 4):
            diagonals[3 - d, max(d, 0) : n + min(d, 0)] = np.diagonal(band, d)
        for name, given in (
            ("solve_triangular", (triangle,)),
            ("solve_banded", ((3, 3), diagonals)),
        ):
            ours = functools.partial(getattr(tcsolve, name), *given, b)
            peers = {"scipy": functools.partial(getattr(scipy.linalg, name), *given, b)}
            yield Case("structures", name, n, ours, peers, 1.2)
    for n, wanted in ((1000, 1.0), (2000, 1 / 1.4)):
        a, b = _definite(n)
        general = lambda a=a, b=b: tcsolve.solve(a, b, assume_a="gen")  # noqa: E731
        for name in ("pos", "sym"):
            ours, peers = _calls(a, b, assume_a=name)
            yield Case("structures", name, n, ours, peers, wanted)
            yield Case("structures", name, n, ours, {"our general path": general}, 1.0)


def _stacks():
    for m, n in ((1, 3), (5, 8), (2000, 4), (10000, 16)):
        rng = np.random.default_rng(0)
        a = rng.standard_normal((m, n, n))
        b = a @ np.ones((n, 1))
        ours, peers = _calls(a, b)
        yield Case("stacks", f"{m} systems", n, ours, peers, 1.0)
        if m >= 2000:
            peers = {"numpy": lambda a=a, b=b: np.linalg.solve(a, b)}
            yield Case("stacks", f"{m} systems", n, ours, peers, 2.5)
