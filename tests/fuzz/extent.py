"""Counts beyond the limits of grids and of 16 bits: many columns and many slices, for public calls."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from on_device import allocations_needed, same

from fuzz.exact import LONG_EPS, rounding_of_residual, target
from tcsolve import (
    cho_factor,
    cho_solve,
    det,
    factor,
    gemm,
    gemm_batched,
    gemm_bound,
    inv,
    lstsq,
    lstsq_ex,
    lu_factor,
    lu_solve,
    refine,
    solve,
    solve_banded,
    solve_ex,
    solve_triangular,
    solveh_banded,
)

__all__ = ["CALLS", "COUNTS", "Call", "largest_failure", "run_extents"]

# Just above 65535, the largest second dimension of a grid; above 2**16; and far above both.
COUNTS = (65536, 70000, 3_000_000)
# Unknowns of the systems whose allocations fail, and of those with many columns (one less for many slices).
ALLOCATED, SMALL = 600, 3
# The shape of the stack whose allocations fail.
STACK = (40, 50, 50)


class Call(NamedTuple):
    """A public call, as it is run with many columns or slices, and where allocations fail.

    Attributes
    ----------
    name : str
    columns, slices : callable or None
        (Place, count) -> the largest error over its bound.
    allocating : callable or None
        (Place) -> the arrays that are given, and a function that prepares the call and returns it as a
        function without arguments.
    arithmetic : str
        How the random cases and these runs are judged, in words.
    """

    name: str
    columns: Callable | None
    slices: Callable | None
    allocating: Callable | None
    arithmetic: str


def largest_failure(place, call):
    """Return the largest k for which allocation k was made to fail; None on the host or without allocations.

    Raises an AssertionError if a call with too little memory has another result or changes an array of the
    caller, or if the next call finds another result.  An error that is not ours is passed on.
    """
    if place.on_host or call.allocating is None:
        return None
    arrays, prepare = call.allocating(place)
    kept = [v.copy() for v in arrays]
    prepare()()  # compiles kernels, and fills the caches of the libraries
    expected = prepare()()

    def check():
        changed = [not same(v, given) for v, given in zip(arrays, kept, strict=True)]
        assert not any(changed), "the call has changed an array of the caller"
        assert same(prepare()(), expected), "the next call finds another result"

    return allocations_needed(place.xp, prepare, check, expected, once=False)


def run_extents(place, run):
    """Return a dict for each of COUNTS with the largest error over its bound; [] without a run."""
    rows = []
    for count in COUNTS if run else ():
        start = time.perf_counter()
        try:
            found = {"of_bound": run(place, count)}
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"[:200]}
        rows.append({"count": count, **found, "seconds": time.perf_counter() - start})
    return rows


# ---- systems ------------------------------------------------------------------------------------


def _matrices(shape):
    """Return a stack of diagonally dominant matrices."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape) + 3 * shape[-1] * np.eye(shape[-1])


def _columns(count):
    return np.random.default_rng(1).standard_normal((SMALL, count))


def _of_bound(a, x, b):
    """Return the largest backward error of stacks divided by its bound, by long double."""
    a, x, b = (v.astype(np.longdouble) for v in (a, x, b))
    n = a.shape[-1]
    rest = np.abs(b - a @ x).max(axis=-2)
    size = np.abs(a).sum(axis=-1).max(axis=-1)[..., None] * np.abs(x).max(axis=-2)
    error = (rest / size).max() + 8 * (n + 4) * LONG_EPS
    return float(error / (target(float, n) + rounding_of_residual(n, in_fp64=True)))


def many_columns(call, structure=lambda a: a):
    """Return the run of a call with a matrix, to which `structure` is applied first, and many columns."""

    def run(place, count):
        a, b = structure(_matrices((SMALL, SMALL))), _columns(count)
        return _of_bound(a, place.host(call(place.given(a), place.given(b))), b)

    return run


def _many_slices(call):
    def run(place, count):
        a, b = _matrices((count, SMALL - 1, SMALL - 1)), np.ones((count, SMALL - 1, 1))
        return _of_bound(a, place.host(call(place.given(a), place.given(b))), b)

    return run


