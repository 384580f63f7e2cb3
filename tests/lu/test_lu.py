"""The blocked LU in every arithmetic, for many block sizes and strip widths, compared with SciPy's."""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
import scipy.linalg
from bounds import host, lu_error
from watched import Watched

from tcsolve import matrices
from tcsolve._arithmetic.formats import UPDATES, update_named
from tcsolve._backends.cpu.lu import HostLU, HostRules
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._backends.select import ops_for
from tcsolve._lu.elimination import factor_blocked
from tcsolve._lu.factors import factor_native

# Errors of elimination grow far slower than their bound n u; the constant covers small n.
GROWTH = 4


@dataclass(frozen=True)
class NarrowRules(HostRules):
    """Strips have few columns, so that small matrices have many strips."""

    width: int

    def strip(self, rows, columns, dominant):
        return self.width


@dataclass(frozen=True)
class AheadRules(NarrowRules):
    """The columns of the next panel are updated first, in the storage precision if the panel is narrow."""

    overlap_rows = 10

    def is_wide(self, columns, right):
        return columns > 8

    def near_update(self, update, columns):
        single = update.storage == "float32" and columns <= 8
        return UPDATES["fp32"] if single else update


@dataclass(frozen=True)
class SquareRules(AheadRules):
    """Panels of dominant matrices are square, up to the last columns."""

    def is_square(self, start, rows, columns, right, update):
        return self.is_wide(columns, right) and columns > self.width and right > 8


@dataclass(frozen=True)
class EarlyRules(AheadRules):
    """Panels of many rows are factored before the update that runs with them is over."""

    panel_rows = MappingProxyType({1: 30, 3: 30})


class NarrowLU(HostLU):
    narrow = NarrowRules

    def __init__(self, strip):
        self._strip = strip

    def rules(self, dtype, w=None):
        return self.narrow(np.dtype(dtype).char, self._strip)


class AheadLU(NarrowLU):
    narrow = AheadRules


class ReversedLU(AheadLU):
    """Does the whole update first, then factors the panel that could run at the same time."""

    def overlap(self, step):
        first = [step.solve_first]
        others = [step.complete, step.swap_rest, step.substitute, step.fill, step.swap_done]
        others.append(lambda: step.solve_rest(None))
        for part in others + first if step.swaps_known else first + others:
            part()
        step.update_first()
        step.rest(None)
        step.following.begin(None)
        step.following.finish()


class SquareLU(AheadLU):
    narrow = SquareRules


class ReversedSquareLU(ReversedLU):
    narrow = SquareRules


class InverseLU(AheadLU):
    """U is a product with an inverse wherever the schedule allows one."""

    def solver(self, l, plan=None):
        if plan is None:
            return super().solver(l)
        inverse = np.linalg.inv(np.tril(l, -1) + np.eye(len(l), dtype=l.dtype))

        def solve(b, share=None):
            b[...] = inverse @ b

        return solve


class EarlyLU(InverseLU):
    """L is rounded, and the inverse made, as soon as a panel of many rows is factored."""

    narrow = EarlyRules


class ReversedEarlyLU(ReversedLU, EarlyLU):
    narrow = EarlyRules


def storage_of(update, dtype):
    single = UPDATES[update].storage == "float32"
    if np.dtype(dtype).kind == "c":
        return np.complex64 if single else np.complex128
    return np.float32 if single else np.float64


def factored(a, update, block, strip, look_ahead=True, lu=NarrowLU, dominant=False):
    w = np.array(a, dtype=storage_of(update, a.dtype), order="C")
    ops = NumpyOps()
    ops.lu = lu(strip)
    return factor_blocked(ops, w, UPDATES[update], block, look_ahead, dominant)


def parts(factors):
    lu = factors.lu
    return np.tril(lu, -1) + np.eye(len(lu), dtype=lu.dtype), np.triu(lu)


