"""Arrays that are not aligned, or have the other byte order, give the same answers as ordinary copies."""

import numpy as np
import pytest
from storage import STORED

import tcsolve
from tcsolve import InputError, factor, refine, solve, solve_ex
from tcsolve._arrays import is_aligned

STRUCTURES = [
    None,
    "upper triangular",
    "lower triangular",
    "symmetric",
    "hermitian",
    "positive definite",
    "tridiagonal",
    "banded",
    "diagonal",
]


def system(dtype, n=40):
    rng = np.random.default_rng(n)
    a = 20 * np.eye(n) + rng.uniform(-1, 1, (n, n))
    a, b = a + a.T, rng.uniform(-9, 9, (n, 3))
    if np.dtype(dtype).kind == "c":
        a, b = a + 1j * np.tril(a, -1) - 1j * np.triu(a, 1), b * (1 + 2j)
    return a.astype(dtype), b.astype(dtype)


@pytest.fixture(params=STORED)
def store(request):
    return request.param


@pytest.fixture(params=["f2", "f4", "f8", "c8", "c16", "i2", "i8"])
def dtype(request):
    return request.param


def same(x, y):
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_solve(dtype, store, structure):
    a, b = system(dtype)
    found = solve_ex(store(a), store(b), assume_a=structure)
    expected = solve_ex(a, b, assume_a=structure)
    assert same(found.x, expected.x) and found.status == expected.status


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp32", "fp64"])
def test_solve_ex(dtype, store, precision):
    a, b = system(dtype)
    found, expected = (solve_ex(*x, precision=precision) for x in ((store(a), store(b)), (a, b)))
    assert same(found.x, expected.x)
    assert found.status == expected.status
    assert np.array_equal(found.backward_error, expected.backward_error)


def moved(x, by):
    """Return a copy of x, row-major, `by` bytes after an address that is a multiple of 64."""
    room = np.empty(x.nbytes + 128, np.uint8)
    start = by - room.ctypes.data % 64 + 64
    out = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


@pytest.mark.parametrize("structure", ["general", "pos", "upper triangular"])
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("n", [40, 257, 300, 451])
def test_no_bit_depends_on_the_address(n, kind, structure):
    a = np.random.default_rng(n).uniform(-1, 1, (n, n))
    if structure == "pos":
        a = a @ a.T + np.eye(n)
    elif structure == "upper triangular":
        a = np.triu(a) + n * np.eye(n)
    a, b = a.astype(kind), np.ones(n, kind)
    found = [
        solve_ex(moved(a, by), moved(b, 3 * by % 64), assume_a=structure) for by in (0, 16, 32, 48)
    ]
    assert all(same(s.x, found[0].x) for s in found)
    assert len({s.rcond for s in found}) == 1
    assert len({float(s.backward_error.max()) for s in found}) == 1


def test_stacks(dtype, store):
    a, b = (np.stack([x] * 3) for x in system(dtype, 7))
    assert same(solve(store(a), store(b)), solve(a, b))


def test_factor(dtype, store):
    a, b = system(dtype)
    found, expected = factor(store(a)), factor(a)
    assert same(found.solve(store(b)), expected.solve(b))
    assert same(found.solve(store(b[:, 0])), expected.solve(b[:, 0]))


def test_refine(dtype, store):
    a, b = system(dtype)
    inverse = np.linalg.inv(a.astype(np.result_type(a, np.float64)))
    correct = lambda r: inverse @ r  # noqa: E731
    found, expected = refine(store(a), store(b), correct), refine(a, b, correct)
    assert same(found.x, expected.x)


def test_inputs_stay_as_they_are(dtype, store):
    a, b = (store(x) for x in system(dtype))
    before = a.tobytes(), b.tobytes()
    solve(a, b, overwrite_a=True, overwrite_b=True)
    assert (a.tobytes(), b.tobytes()) == before


# ---- on a device -------------------------------------------------------------------------------


def with_gaps(cupy, x):
    """Return x as a view whose rows are an odd number of real numbers apart."""
    parts = x.view(x.real.dtype)
    rows = cupy.zeros((*parts.shape[:-1], parts.shape[-1] + 1), parts.dtype)[..., :-1]
    rows[...] = cupy.asarray(parts)
    return rows.view(x.dtype)


def behind_one_number(cupy, x):
    """Return x as a view behind an aligned address: by half an entry if complex, by one byte if real."""
    by = x.itemsize // 2 if x.dtype.kind == "c" else 1
    raw = np.zeros(by + x.nbytes, np.uint8)
    raw[by:] = np.frombuffer(x.tobytes(), np.uint8)
    return cupy.asarray(raw)[by:].view(x.dtype).reshape(x.shape)


CALLS = {
    "solve": solve,
    "solve_ex": solve_ex,
    "factor": lambda a, b: factor(a).solve(b),
    "refine": lambda a, b: refine(a, b, lambda r: r),
    "lstsq_ex": tcsolve.lstsq_ex,
    "lu": lambda a, b: tcsolve.lu_solve(tcsolve.lu_factor(a), b),
    "cho": lambda a, b: tcsolve.cho_solve(tcsolve.cho_factor(a), b),
    "solve_triangular": tcsolve.solve_triangular,
    "solve_banded": lambda a, b: tcsolve.solve_banded((1, len(b) - 2), a, b),
    "inv": lambda a, b: (tcsolve.inv(a), tcsolve.inv(b)),
    "det": lambda a, b: (tcsolve.det(a), tcsolve.det(b)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("n", [4, 60, 300])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "kind, change",
    [("c16", with_gaps), ("c8", with_gaps)]
    + [(kind, behind_one_number) for kind in ("f4", "f8", "c8", "c16")],
)
def test_what_a_device_cannot_read_is_refused(n, call, kind, change, cupy):
    a = (n * np.eye(n) + np.ones((n, n))).astype(kind)
    whole, part = cupy.asarray(a), change(cupy, a)
    assert not is_aligned(part)

    for operands in ((part, whole), (whole, part)):
        with pytest.raises(InputError, match="which are not all multiples"):
            CALLS[call](*operands)


@pytest.mark.gpu
@pytest.mark.parametrize("stack", [False, True])
def test_products_refuse_what_is_not_aligned_each_time(stack, cupy):
    a = np.ones((3, 8, 8) if stack else (8, 8), np.float32)
    whole, part = cupy.asarray(a), behind_one_number(cupy, a)
    call = tcsolve.gemm_batched if stack else tcsolve.gemm
    for _ in range(2):
        for args in ({"a": part, "b": whole}, {"a": whole, "b": part}):
            with pytest.raises(InputError, match="which are not all multiples"):
                call(**args)
        with pytest.raises(InputError, match="c has the address"):
            call(whole, whole, beta=1.0, c=part)
        with pytest.raises(InputError, match="out has the address"):
            call(whole, whole, out=part)
    assert (call(whole, whole) == 8).all()


@pytest.mark.gpu
def test_the_stride_of_an_axis_with_one_entry_does_not_matter(cupy):
    row = cupy.zeros((1, 9))[:, :8].view(complex)
    assert row.strides == (72, 16) and is_aligned(row)
