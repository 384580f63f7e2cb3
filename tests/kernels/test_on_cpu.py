"""The kernels for small systems run on the CPU: answers, statuses, and bits."""

import numpy as np
import pytest
from bounds import residual_error
from launches_on_cpu import launch, steps
from tcsolve.kernels.system_shapes import across_shape, solve_shape

from tcsolve._refine import stopping

ALL_READ = 1 << 40, 1 << 40, 0
KINDS = {"general": 0, "positive definite": 1, "upper triangular": 2}
SEEN, MEASURED = 5, 4  # numbers of a system on the board, before those of its answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


def solved(folder, a, b, kind="general", band=None, *, arch="sm_80", seed=0):
    """Return (x, board, left) of the kernels for small systems; `left` is None if one kernel is enough."""
    (m, n, k), dtype = b.shape, a.dtype
    how = {"definite": kind == "positive definite", "triangle": kind == "upper triangular"}
    shape = solve_shape(m, n, k, dtype, band is not None, arch=arch, multiprocessors=2, **how)
    eps, bound = float(np.finfo(dtype).eps), float(stopping.target(dtype, n))
    number = {"T_A": "float" if dtype.char in "fF" else "double", "COMPLEX": int(dtype.kind == "c")}
    x, board = np.full(b.shape, np.nan, dtype), np.full((SEEN + MEASURED + 2 * k, m), -7.0)
    of_systems, of_kind = (*steps(a), *steps(b)), (*(band or ALL_READ), KINDS[kind])
    limits, sizes, left = (0.0, 0.0, 0.0), (m, n, k), None

    def run(shape, args):
        # One block takes all systems that are left.
        blocks = 1 if shape.before else shape.blocks
        launch(folder, shape.name, blocks, shape.threads, args, number | shape.defines, seed=seed)

    if shape.before:
        left = np.full(m, 99, np.uint8)
        trusted = max(8 * eps, 2.0**-13 if how["definite"] else 2.0**-23)
        args = x, board, None, None, left, *of_systems, *of_kind, bound, trusted, *limits, *sizes
        run(shape.before, args)
        assert np.isnan(x[left == 99]).all() and not (left == 99).any()
    results = [x, board, None, None]
    if shape.name in ("solve_jordan", "solve_block"):
        results.append(left)
    if shape.work:
        results.append(np.empty(shape.work, np.result_type(dtype, np.float64)))
    numbers = sizes + ((shape.share,) if shape.share else ())
    if shape.name == "solve_thread":
        of_systems, numbers = of_systems[:-1], (m, n)
    near = 1e4 ** (1 / shape.probes) * eps
    run(shape, (*results, *of_systems, *of_kind, bound, near, *limits, *numbers))
    return x, board, left


def stack(dtype, m, n, k=1):
    rng = np.random.default_rng([m, n])
    a, b = rng.standard_normal((m, n, n)), rng.standard_normal((m, n, k))
    if dtype in "FD":
        a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
    return a.astype(dtype), b.astype(dtype)


def nearly_singular(a, sizes):
    """Give the first matrices smallest singular values of these multiples of epsilon."""
    eps = np.finfo(a.dtype).eps
    for s, size in enumerate(sizes):
        u, values, v = np.linalg.svd(a[s].astype(np.result_type(a.dtype, np.float64)))
        values[-1] = values[0] * size * eps
        a[s] = (u * values) @ v


def check(a, b, x, board):
    """Compare x and the board with the entries of these systems."""
    k, exact = b.shape[2], np.result_type(a.dtype, np.longdouble)
    rest = np.abs(b.astype(exact) - a.astype(exact) @ x.astype(exact)).max(axis=1).T
    rows, columns = (np.abs(a.astype(exact)).sum(axis=i).max(axis=1) for i in (2, 1))
    size = np.abs(x).max(axis=1).T
    first = SEEN + MEASURED
    np.testing.assert_allclose(board[SEEN : SEEN + 2], [rows, columns], rtol=1e-12)
    slack = 2.0**-50 * rest + residual_error(a.dtype, a.shape[1]) * rows * size
    assert (np.abs(board[first : first + k] - rest) <= slack).all()
    np.testing.assert_allclose(board[first + k :], size, rtol=2.0**-22)
    assert (rest <= stopping.target(a.dtype, a.shape[1]) * rows * size).all()


