"""More right-hand sides than a grid has blocks in its second dimension (65535)."""

import numpy as np
import pytest

import tcsolve
from tcsolve import factor, matrices

pytestmark = pytest.mark.gpu

COUNTS = (65535, 65536, 70_000, 3_000_000)


def columns(cupy, n, k, seed=0):
    """Return an n x k array with equal columns, which share the memory of one column."""
    one = cupy.random.default_rng(seed).standard_normal((n, 1))
    return cupy.broadcast_to(one, (n, k))


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("k", COUNTS)
def test_a_difference_and_its_sizes(k, n, cupy, ops):
    b, y = columns(cupy, n, k), columns(cupy, n, k, 1)
    x = cupy.broadcast_to(cupy.arange(k, dtype=float), (n, k))  # column j is filled with j

    r, of_r, of_x = ops.residual(lambda v: y, x, b)  # for a function that gives A x

    first = b[:, :1] - y[:, :1]
    assert r.shape == (n, k) and bool((r == first).all())
    assert (of_r == float(abs(first).max())).all() and np.array_equal(of_x, np.arange(k))


@pytest.mark.parametrize("n", [1, 300])
@pytest.mark.parametrize("k", COUNTS)
def test_the_largest_of_each_column(k, n, cupy, ops):
    v = cupy.broadcast_to(-cupy.arange(k, dtype=float), (n, k))

    assert bool((ops.row_stats(v.T).top == cupy.arange(k)).all())


@pytest.mark.parametrize("k", [70_000, 3_000_000])
def test_sums_that_compare_columns(k, cupy, ops):
    n = 5
    b, y, z = columns(cupy, n, k), columns(cupy, n, k, 1), columns(cupy, n, 1, 2)

    sums = ops.held(b, y, z)

    r = b[:, 0] - y[:, 0]
    for found, terms in (
        (sums[: k - 1], r**2),
        (sums[k - 1 : -1], b[:, 0] ** 2),
        (sums[-1:], z[:, 0] * r),
    ):
        rounding = 2 * n * 2.0**-53 * abs(terms).sum()  # of two sums
        assert bool((abs(found - abs(terms.sum())) <= rounding).all())


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize(
    "n, k, dtype", [(512, 70_000, "d"), (40, 3_000_000, "d"), (512, 40_000, "D"), (40, 70_000, "f")]
)
def test_a_solve_for_many_columns(n, k, dtype, precision, cupy):
    a = cupy.asarray(matrices.generate("gauss", n).a, dtype="f" if dtype == "f" else "d")
    b = columns(cupy, n, k).astype(dtype)
    b = b * (1 + 2j) if dtype == "D" else b

    found = tcsolve.solve_ex(a, b, precision=precision)

    assert found.status.ok and found.x.shape == (n, k)
    assert (found.backward_error <= found.bound).all()
    # Every column has the answer of the first, up to twice what the backward error allows.
    spread = float(abs(found.x - found.x[:, :1]).max() / abs(found.x).max())
    assert spread <= 4 * found.bound / found.rcond


@pytest.mark.parametrize("dtype", ["d", "D"])
def test_factors_of_a_real_or_a_complex_matrix_solve_for_many_columns(dtype, cupy):
    a = cupy.asarray(matrices.generate("gauss", 100, dtype=np.dtype(dtype)).a)
    b = columns(cupy, 100, 70_000).astype(dtype)
    f = factor(a, precision="fp64")

    found = f.solve_ex(b)

    assert found.status.ok and (found.backward_error <= found.bound).all()


@pytest.mark.parametrize("k", [70_000, 3_000_000])
def test_refinement_of_many_columns(k, cupy):
    d = cupy.arange(1.0, 4.0)
    b = columns(cupy, 3, k)

    found = tcsolve.refine(cupy.diag(d), b, lambda r: r / d[:, None])

    assert found.status.ok and (found.backward_error <= found.bound).all()