def _allocating(call, structure=lambda a: a, shape=(ALLOCATED, ALLOCATED)):
    def prepare(place):
        a = place.given(structure(_matrices(shape)))
        b = place.xp.ones((*shape[:-1], 2))
        return (a, b), lambda: lambda: call(a, b)

    return prepare


def _allocating_of_factors(method, shape=(ALLOCATED, ALLOCATED), **options):
    """Return what prepares a method of factors; each call has factors of its own."""

    def prepare(place):
        a, b = place.given(_matrices(shape)), place.xp.ones((*shape[:-1], 2))

        def factored():
            f = factor(a, **options)
            return lambda: method(f, b)

        return (a, b), factored

    return prepare


def _inverted(place, count):
    a = _matrices((count, SMALL - 1, SMALL - 1))
    return _of_bound(a, place.host(inv(place.given(a))), np.eye(SMALL - 1))


def _determinants(place, count):
    """Compare determinants of 2 x 2 matrices with the formula.

    A change of A by the bound, in its norm, changes the determinant by at most twice the bound times the norm
    times the largest entry.  On a device the determinant is exp(log |det|), and log has an error of one unit.
    """
    a = _matrices((count, 2, 2))
    found = place.host(det(place.given(a)))
    a = a.astype(np.longdouble)
    exact = a[:, 0, 0] * a[:, 1, 1] - a[:, 0, 1] * a[:, 1, 0]
    allowed = np.abs(a).sum(axis=2).max(axis=1) * np.abs(a).max(axis=(1, 2))
    allowed *= 2 * target(float, 2) + 2.0**-52
    logarithm = 0 if place.on_host else np.log(np.abs(exact))
    allowed += np.abs(exact) * logarithm * 2.0**-53
    return float((np.abs(found - exact) / allowed).max())


def _refined(a, b):
    inverse = (1 / a.diagonal())[:, None]
    return refine(a, b, lambda r: inverse * r).x


def _allocating_of_refine(place):
    arrays, _ = _allocating(_refined)(place)
    a, b = arrays
    inverse = (1 / a.diagonal())[:, None]
    return arrays, lambda: lambda: refine(a, b, lambda r: inverse * r).x


# ---- products -----------------------------------------------------------------------------------


def _product_of_bound(a, b, c, bound):
    a, b, c = (v.astype(np.longdouble) for v in (a, b, c))
    size = np.sqrt((a * a).sum(axis=-1))[..., :, None] * np.sqrt((b * b).sum(axis=-2))[..., None, :]
    error = (np.abs(c - a @ b) / size).max() + (a.shape[-1] + 2) * LONG_EPS
    return float(error / bound)


def _multiplied(function, shape):
    """Return the run of a product; -1 in `shape`, that of the first operand, stands for the count."""

    def run(place, count):
        rng = np.random.default_rng(2)
        a = rng.standard_normal([count if extent == -1 else extent for extent in shape]).astype("f")
        b = rng.standard_normal((*a.shape[:-2], a.shape[-1], SMALL)).astype("f")
        given = place.given(a), place.given(b)
        return _product_of_bound(a, b, place.host(function(*given)), gemm_bound(*given).bound)

    return run


def _multiplied_wide(place, count):
    """Multiply with many columns of op(B), which are those of the result."""
    a, b = np.ones((SMALL, SMALL), "f") / 3, _columns(count).astype("f")
    given = place.given(a), place.given(b)
    return _product_of_bound(a, b, place.host(gemm(*given)), gemm_bound(*given).bound)


def _allocating_product(function, shape):
    def prepare(place):
        a = place.given(np.random.default_rng(3).standard_normal(shape).astype("f"))
        return (a,), lambda: lambda: function(a, a)

    return prepare


def _of_family(name, call, structure=lambda a: a, stored=lambda a: a):
    """Return the `Call` of a function of `_family` with many columns; the function is given ``stored(a)``."""
    columns = many_columns(lambda a, b: call(stored(a), b), structure)
    return Call(name, columns, None, _allocating(call, lambda a: stored(structure(a))), PRODUCTS)


def _symmetric(a):
    return a + a.T


