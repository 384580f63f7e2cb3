"""Sizes x right-hand sides x families x precisions: every answer meets the promised bound.

The sizes are those at which blocked codes may fail: 0, 1 and 2; sizes below that of a panel, no multiples of
8; a few more than the 128 columns of a panel; and more than two panels.
"""

import functools

import numpy as np
import pytest
from bounds import MET, UNIT, host, ratio

from tcsolve import matrices, solve_ex
from tcsolve._plan import PRECISIONS

SIZES = (0, 1, 2, 13, 17, 45, 132, 300)
NRHS = ("vector", 0, 1, 2, 15)

EASY = {
    "gauss_dominant": ("gauss_dominant", {}),
    "gauss_dominant complex": ("gauss_dominant", {"dtype": np.complex128}),
    "gauss_dominant float32": ("gauss_dominant", {"dtype": np.float32}),
    "arith 1e2": ("svd_arith", {"cond": 1e2}),
    "cluster1 1e2 complex": ("svd_cluster1", {"cond": 1e2, "dtype": np.complex128}),
}
HARD = {
    "gauss": ("gauss", {}),
    "gauss complex": ("gauss", {"dtype": np.complex128}),
    "gauss float32": ("gauss", {"dtype": np.float32}),
    "gauss complex64": ("gauss", {"dtype": np.complex64}),
    "uniform": ("uniform", {}),
    "geo 1e4": ("svd_geo", {"cond": 1e4}),
    "geo 1e4 float32": ("svd_geo", {"cond": 1e4, "dtype": np.float32}),
    "geo 1e8": ("svd_geo", {"cond": 1e8}),
    "geo 1e6 complex": ("svd_geo", {"cond": 1e6, "dtype": np.complex128}),
    "arith 1e8": ("svd_arith", {"cond": 1e8}),
    "cluster0 1e8": ("svd_cluster0", {"cond": 1e8}),
    "cluster1 1e8": ("svd_cluster1", {"cond": 1e8}),
    "cluster1 1e6 complex": ("svd_cluster1", {"cond": 1e6, "dtype": np.complex128}),
}
FAMILIES = EASY | HARD


@functools.cache
def problem(family, n):
    """Return (a, b); b has as many columns as the case with most right-hand sides."""
    name, options = FAMILIES[family]
    if n == 0:
        dtype = options.get("dtype", np.float64)
        return np.zeros((0, 0), dtype), np.zeros((0, max(NRHS[1:])), dtype)
    made = matrices.generate(name, n, nrhs=max(NRHS[1:]), rhs="random", seed=n, **options)
    return made.a, made.b


def cases():
    """Return every (n, nrhs)."""
    return [(n, k) for n in SIZES for k in NRHS]


def complaint(solution, a, x, b):
    """Return what is wrong with a solution, or None."""
    columns = b.shape[1] if b.ndim == 2 else 1
    if not solution.status.ok:
        return f"status {solution.status.name}"
    if x.shape != b.shape or x.dtype != b.dtype:
        return f"x is {x.dtype} {x.shape}, b is {b.dtype} {b.shape}"
    if not ratio(a, x, b) <= MET:
        return f"ratio {ratio(a, x, b):.3g}"
    if x.size and not (solution.backward_error.shape == solution.iterations.shape == (columns,)):
        return f"{columns} columns, {solution.backward_error.shape} errors"
    if x.size and not (solution.backward_error <= solution.bound).all():
        return (
            f"backward error {solution.backward_error.max():.3g} reported as {solution.status.name}"
        )
    if x.size and not (0 <= solution.iterations.min() and solution.iterations.max() <= 300):
        return f"{solution.iterations} steps"
    return None


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_meets_the_bound(xp, family, precision):
    ran, wrong = 0, []
    for n, nrhs in cases():
        a, b = problem(family, n)
        b = b[:, 0] if nrhs == "vector" else b[:, :nrhs]

        solution = solve_ex(xp.asarray(a), xp.asarray(b), precision=precision)

        assert isinstance(solution.x, xp.ndarray)
        found = complaint(solution, a, host(solution.x), b)
        wrong += [f"n={n} nrhs={nrhs}: {found}"] if found else []
        ran += 1
    assert wrong == []
    assert ran == 40


@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("family", EASY)
def test_an_easy_matrix_needs_one_rung_and_few_steps(xp, family, precision):
    a, b = problem(family, 300)

    solution = solve_ex(xp.asarray(a), xp.asarray(b), precision=precision)

    assert solution.rungs == (precision,)
    # x gains 53 bits, at least 2.5 in a step: BF16 has 8, less those that are lost to condition and growth.
    assert solution.iterations.max() <= 21


def test_the_bound_of_the_sweep_is_that_of_the_report():
    a, b = problem("gauss", 45)

    solution = solve_ex(a, b)

    assert solution.bound == UNIT["d"] * 45**0.5