def conditions(a):
    """Return rcond of each matrix in the norm 1."""
    wide = a.astype(np.result_type(a.dtype, np.float64))
    norms = [np.abs(v).sum(axis=1).max(axis=1) for v in (wide, np.linalg.inv(wide))]
    return 1 / norms[0] / norms[1]


@pytest.mark.parametrize(
    "dtype, n", [("d", 13), ("d", 32), ("f", 64), ("D", 7), ("D", 50), ("F", 20)]
)
def test_an_inverse_in_fp32_solves_most_systems_and_leaves_the_others(folder, dtype, n):
    """Those that it leaves are solved in FP64; the FP32 ones among them get an exact rcond."""
    a, b = stack(dtype, 9, n)
    sizes = (0.3, 3, 300) if dtype in "fF" else (1e2, 1e6, 1e11)
    nearly_singular(a, sizes)
    a[3] = 0
    a[4, -1] = a[4, 0]
    a[5, 0, n - 1] = np.nan
    a[6] *= np.ldexp(1.0, np.arange(n) % 3 - 70).astype(a.real.dtype)[:, None]
    sound = [0, 1, 2, 6, 7, 8]

    x, board, left = solved(folder, a, b)

    check(a[sound], b[sound], x[sound], board[:, sound])
    assert (left > 0).tolist()[:6] == [True, True, False, True, True, True]
    assert not left[6:].any()
    assert (board[8] > 0).tolist()[3] and not board[8, sound].any()
    assert board[3].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]  # NaN is seen
    rcond, (one, grown) = conditions(a[sound]), board[SEEN + 1 : SEEN + 3, sound]
    exact = [0, 1] if dtype in "fF" else []
    by_inverse = np.array([i for i, s in enumerate(sound) if not left[s]])
    np.testing.assert_allclose((1 / one / grown)[exact], rcond[exact], rtol=1e-6)
    np.testing.assert_allclose((1 / one / grown)[by_inverse], rcond[by_inverse], rtol=0.05)


@pytest.mark.parametrize("dtype", "dD")
def test_norms_beyond_the_range_end_the_refinement(folder, dtype):
    """b = 0 with a norm of A that overflows; and for complex b, an entry whose modulus overflows."""
    a, b = stack(dtype, 2, 29)
    a[0], b[0] = a[0] / np.abs(a[0]).max() * 1e308, 0
    a[1] *= 1e50
    b[1, 0] = 1.5e308 * (1 + 1j if dtype == "D" else 1)

    _, board, left = solved(folder, a, b)

    assert left.all() and np.isinf(board[SEEN, 0])


def growing(rng, n, columns):
    """Return a singular integer matrix whose entries grow by 2**columns in the elimination."""
    a = np.zeros((n, n))
    for j in range(columns):
        a[j, j], a[j + 1 :, j] = 1, -1
    a[:, columns:] = rng.integers(-3, 4, (n, n - columns))
    i = rng.permutation(np.arange(columns, n))[:4]
    a[i[0]] = a[i[1]] + a[i[2]] - a[i[3]]
    return a


def test_a_singular_matrix_whose_entries_grow_is_found(folder):
    """The FP32 factors look regular, and b is in the range of A.

    In the FP32 inverse of the second matrix, the largest column is not one of the singular block.
    """
    rng, eps = np.random.default_rng(1), float(np.finfo("f").eps)
    a, b = np.eye(64)[None].repeat(2, axis=0), np.zeros((2, 64, 1))
    a[:, :48, :48] = growing(rng, 48, 20)
    b[:, :48] = a[:, :48, :48] @ rng.integers(-3, 4, (48, 1))
    a[1, 60, 60] = 2e-7 * np.abs(a[1]).sum(axis=0).max()

    _, board, left = solved(folder, a.astype("f"), b.astype("f"))

    assert left[0] and left[1] == 1 + 60
    assert (1 / board[SEEN + 1] / board[SEEN + 2] < eps).all()


