"""Triangular solves and inverses against NumPy, on a device."""

import numpy as np
import pytest
from on_device import NO_PIVOT
from tcsolve.kernels.launch_shapes import TRSV_BLOCK, TRSV_THREADS
from tcsolve.kernels.registry import KERNELS

from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cuda.runtime import compiler
from tcsolve._contract.schedule import SolvePlan

pytestmark = pytest.mark.gpu


# ---- triangles and their diagonal blocks -----------------------------------------------------

REAL = {"f": "float", "d": "double"}


def well_conditioned(char, n, padding=0):
    """Return both triangles of a matrix, NaN in the padding of its rows."""
    rng = np.random.default_rng([n, padding])
    lu = np.full((n, n + padding), np.nan)
    lu[:, :n] = rng.uniform(-1, 1, (n, n)) / np.sqrt(n)
    np.fill_diagonal(lu, rng.uniform(1, 2, n) * rng.choice([-1, 1], n))
    return lu.astype(char)


def triangle(lu, lower, unit):
    """Return one triangle of a square matrix in FP64."""
    t = np.tril(lu.astype(float)) if lower else np.triu(lu.astype(float))
    if unit:
        np.fill_diagonal(t, 1)
    return t


def diagonal_blocks(t, size):
    """Return the inverses of the diagonal blocks, padded by zeros, and the largest condition number."""
    count = -(-len(t) // size)
    blocks, worst = np.zeros((count, size, size)), 0
    for i in range(count):
        part = slice(i * size, (i + 1) * size)
        d = t[part, part]
        blocks[i, : len(d), : len(d)] = np.linalg.inv(d)
        worst = max(worst, (np.abs(np.linalg.inv(d)) @ np.abs(d)).sum(axis=1).max())
    return blocks, worst


@pytest.fixture
def invert_blocks(cupy):
    """A function that returns the inverted diagonal blocks and their largest condition, on the host."""

    def run(lu, n, unit_lower):
        char = lu.dtype.char
        size = TRSV_BLOCK[char]
        inverses = cupy.full((2, -(-n // size), size, size), 7, char)
        worst = cupy.zeros(1)
        kernel = compiler.kernel("invert_diagonal_blocks", "tcs_invert_blocks", T_IN=REAL[char])
        args = (inverses, worst, cupy.asarray(lu), lu.shape[1], n, unit_lower, 0)
        kernel((inverses.shape[1], 2), (256,), args)
        return inverses.get(), float(worst[0])

    return run


@pytest.mark.parametrize("unit_lower", [0, 1])
@pytest.mark.parametrize("n, padding", [(1, 0), (31, 1), (64, 0), (129, 3), (300, 4), (512, 0)])
@pytest.mark.parametrize("char", ["f", "d"])
def test_diagonal_blocks_are_inverted(char, n, padding, unit_lower, invert_blocks):
    lu = well_conditioned(char, n, padding)

    inverses, worst = invert_blocks(lu, n, unit_lower)

    conditions = []
    for half, lower in enumerate((True, False)):
        t = triangle(lu[:, :n], lower, lower == bool(unit_lower))
        expected, condition = diagonal_blocks(t, TRSV_BLOCK[char])
        conditions.append(condition)
        assert (inverses[half][expected == 0] == 0).all()
        error = np.abs(inverses[half] - expected).max()
        assert error <= 10 * np.finfo(char).eps * condition * np.abs(expected).max()
    assert worst == pytest.approx(max(conditions), rel=1e-4)


@pytest.mark.parametrize("bad", [0, np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 70, 299])
@pytest.mark.parametrize("char", ["f", "d"])
def test_a_pivot_without_an_inverse_makes_a_condition_that_is_not_finite(
    char, at, bad, invert_blocks
):
    lu = well_conditioned(char, 300)
    lu[at, at] = bad

    assert not np.isfinite(invert_blocks(lu, 300, 1)[1])


def clusters_of(name, cupy):
    """Return the sizes of clusters that a kernel is compiled with for this device; 0 is none."""
    arch = compiler.target_arch(cupy.cuda.Device())
    return {v["BLOCKS"] for v in KERNELS[name].variants_for(arch)}


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("char", ["f", "d"])
def test_triangle_is_solved_with_the_same_bits_by_any_blocks(char, columns, lower, trans, cupy):
    for n, padding in ((1, 0), (100, 0), (128, 4), (600, 3), (1029, 3), (2000, 0), (2500, 0)):
        lu = well_conditioned(char, n, padding)
        t = triangle(lu[:, :n], lower, False)
        inverses, _ = diagonal_blocks(t, TRSV_BLOCK[char])
        b = np.random.default_rng(n).standard_normal((columns, n)).astype(char)
        inputs = (cupy.asarray(b), cupy.asarray(lu), n + padding, n, cupy.asarray(inverses, char))
        results = []
        for cluster in clusters_of("triangular_solve", cupy):
            defines = {"K": columns, "LOWER": lower, "TRANS": trans, "BLOCKS": cluster}
            kernel = compiler.kernel(
                "triangular_solve", "tcs_solve_triangle", T_IN=REAL[char], **defines
            )
            for blocks in (
                48,
                48,
                8,
            ):  # 48 are more than there is work for; 8 are at most one cluster
                x = cupy.full((columns, n * b.itemsize), 255, cupy.uint8).view(char)
                ticket = cupy.full(1, 2**32 - 1, cupy.uint32)
                kernel((blocks,), (TRSV_THREADS,), (x, *inputs, ticket, None))
                results.append(x.get())
        expected = np.linalg.solve(t.T if trans else t, b.T.astype(float)).T
        error = np.abs(results[0] - expected).max()
        assert all(np.array_equal(results[0], other) for other in results[1:])
        assert error <= 50 * np.finfo(char).eps * np.abs(expected).max()


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("char", ["f", "d"])
def test_a_nan_of_all_bits_is_passed_on_as_another(char, trans, cupy):
    """With all bits set, it would mean that the value is not there yet, and readers would wait forever."""
    n, at = 1500, 70
    lu = well_conditioned(char, n)
    inverses, _ = diagonal_blocks(triangle(lu, 1, False), TRSV_BLOCK[char])
    b = np.ones((1, n), char)
    b.view(np.uint8)[:, at * b.itemsize : (at + 1) * b.itemsize] = 255
    inputs = (cupy.asarray(b), cupy.asarray(lu), n, n, cupy.asarray(inverses, char))
    for cluster in clusters_of("triangular_solve", cupy):
        defines = {"K": 1, "LOWER": 1, "TRANS": trans, "BLOCKS": cluster}
        kernel = compiler.kernel(
            "triangular_solve", "tcs_solve_triangle", T_IN=REAL[char], **defines
        )
        x = cupy.full((1, n * b.itemsize), 255, cupy.uint8).view(char)
        kernel((16,), (TRSV_THREADS,), (x, *inputs, cupy.full(1, 2**32 - 1, cupy.uint32), None))

        bits = x.get().view(np.uint8).reshape(n, -1)
        assert np.isnan(x.get()[0, 0 if trans else -1]) and not (bits == 255).all(axis=1).any()


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("columns", [1, 17, 64, 133, 600])
@pytest.mark.parametrize("n", [1, 127, 128, 129, 700, 1027])
@pytest.mark.parametrize("recorded", [False, True])
def test_many_columns_are_solved_with_both_triangles(recorded, n, columns, adjoint, cupy):
    from tcsolve._backends.cuda.lu.many_columns import solve_triangles
    from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks
    from tcsolve._backends.cuda.runtime import recorded_graphs

    host, rng = well_conditioned("f", n), np.random.default_rng([n, columns])
    lu = recorded_graphs.matrix(n, np.float32) if recorded else cupy.empty((n, n), "f")
    lu[...] = cupy.asarray(host)
    order, b = rng.permutation(n), rng.standard_normal((n, columns)).astype("f")
    known = lu, cupy.asarray(order), adjoint, invert_diagonal_blocks(lu)[0]

    found = [solve_triangles(*known, cupy.asarray(b)).get() for _ in range(3)]

    a = np.empty((n, n))
    a[order] = triangle(host, True, True) @ triangle(host, False, False)
    expected = np.linalg.solve(a.T if adjoint else a, b)
    error = np.abs(found[0] - expected).max(axis=0)
    assert (error < 1e-4 * np.abs(expected).max(axis=0)).all()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_a_solution_is_added_to_what_there_is(cupy):
    from tcsolve._backends.cuda.lu.substitution import invert_diagonal_blocks, substitute

    n, rng = 1029, np.random.default_rng(0)
    lu = cupy.asarray(well_conditioned("f", n, 3))[:, :n]
    inverses, _ = invert_diagonal_blocks(lu)
    b, base = cupy.asarray(rng.standard_normal((n, 1))), cupy.asarray(rng.standard_normal((1, n)))
    x = substitute(lu, b, False, inverses, None, None)

    out, sizes = cupy.empty((2, n)), cupy.zeros(1)
    for row, known in ((out[:1], False), (out[1:], True)):
        options = {"out": row, "onto": base, "sizes": sizes, "known": known}
        substitute(lu, b, False, inverses, None, None, **options)
        assert sizes[0] == (abs(b).max() / 8 if known else abs(b).max())
        sizes /= 8  # known sizes are used as they are; a power of two changes no bit of x

    assert (out == base + x.T).all()


@pytest.mark.parametrize("columns", [1, 4])
def test_a_triangle_is_not_read_where_all_is_zero(columns, cupy):
    n = 1029
    lu, inverses = (cupy.full(shape, np.nan, "f") for shape in ((n, n), (9, 128, 128)))
    x, tops = cupy.full((columns, n), np.nan, "f"), cupy.zeros(columns, cupy.uint64)
    b, ticket = cupy.zeros_like(x), cupy.full(1, 2**32 - 1, cupy.uint32)
    for cluster in clusters_of("triangular_solve", cupy):
        x[...] = np.nan
        defines = {"T_IN": "float", "K": columns, "LOWER": 1, "TRANS": 0, "BLOCKS": cluster}
        kernel = compiler.kernel("triangular_solve", "tcs_solve_triangle", **defines)

        kernel((24,), (TRSV_THREADS,), (x, b, lu, n, n, inverses, ticket, tops))

        assert (x == 0).all() and int(ticket[0]) == 2**32 - 1


# ---- rows of U right of a panel --------------------------------------------------------------


@pytest.mark.parametrize("update", ["fp32", "fp16x3"])
@pytest.mark.parametrize("n", [40, 5000])
@pytest.mark.parametrize("k", [1, 100, 129, 300, 512, 1000])
def test_substitution_by_halves_or_by_an_inverse(k, n, update, cupy, ops, monkeypatch):
    from tcsolve._backends.cuda.gemm import wgmma

    made, product = [], wgmma.Lower.of
    monkeypatch.setattr(wgmma.Lower, "of", lambda *args: made.append(args) or product(*args))
    rng = np.random.default_rng([k, n])
    l = (rng.uniform(-1, 1, (k, k)) / np.sqrt(k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    storage = cupy.full((k, -(-k // 4) * 4 + 4), 7, cupy.float32)
    storage[:, :k] = cupy.asarray(l)
    x = cupy.asarray(b)

    def solve(x):
        ops.lu.solver(storage[:, :k], SolvePlan(n, UPDATES[update], False))(x)

    solve(x)
    assert len(made) == (update == "fp16x3" and k > 128 and n == 5000)

    lower = np.tril(l.astype(float), -1) + np.eye(k)
    error = np.abs(lower @ x.get() - b)
    assert (error <= 8 * np.sqrt(k) * UPDATES[update].u * (np.abs(lower) @ np.abs(x.get()))).all()
    again = cupy.asarray(b)
    solve(again)
    assert (x == again).all()


def inverted(cupy, k, well_conditioned):
    """Return a unit lower triangle in FP64 on the host, and its inverse on the device."""
    from tcsolve._backends.cuda.lu.triangle_inverse import unit_lower_inverse

    l = np.random.default_rng(k).uniform(-1, 1, (k, k)) / np.sqrt(k)
    storage = cupy.full((k, -(-k // 4) * 4 + 4), np.nan, cupy.float32)
    storage[:, :k] = cupy.asarray(l)
    lower = np.tril(storage[:, :k].get().astype(float), -1) + np.eye(k)
    cupy.full((k, k), np.nan, cupy.float32)  # the memory that the inverse will have
    return lower, unit_lower_inverse(storage[:, :k], well_conditioned)


both_inverses = pytest.mark.parametrize("well_conditioned", [True, False])
orders = pytest.mark.parametrize("k", [100, 128, 129, 192, 300, 512, 1000, 1024])


@both_inverses
@orders
def test_an_inverse_is_that_of_the_unit_triangle(k, well_conditioned, cupy):
    lower, made = inverted(cupy, k, well_conditioned)

    inverse = made.get()
    assert np.array_equal(inverse, np.tril(inverse)) and (inverse.diagonal() == 1).all()
    # The bound for substitution in the blocks, and for joining halves (Higham, section 14.2.2).
    u = 2.0**-24
    exact = np.linalg.inv(lower)
    bound = 4 * k * u * (np.abs(exact) @ np.abs(lower) @ np.abs(exact))
    assert (np.abs(inverse - exact) <= bound).all()


@both_inverses
@orders
@pytest.mark.parametrize("columns", [1, 700, 5000])
def test_products_with_an_inverse_solve(columns, k, well_conditioned, hopper):
    from tcsolve._backends.cuda.gemm import wgmma

    lower, made = inverted(hopper, k, well_conditioned)
    b = np.random.default_rng([k, columns]).standard_normal((k, columns)).astype(np.float32)
    x = hopper.asarray(b)

    wgmma.Lower.of(made, UPDATES["fp16x3"], 132).apply(x, None)

    error = np.abs(lower @ x.get() - b)
    size = np.abs(lower) @ np.abs(np.linalg.inv(lower)) @ np.abs(b)
    assert (error <= 8 * np.sqrt(k) * UPDATES["fp16x3"].u * size.max(axis=0)).all()


@pytest.mark.parametrize("m, k, start", [(1, 1, 0), (300, 300, 0), (300, 7, 5), (5000, 512, 1024)])
def test_the_swaps_of_a_panels_strips_become_one(m, k, start, cupy, ops):
    rng = np.random.default_rng([m, k])
    order, local = rng.permutation(m).astype("i"), rng.permutation(m).astype("i")
    ipiv = (start + rng.integers(0, m, k)).astype("i")
    there = [cupy.asarray(x) for x in (order, local, ipiv)]

    dst, src, moves = (x.get() for x in ops.lu.merge_swaps(*there, start))

    numpy_dst, numpy_src = HostLU().merge_swaps(order, local, ipiv, start)
    assert np.array_equal(dst, numpy_dst) and np.array_equal(src, numpy_src)
    assert np.array_equal(there[0].get(), order) and np.array_equal(there[1].get(), local)
    assert bool(moves[0]) == (ipiv - start != np.arange(k)).any()


@pytest.mark.parametrize("n, moved", [(1, 0), (31, 31), (1024, 5), (5000, 4999)])
def test_a_report_counts_the_rows_that_were_exchanged(n, moved, cupy):
    from tcsolve._backends.cuda.lu import row_swaps

    ipiv = np.arange(n, dtype="i")
    ipiv[np.random.default_rng(n).choice(n, moved, replace=False)] += 1
    info, beyond, condition = np.full(1, NO_PIVOT, "i"), np.ones(1, "i"), np.array([np.nan])
    there = (cupy.asarray(x) for x in (info, ipiv, condition, beyond))

    report = row_swaps.report(*there).get()

    assert np.array_equal(report, [NO_PIVOT, moved, np.nan, 1], equal_nan=True)