@pytest.mark.parametrize("strip", [1, 3, 64])
@pytest.mark.parametrize("block", [1, 16, 33, 200])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("lu", [NarrowLU, AheadLU])
def test_pa_is_lu_up_to_the_roundoff_of_the_update(lu, update, block, strip, dtype):
    a = matrices.generate("gauss", 67, seed=1, dtype=dtype).a

    factors = factored(a, update, block, strip, lu=lu)

    lower, upper = parts(factors)
    assert factors.bad_pivot == 0
    assert sorted(factors.order.tolist()) == list(range(67))
    # Partial pivoting; complex xGETRF compares |re| + |im|, which is within sqrt(2) of the modulus.
    assert np.abs(lower).max() <= (np.sqrt(2) if dtype is complex else 1) * (1 + 1e-6)
    assert lu_error(a[factors.order], lower, upper) <= GROWTH * np.sqrt(67) * UPDATES[update].u


@pytest.mark.parametrize("strip", [1, 3, 8])
@pytest.mark.parametrize("block", [5, 16, 67])
@pytest.mark.parametrize("update", ["fp32", "fp64"])
def test_the_pivots_of_native_arithmetic_are_scipys(update, block, strip):
    a = matrices.generate("gauss", 67, seed=2).a.astype(storage_of(update, float))
    p, lower, upper = scipy.linalg.lu(a)

    factors = factored(a, update, block, strip)

    assert factors.order.tolist() == p.argmax(axis=0).tolist()
    mine = parts(factors)
    u = UPDATES[update].u
    cond = np.linalg.cond(a)
    assert np.abs(mine[0] - lower).max() <= 67 * u * cond
    assert np.abs(mine[1] - upper).max() <= 67 * u * cond * np.abs(upper).max()


# The primitives that an LU calls, in the order in which they return: for panels of one strip; for panels of
# two strips, where the second step does not look ahead; for a square panel of three strips, before one that
# is not square.
ONE_STRIP = """
    rules strip
    block_row operand strip
    block_row operand strip
    block_row block_row block_row finish
"""
TWO_STRIPS = """
    rules strip block_row operand strip swap_rows merge_swaps
    block_row operand swap_rows solver
    strip block_row operand strip swap_rows merge_swaps operand overlap
    block_row operand solver
    strip block_row operand strip swap_rows merge_swaps
    block_row block_row finish
"""
SQUARE = """
    rules strip block_row swap_rows operand strip swap_rows solver operand strip swap_rows merge_swaps square
    block_row operand swap_rows solver
    strip block_row swap_rows operand strip swap_rows solver operand strip swap_rows merge_swaps overlap
    block_row finish
"""


@pytest.mark.parametrize(
    "lu, n, block, strip, expected",
    [
        (NarrowLU, 24, 8, 8, ONE_STRIP),
        (AheadLU, 24, 8, 4, TWO_STRIPS),
        (SquareLU, 40, 20, 8, SQUARE),
    ],
)
def test_the_primitives_are_called_in_the_order_of_the_plan(lu, n, block, strip, expected):
    ops = NumpyOps()
    ops.lu = Watched(lu(strip))

    factor_blocked(ops, dominant_matrix(n).astype("f"), UPDATES["fp16x3"], block, True, True)

    assert [call.name for call in ops.lu.calls] == expected.split()


def test_three_products_are_nearly_as_good_as_fp32_and_a_hundred_times_better_than_one():
    a = matrices.generate("gauss", 300, seed=3).a

    error = {}
    for update in ("fp16", "fp16x3", "fp32"):
        factors = factored(a, update, 32, 32)
        error[update] = lu_error(a[factors.order], *parts(factors))

    assert error["fp16x3"] <= 3 * error["fp32"]
    assert 100 * error["fp16x3"] <= error["fp16"]


def test_one_product_of_bf16_is_worse_than_of_tf32():
    a = matrices.generate("gauss", 200, seed=3).a
    error = {
        update: lu_error(a[f.order], *parts(f))
        for update in ("bf16", "tf32")
        for f in [factored(a, update, 32, 32)]
    }

    assert 3 * error["tf32"] <= error["bf16"]