# Five rows of a singular block of order 6.  Its third row is not listed: it is COMBINATION times these rows.
ROWS = [
    [0.14, 0.016, 0.008, 0.006, 0.484, 0.326],
    [-0.004, 0.004, -0.001, 0.001, 0.008, 0.007],
    [-8.239, -15.088, 53.977, -1.167, 12.297, 24.991],
    [-0.124, -0.154, -0.307, 0.005, 0.242, 0.138],
    [-253.776, -99.913, -200.946, -182.748, 228.21, 198.323],
]
COMBINATION = [0.124, -0.842, -1.0, 0.466, 0.94]


@pytest.mark.parametrize("n", [6, 32])
def test_an_inverse_in_fp32_of_a_singular_matrix_is_not_trusted(folder, n):
    """It looks regular, and for b in the range of A, x meets the bound; only its own test fails."""
    a = np.eye(n)[None].repeat(3, axis=0)
    a[0, :6, :6] = np.insert(ROWS, 2, np.array(COMBINATION) @ ROWS, axis=0)
    if n > 20:
        a[1, :16, :16] = growing(np.random.default_rng(16), 16, 10) / 3
    x = np.random.default_rng(0).integers(-8, 9, (3, n, 2)) / 8
    _, board, left = solved(folder, a, a @ x)
    assert left[0] and not left[2]
    if n > 20:
        assert left[1]
    assert 1 / board[SEEN + 1, 0] / board[SEEN + 2, 0] < 1e-12


@pytest.mark.parametrize("dtype, n", [("d", 13), ("d", 32)])
def test_neither_the_order_of_threads_nor_other_systems_change_a_bit(folder, dtype, n):
    a, b = stack(dtype, 6, n)
    nearly_singular(a, (10,))
    first = solved(folder, a, b, seed=1)
    assert all(map(np.array_equal, first, solved(folder, a, b, seed=2)))
    few = solved(folder, a[[0, 3]], b[[0, 3]], seed=3)
    assert all(
        np.array_equal(one[[0, 3]], other) for one, other in zip(first[::2], few[::2], strict=True)
    )
    assert np.array_equal(first[1][:, [0, 3]], few[1])


def test_the_layout_of_a_matrix_that_is_read_in_chunks_does_not_change_a_bit(folder):
    """With an odd number of columns and an even leading dimension, 16 bytes are copied at a time."""
    n = 99
    a, b = stack("d", 1, n)
    expected = solved(folder, a, b, arch="sm_90a")
    check(a, b, *expected[:2])
    columns = np.ascontiguousarray(np.swapaxes(a, 1, 2)).swapaxes(1, 2)
    even, odd, apart = (
        np.full((n, 100), np.nan),
        np.full((n, 101), np.nan),
        np.full((n, n, 3), np.nan),
    )
    even[:, :n] = odd[:, 1 : n + 1] = apart[..., 1] = a[0]
    for given in (columns, even[None, :, :n], odd[None, :, 1 : n + 1], apart[None, ..., 1]):
        np.testing.assert_array_equal(given, a)
        assert all(map(np.array_equal, expected, solved(folder, given, b, arch="sm_90a")))


@pytest.mark.parametrize(
    "dtype, n, kind",
    [("d", 40, "general"), ("d", 40, "positive definite"), ("F", 30, "positive definite")],
)
def test_one_triangle_of_a_mirrored_matrix_is_read(folder, dtype, n, kind):
    """A positive definite matrix must have positive pivots; other entries are not read but noted."""
    g, b = stack(dtype, 4, n, 2)
    full = g @ np.swapaxes(g.conj(), 1, 2) / n + np.eye(n, dtype=dtype)
    full = (full + np.swapaxes(full.conj(), 1, 2)) / 2
    full[2] -= 3 * np.eye(n, dtype=dtype)  # indefinite
    given = full.copy()
    given[(slice(None), *np.tril_indices(n, -1))] = 7

    x, board, left = solved(folder, given, b, kind, (0, n, 2 if dtype == "F" else 1))

    check(full, b, x, board)
    assert (board[2] == 1).all() and (board[0] > 0).all()  # entries that are not read differ
    assert (board[8] > 0).tolist() == [False, False, kind == "positive definite", False]
    assert (left > 0).tolist() == (board[8] > 0).tolist()