def _tridiagonal(a):
    return np.triu(np.tril(a, 1), -1)


def _in_rows(a, lowest):
    """Return the diagonals of a from the first above the main one down to `lowest`, as SciPy stores bands."""
    each = range(1, lowest - 1, -1)
    return np.stack([np.pad(a.diagonal(d), (max(d, 0), max(-d, 0))) for d in each])


def _solution(a, b):
    return solve_ex(a, b).x


def _by_factors(a, b):
    return factor(a, nrhs=b.shape[1]).solve(b)


ERRORS = "integers, long double"
BALLS = "interval arithmetic"
PRODUCTS = "long double"

CALLS = (
    Call("solve", many_columns(solve), None, _allocating(solve), ERRORS),
    Call("solve of a stack", None, _many_slices(solve), _allocating(solve, shape=STACK), ERRORS),
    Call(
        "solve_ex",
        many_columns(_solution),
        _many_slices(_solution),
        _allocating(_solution),
        f"{ERRORS}; {BALLS}",
    ),
    Call("factor", None, None, _allocating(lambda a, b: factor(a).shape), "by its solves"),
    Call(
        "Factorization.solve",
        many_columns(_by_factors),
        None,
        _allocating_of_factors(lambda f, b: f.solve(b), precision="fp16x3"),
        ERRORS,
    ),
    Call(
        "Factorization.rcond",
        None,
        None,
        _allocating_of_factors(lambda f, b: f.rcond(), precision="fp16x3"),
        BALLS,
    ),
    Call(
        "Factorization.slogdet",
        None,
        None,
        _allocating_of_factors(lambda f, b: f.slogdet(), precision="fp16x3"),
        BALLS,
    ),
    Call(
        "StackFactorization.solve",
        None,
        _many_slices(lambda a, b: factor(a).solve(b)),
        _allocating(lambda a, b: factor(a).solve(b), shape=STACK),
        ERRORS,
    ),
    Call(
        "StackFactorization.rcond",
        None,
        None,
        _allocating_of_factors(lambda f, b: f.rcond(), STACK),
        BALLS,
    ),
    Call(
        "StackFactorization.slogdet",
        None,
        None,
        _allocating_of_factors(lambda f, b: f.slogdet(), STACK),
        BALLS,
    ),
    Call("refine", many_columns(_refined), None, _allocating_of_refine, ERRORS),
    _of_family("lu_factor, lu_solve", lambda a, b: lu_solve(lu_factor(a), b)),
    _of_family("cho_factor, cho_solve", lambda a, b: cho_solve(cho_factor(a), b), _symmetric),
    _of_family("solve_triangular", solve_triangular, np.triu),
    _of_family(
        "solve_banded",
        lambda ab, b: solve_banded((1, 1), ab, b),
        _tridiagonal,
        lambda a: _in_rows(a, -1),
    ),
    _of_family(
        "solveh_banded",
        solveh_banded,
        lambda a: _symmetric(_tridiagonal(a)),
        lambda a: _in_rows(a, 0),
    ),
    _of_family("lstsq", lambda a, b: lstsq(a, b, lapack_driver="gelsy")[0]),
    _of_family("lstsq_ex", lambda a, b: lstsq_ex(a, b).x),
    Call("inv", None, _inverted, _allocating(lambda a, b: inv(a)), PRODUCTS),
    Call("det", None, _determinants, _allocating(lambda a, b: det(a)), PRODUCTS),
    Call(
        "gemm, rows of a",
        _multiplied(gemm, (-1, SMALL)),
        None,
        _allocating_product(gemm, (300, 300)),
        f"{PRODUCTS}, integers for int8",
    ),
    Call(
        "gemm, columns of b",
        _multiplied_wide,
        None,
        _allocating_product(lambda a, b: gemm(a, b, precision="fp64"), (300, 300)),
        PRODUCTS,
    ),
    Call(
        "gemm_batched",
        None,
        _multiplied(gemm_batched, (-1, SMALL, SMALL)),
        _allocating_product(gemm_batched, (50, 40, 40)),
        f"{PRODUCTS}, integers for int8",
    ),
    Call("gemm_bound", None, None, None, "by all products, which must meet it"),
)
