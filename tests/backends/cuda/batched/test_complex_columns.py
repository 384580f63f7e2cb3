"""Complex products, and solves for many columns, by three real products; NumPy computes their errors."""

import numpy as np
import pytest
from bounds import MET, host, inf_norm, ratio
from structures import matrices, right_hand_sides

import tcsolve
from tcsolve import Status

pytestmark = pytest.mark.gpu

U = 2.0**-53


@pytest.fixture
def columns(cupy):
    from tcsolve._backends.cuda.batched import complex_columns

    return complex_columns


def factors_of(cupy, columns, a):
    """Return the `ComplexColumns` of a, from an LU of SciPy."""
    import scipy.linalg

    lu, swaps = scipy.linalg.lu_factor(a.T)
    order = np.arange(len(a), dtype=np.int32)
    for j, i in enumerate(swaps):
        order[[j, i]] = order[[i, j]]
    return columns.ComplexColumns.of(cupy.asarray(np.ascontiguousarray(lu.T)), cupy.asarray(order))


@pytest.mark.parametrize(
    "m, n, k", [(1, 1, 1), (300, 77, 130), (2049, 65, 300), (70000, 3, 2), (3, 2, 9000)]
)
@pytest.mark.parametrize("layout", ["plain", "turned", "gaps"])
def test_three_real_products_are_a_complex_product(cupy, layout, m, n, k):
    from tcsolve._backends.cuda.gemm.three_products import product

    rng = np.random.default_rng(m)
    a, x = (rng.standard_normal((*shape, 2)) @ [1, 1j] for shape in ((m, n), (n, k)))
    laid_out = {
        "plain": cupy.asarray,
        "turned": lambda v: cupy.asarray(v.T.copy()).T,
        "gaps": lambda v: cupy.asarray(np.repeat(np.repeat(v, 2, axis=0), 3, axis=1))[::2, ::3],
    }
    given = map(laid_out[layout], (a, x))

    error = np.abs(product(*given).get() - a @ x)

    assert (
        error.max()
        <= 4 * U * n**0.5 * np.abs(a).max() * np.abs(x).max() * 2 + U * np.abs(a @ x).max()
    )


@pytest.mark.parametrize("n", [1, 100, 256, 300, 512, 813, 1100])
@pytest.mark.parametrize("k", [1, 70])
def test_many_right_hand_sides_are_solved_for(cupy, columns, n, k):
    a, b = matrices(None, "D", n), right_hand_sides("D", n, k)
    factors = factors_of(cupy, columns, a)
    assert factors.serve

    rows = cupy.asarray(b.T.copy())[None]
    x = factors.solve(rows).get()[0].T
    assert ratio(a, x, b) <= 8

    scaled = b * 2.0 ** (-600 + 3.0 * np.arange(k))  # a coarse solve has the range of FP64 for b
    assert factors.serve_coarsely
    y = factors.solve_coarsely(cupy.asarray(scaled.T.copy())[None]).get()[0].T
    residual = np.abs(scaled - a @ y).max(axis=0) / np.abs(y).max(axis=0) / inf_norm(a)
    assert residual.max() <= 2.0**-14


def test_a_zero_right_hand_side_gives_zeros(cupy, columns):
    factors = factors_of(cupy, columns, matrices(None, "D", 300))
    for solve in (factors.solve, factors.solve_coarsely):
        assert not solve(cupy.zeros((1, 5, 300), "D")).any()


def test_factors_that_inverses_do_not_serve_are_told(cupy, columns):
    a = matrices(None, "D", 300)
    lu = np.tril(a) + 300 * np.eye(300)  # well-conditioned triangles
    order = cupy.arange(300, dtype=cupy.int32)

    def told(change):
        made = lu.copy()
        change(made)
        found = columns.ComplexColumns.of(cupy.asarray(made), order)
        return found.serve, found.serve_coarsely

    def put(i, j, value):
        return lambda lu: lu.__setitem__((i, j), value)

    assert told(lambda lu: None) == (True, True)
    for i, bad in ((0, 0.0), (280, 0.0), (0, np.nan), (280, np.nan), (280, 1e-300)):
        assert told(put(i, i, bad)) == (False, False)
    for scale in (1e-200, 1e200):
        assert told(lambda lu, by=scale: lu.__setitem__(slice(None), np.tril(lu) * by)) == (
            True,
            False,
        )


def many_columns(cupy, columns, spread):
    """Return the smallest system (a, b) that is solved by products.

    The first two columns of a differ by about `spread`.
    """
    n, k = columns.LEAST_ROWS, columns.LEAST_COLUMNS
    rng = cupy.random.default_rng(3)
    a = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
    a[:, 0] = a[:, 1] + spread * a[:, 0]
    return a, rng.standard_normal((n, k)) + 1j * rng.standard_normal((n, k))


@pytest.mark.parametrize("spread, least_steps", [(1.0, 1), (1e-7, 0)])
def test_a_large_system_with_many_columns_meets_the_bound(cupy, columns, spread, least_steps):
    a, b = many_columns(cupy, columns, spread)
    solution, again = tcsolve.solve_ex(a, b), tcsolve.solve_ex(a, b)
    assert solution.status is Status.CONVERGED and (solution.backward_error <= solution.bound).all()
    assert least_steps <= solution.iterations.max() <= 2 and solution.rungs == ("fp64",)
    assert solution.x.tobytes() == again.x.tobytes()

    r = b - a @ solution.x
    error = abs(r).max(axis=0) / abs(a).sum(axis=1).max() / abs(solution.x).max(axis=0)
    assert host(error).max() <= MET * U * len(a) ** 0.5