@pytest.mark.parametrize(
    "name, dtype, n, k, kind",
    [
        ("solve_thread", "d", 7, 1, "general"),
        ("solve_thread", "D", 4, 1, "general"),
        ("solve_jordan", "d", 17, 3, "upper triangular"),
        ("solve_block", "f", 70, 9, "general"),
        ("solve_cholesky", "d", 50, 1, "positive definite"),
    ],
)
def test_other_kernels_solve_and_verify(folder, name, dtype, n, k, kind):
    a, b = stack(dtype, 3, n, k)
    a += 4 * n**0.5 * np.eye(n, dtype=dtype)
    band = None if kind == "general" else (0, n, int(kind == "positive definite"))
    how = {"definite": kind == "positive definite", "triangle": kind == "upper triangular"}
    shape = solve_shape(3, n, k, a.dtype, band is not None, arch="sm_80", multiprocessors=2, **how)
    assert shape.name == name and shape.before is None

    x, board, _ = solved(folder, a, b, kind, band)

    if band:
        a = np.triu(a)
    if kind == "positive definite":
        a = a + np.swapaxes(np.triu(a, 1), 1, 2)
    check(a, b, x, board)
    assert not board[8].any()


@pytest.mark.parametrize("dtype, n, lower", [("d", 49, True), ("d", 56, False), ("f", 65, True)])
def test_what_the_entries_show_of_a_definite_matrix(folder, dtype, n, lower):
    a, b = definite_stack(dtype, 7, n, 2)
    given, (i, j) = a.copy(), (n - 1, 2) if lower else (2, n - 1)  # an entry that is read
    given[1, j, i] = np.nan
    unread = np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)
    given[(2, *unread)] = 0
    given[3, j, i] += 0.5
    given[4, n - 1, n - 1] = a[4, n - 1, n - 1] = 0
    given[5, i, j] = np.inf
    by_columns = np.asfortranarray(given[6])
    apart = np.abs(given[3, j, i] - given[3, i, j])

    band = (n, 0, 1) if lower else (0, n, 1)
    x, board, _ = solved(folder, given, b, "positive definite", band)
    of_columns, *_ = solved(folder, by_columns[None], b[6:], "positive definite", band)

    sound = [0, 1, 2, 3, 6]
    check(a[sound], b[sound], x[sound], board[:, sound])
    assert np.array_equal(of_columns[0], x[6])
    others = np.abs(a[2][unread]).max()
    np.testing.assert_allclose(board[0, sound], [0, 0, others, apart, 0], rtol=1e-6)
    np.testing.assert_array_equal(board[1, sound], np.abs(a[sound]).max(axis=(1, 2)))
    assert board[2].tolist() == [1, 1, 0, 1, 1, 1, 1]  # entries that are not read are not zero
    assert board[3].tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert board[4].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert board[8, 4] == n and not board[8, sound].any()


def eliminated(folder, a, b, probes=2, seed=0, threads=128):
    """Return (info, y) of solve_definite.cu; on a GPU it has more threads, with the same results."""
    (m, n, k), chip = b.shape, {"arch": "sm_90a", "multiprocessors": 132}
    shape = across_shape(n, k + probes, a.dtype, definite=True, **chip)
    y, info = np.full((m, k + probes, n), np.nan), np.full(m, -7, np.int32)
    room = np.full(m * shape.room + 1, -1, np.int64)
    args = (y, info, room, *steps(a), *steps(b), m, n, k, probes)
    macros = {"T_A": "float" if a.dtype.char == "f" else "double", "COMPLEX": 0, "THREADS": threads}
    assert macros.keys() == {"T_A", "COMPLEX"} | shape.defines.keys()
    launch(folder, shape.name, m * shape.blocks, threads, args, macros, seed=seed)
    return info, y