@pytest.mark.parametrize("strip", [1, 3, 8, 64])
@pytest.mark.parametrize("block", [5, 16, 33])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", [float, complex])
def test_panels_beside_updates_in_either_order_give_the_bits_of_one_after_the_other(
    update, block, strip, dtype
):
    a = matrices.generate("gauss", 67, seed=8, dtype=dtype).a

    expected = factored(a, update, block, strip, look_ahead=False, lu=AheadLU)

    for lu in (AheadLU, ReversedLU):
        factors = factored(a, update, block, strip, lu=lu)
        assert np.array_equal(factors.lu, expected.lu)
        assert np.array_equal(factors.order, expected.order)
        assert factors.diagonal()[1] == expected.diagonal()[1]


@pytest.mark.parametrize("strip", [1, 3, 8])
@pytest.mark.parametrize("block", [5, 16, 33])
@pytest.mark.parametrize("update", UPDATES)
def test_what_a_wide_panel_prepares_early_changes_no_bit(update, block, strip):
    a = matrices.generate("gauss", 67, seed=8).a

    expected = factored(a, update, block, strip, look_ahead=False, lu=InverseLU)

    for lu in (InverseLU, EarlyLU, ReversedEarlyLU):
        for look_ahead in (True, False):
            factors = factored(a, update, block, strip, look_ahead, lu=lu)
            assert np.array_equal(factors.lu, expected.lu)
            assert np.array_equal(factors.order, expected.order)


def dominant_matrix(n, dtype=float, seed=9):
    """Return a matrix whose pivots are on the diagonal."""
    return matrices.generate("gauss", n, seed=seed, dtype=dtype).a + n * np.eye(n)


@pytest.mark.parametrize("strip", [1, 3, 8])
@pytest.mark.parametrize("block", [9, 16, 33, 55])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", [float, complex])
def test_square_panels_of_a_dominant_matrix_give_the_same_factors(update, block, strip, dtype):
    a = dominant_matrix(67, dtype)
    whole = factored(a, update, block, strip)

    found = [
        factored(a, update, block, strip, look_ahead, lu, True)
        for lu, look_ahead in ((SquareLU, False), (SquareLU, True), (ReversedSquareLU, True))
    ]

    for factors in found:
        assert not factors.misled and factors.bad_pivot == 0
        assert np.array_equal(factors.order, np.arange(67))
        assert np.array_equal(factors.lu, found[0].lu)
    # The factors differ only in the rounding of L below the squares.
    assert np.abs(found[0].lu - whole.lu).max() <= 67 * UPDATES[update].u * np.abs(whole.lu).max()
    assert lu_error(a, *parts(found[0])) <= GROWTH * np.sqrt(67) * UPDATES[update].u


@pytest.mark.parametrize("block", [16, 33])
@pytest.mark.parametrize("update", UPDATES)
def test_pivots_inside_a_square_panel_are_found_wherever_they_are(update, block):
    a = dominant_matrix(67)
    a[:block] = a[np.random.default_rng(1).permutation(block)]

    factors = factored(a, update, block, 8, lu=SquareLU, dominant=True)

    assert not factors.misled
    assert sorted(factors.order[:block]) == list(range(block)) and factors.diagonal()[1] in (-1, 1)
    assert (factors.order[:block] != np.arange(block)).any()
    lower, upper = parts(factors)
    assert np.abs(lower).max() <= 1
    assert lu_error(a[factors.order], lower, upper) <= GROWTH * np.sqrt(67) * UPDATES[update].u


@pytest.mark.parametrize("row", [16, 40, 66])
@pytest.mark.parametrize("column", [0, 15, 20])
@pytest.mark.parametrize("value", [1.5 * 67, -3.0 * 67, np.nan, np.inf])
def test_a_pivot_below_a_square_panel_misleads(value, column, row):
    a = dominant_matrix(67)
    if row // 16 == column // 16:  # the pivot is in the square, and the search finds it
        row += 16
    a[row, column] = value

    with np.errstate(all="ignore"):
        factors = factored(a, "fp32", 16, 8, lu=SquareLU, dominant=True)

    assert factors.misled and not factors.are_good