def definite_stack(dtype, m, n, k):
    a, b = stack("d", m, n, k)
    a = (a @ a.swapaxes(1, 2) / n + 0.1 * np.eye(n)).astype(dtype)
    return (a + a.swapaxes(1, 2)) / 2, b.astype(dtype)


@pytest.mark.parametrize(
    "n, k, dtype",
    [
        (1, 1, "d"),
        (2, 17, "f"),
        (15, 3, "d"),
        (16, 30, "d"),
        (17, 1, "f"),
        (33, 16, "d"),
        (65, 2, "d"),
    ],
)
def test_squares_of_definite_systems_are_eliminated(folder, n, k, dtype):
    a, b = definite_stack(dtype, 3, n, k)
    info, y = eliminated(folder, a, b, seed=n)

    x, given = y[:, :k].swapaxes(1, 2), a.astype(np.float64)
    rest = np.abs(b - given @ x).max(axis=(1, 2))
    size = np.abs(given).sum(axis=2).max(axis=1) * np.abs(x).max(axis=(1, 2))
    assert not info.any() and (rest <= 4 * np.sqrt(n) * 2.0**-53 * size).all()
    assert 0.1 <= np.linalg.norm(given @ y[:, k:].swapaxes(1, 2)) / np.sqrt(6 * n) <= 1.74
    turned = np.asfortranarray(a[1:2].transpose(1, 2, 0)).transpose(2, 0, 1)
    for seed, matrix in ((1, a[1:2]), (2, turned)):  # the same bits, alone and with other strides
        _, alone = eliminated(folder, matrix, b[1:2, :, -1:], seed=seed)
        assert alone[0, 0].tobytes() == y[1, k - 1].tobytes()


def test_the_number_of_threads_does_not_change_a_bit(folder):
    a, b = definite_stack("d", 1, 49, 1)
    _, few = eliminated(folder, a, b)
    _, many = eliminated(folder, a, b, threads=512)
    assert few.tobytes() == many.tobytes()


@pytest.mark.parametrize("ridge", [1e-2, 1e-6])
@pytest.mark.parametrize("kernel", ["smooth", "constant"])
def test_squares_with_nearly_dependent_columns_are_eliminated_accurately(folder, kernel, ridge):
    n, t = 96, np.linspace(0, 1, 96)
    of_kernel = np.ones((n, n)) if kernel == "constant" else np.exp(-10 * (t[:, None] - t) ** 2)
    a = of_kernel + ridge * np.eye(n)
    b = a.sum(axis=1)[:, None]
    info, y = eliminated(folder, a[None], b[None])
    rest = np.abs(b - a @ y[0, :1].T).max() / np.abs(a).sum(axis=1).max() / np.abs(y[0, 0]).max()
    assert info == 0 and rest <= 2.0**-53 * (np.sqrt(n) + np.sqrt(np.linalg.cond(a)))


def test_nearly_singular_definite_systems_have_positive_pivots(folder):
    rng, values = np.random.default_rng(3), np.append(1.0, np.full(32, 2e-10))
    q = np.linalg.qr(rng.standard_normal((8, 33, 33)))[0]
    a = (q * values) @ q.swapaxes(1, 2)
    info, _ = eliminated(folder, (a + a.swapaxes(1, 2)) / 2, np.ones((8, 33, 1)))
    assert not info.any()


@pytest.mark.parametrize("step", [0, 15, 16, 63])
def test_the_first_row_without_a_positive_pivot_is_told(folder, step):
    a, b = definite_stack("d", 3, 64, 1)
    a[1, step, step] *= -1
    info, y = eliminated(folder, a, b)
    assert info.tolist() == [0, step + 1, 0] and np.isfinite(y[::2]).all()


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0xFFFFFFFFFFFFFFFF, 0x7FF0000000000000])
@pytest.mark.parametrize("where", [(3, 40), (49, 49)])
def test_nan_and_inf_stay_in_their_definite_system(folder, where, bits):
    a, b = definite_stack("d", 3, 50, 1)
    a.view(np.uint64)[(1, *where)] = bits
    info, y = eliminated(folder, a, b)
    assert info[0] == info[2] == 0 and np.isfinite(y[::2]).all() and not np.isfinite(y[1]).all()