@pytest.mark.parametrize("kind", ["blocked", "native"])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("nrhs", [1, 4])
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_the_factors_solve_with_the_matrix_and_its_adjoint(dtype, adjoint, nrhs, order, kind):
    a = np.array(matrices.generate("gauss", 50, seed=4, dtype=dtype).a, order=order)
    b = np.random.default_rng(0).standard_normal((50, nrhs)).astype(dtype)
    kept = a.copy(), b.copy()
    if kind == "blocked":
        update = "fp32" if a.real.dtype == np.float32 else "fp64"
        factors = factored(a, update, 16, 4)
    else:
        factors = factor_native(NumpyOps(), a, a.dtype)

    x = factors.solve_scaled(b.astype(np.result_type(dtype, np.float64)), adjoint)

    assert x.dtype == np.result_type(dtype, np.float64) and x.shape == b.shape
    assert np.array_equal(a, kept[0]) and np.array_equal(b, kept[1])
    op = a.conj().T if adjoint else a
    u = 2.0**-24 if a.real.dtype == np.float32 else 2.0**-53
    residual = np.abs(b - op.astype(np.complex128) @ x).max()
    assert residual <= 50 * u * np.abs(op).sum(axis=1).max() * np.abs(x).max()


@pytest.mark.parametrize("kind", ["blocked", "native"])
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_the_diagonal_and_the_sign_give_the_determinant(n, dtype, kind):
    a = matrices.generate("gauss", n, seed=n, dtype=dtype).a
    if kind == "blocked":
        factors = factored(a, "fp64", 16, 4)
    else:
        factors = factor_native(NumpyOps(), a, a.dtype)

    diagonal, sign = factors.diagonal()

    assert sign * np.prod(diagonal) == pytest.approx(np.linalg.det(a), rel=1e-10)


@pytest.mark.parametrize("strip", [1, 3, 64])
@pytest.mark.parametrize("block", [5, 64])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("column", [0, 4, 5, 39])
def test_a_zero_pivot_is_reported_by_its_column(column, update, block, strip):
    a = np.random.default_rng(5).standard_normal((40, 40))
    a[:, column] = 0

    assert factored(a, update, block, strip).bad_pivot == column + 1


@pytest.mark.parametrize("strip", [1, 3, 64])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("column", [0, 17, 39])
def test_a_column_of_nan_is_a_bad_pivot_no_later_than_there(column, value, update, strip):
    a = np.random.default_rng(5).standard_normal((40, 40))
    a[:, column] = value

    with np.errstate(all="ignore"):
        assert 1 <= factored(a, update, 16, strip).bad_pivot <= column + 1


def test_a_good_matrix_has_no_bad_pivot_and_an_exact_one_is_exact():
    a = np.array([[1.0, 2, 0], [4, 4, 8], [2, 0, 16]])

    for update in UPDATES:
        factors = factored(a, update, 1, 1)
        assert factors.bad_pivot == 0
        lower, upper = parts(factors)
        assert np.array_equal(a[factors.order], lower @ upper), update


# ---- the update


def exact_product(l, u):
    return l.astype(np.longdouble) @ u.astype(np.longdouble)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("scale", [2.0**-60, 1e-6, 1.0, 1e6, 2.0**60])
def test_an_update_errs_by_the_roundoff_of_its_operands(update, scale):
    rng, how = np.random.default_rng(6), UPDATES[update]
    l = rng.uniform(-1, 1, (30, 20)).astype(how.storage)
    u = (scale * rng.standard_normal((20, 25))).astype(how.storage)
    c = (scale * rng.standard_normal((30, 25))).astype(how.storage)
    exact = c - exact_product(l, u)
    size = np.abs(c) + exact_product(np.abs(l), np.abs(u))

    HostLU().operand(l, how)(c, u)

    storage = 2.0**-24 if how.storage == "float32" else 2.0**-53
    operands = (2 + how.format.u) * how.format.u
    if (
        how.products == 3
    ):  # lo is rounded, lo times lo is dropped, and subnormals lose 2**-39 of the largest entry
        operands = 3 * how.format.u**2 + 2.0**-36 * scale * 4 / size.min()
    bound = (operands + 22 * storage) * size
    assert (np.abs(c - exact) <= bound).all()
    # The error is not far smaller than the bound either: an update without rounding would be no emulation.
    if how.products == 1 and not how.native:
        assert np.abs(c - exact).max() >= 0.01 * how.format.u * size.max()


@pytest.mark.parametrize(
    "update",
    ["fp16@h200", *(name for name, how in UPDATES.items() if how.storage == "float32")],
)
def test_an_update_with_tiny_entries_stays_in_range(update):
    l, u, c = np.full((4, 4), 0.5, "f"), np.full((4, 4), 2.0**-120, "f"), np.zeros((4, 4), "f")
    HostLU().operand(l, update_named(update))(c, u)
    np.testing.assert_array_equal(c, np.full((4, 4), -(2.0**-119), "f"))


@pytest.mark.parametrize("update", UPDATES)
def test_a_complex_update_errs_by_the_roundoff_of_its_operands(update):
    rng, how = np.random.default_rng(7), UPDATES[update]
    dtype = np.complex64 if how.storage == "float32" else np.complex128
    parts_ = lambda m, k: rng.standard_normal((m, k)) + 1j * rng.standard_normal((m, k))  # noqa: E731
    l, u, c = (parts_(*shape).astype(dtype) for shape in ((30, 20), (20, 25), (30, 25)))
    exact = c.astype(np.clongdouble) - l.astype(np.clongdouble) @ u
    size = np.abs(c) + 2 * np.abs(l) @ np.abs(u)

    HostLU().operand(l, how)(c, u)

    assert (np.abs(c - exact) <= 8 * max(how.u, 2.0**-53) * size).all()


def test_an_update_of_nothing_changes_nothing():
    for shape in ((0, 5), (5, 0)):
        c = np.ones(shape, np.float32)
        subtract = HostLU().operand(np.ones((shape[0], 3), "f"), UPDATES["fp16"])
        subtract(c, np.ones((3, shape[1]), "f"))
        assert c.shape == shape


@pytest.mark.parametrize(
    "entry, told", [(1.0, 0), (-1.0, 0), (np.nextafter(1, 2), 1), (-2.0, 1), (np.nan, 1)]
)
def test_entries_of_l_that_are_larger_than_1_are_told(entry, told):
    l, bound = np.full((3, 2), 0.5), [0]
    l[2, 1] = entry

    HostLU().operand(l, UPDATES["fp64"], bound=bound)

    assert bound == [told]


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("n, k", [(1, 256), (70, 255), (70, 256), (300, 300)])
def test_the_factors_of_the_library_solve_for_many_columns(xp, dtype, order, n, k):
    rng, ops = np.random.default_rng(n + k), ops_for(xp.ones(1))
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, k))
    if dtype in "FD":
        a, b = a + 1j * rng.standard_normal((n, n)), b - 1j * rng.standard_normal((n, k))
    a, b = a.astype(dtype), b.astype(dtype)
    factors, zero_pivot = ops.lu.getrf(xp.asarray(a, order=order), np.dtype(dtype))
    assert zero_pivot == 0
    for adjoint in (False, True):
        x = host(factors.solve(xp.asarray(b), adjoint)).astype(np.result_type(dtype, float))
        full = (a.T.conj() if adjoint else a).astype(x.dtype)
        error = (
            np.abs(b - full @ x).max(axis=0)
            / np.abs(full).sum(axis=1).max()
            / np.abs(x).max(axis=0)
        )
        assert (error <= 16 * n**0.5 * np.finfo(dtype).eps).all()
