"""If an answer of cuBLAS or cuSOLVER is corrupted before it is measured, the report has its true error."""

import functools

import numpy as np
import pytest
from bounds import host

import tcsolve
from tcsolve import Plan, Status

pytestmark = pytest.mark.gpu
# The places of (rows, columns, B, ldb) in the arguments of routines that solve in place, and of the number of
# matrices, if B is an array of addresses.
ROUTINES = {
    ("cusolver", "getrs"): (2, 3, 7, 8, None),
    ("cusolver", "potrs"): (2, 3, 6, 7, None),
    ("cublas", "trsm"): (5, 6, 10, 11, None),
    ("cublas", "getrsBatched"): (2, 3, 7, 8, 10),
    ("cublas", "trsmBatched"): (5, 6, 10, 11, 12),
}


def corrupted(cupy, solve, places, dtype, calls, *args):
    """Call a routine of a library; then change the x that it wrote by up to three times itself."""
    solve(*args)
    rows, columns, at, ld = (args[i] for i in places[:4])
    at = getattr(at, "value", at)
    if places[4] is None:
        addresses = [at]
    else:
        addresses = _array(cupy, at, args[places[4]], np.uint64).get().tolist()
    for address in addresses:
        x = _array(cupy, address, ld * columns, dtype).reshape(columns, ld)[:, :rows]
        x *= cupy.random.default_rng(len(calls)).uniform(-3, 3, x.shape).astype(x.real.dtype) + 1
        calls.append(address)


def _array(cupy, address, size, dtype):
    """Return an array of memory that belongs to the caller."""
    nbytes = size * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(address, nbytes, None)
    return cupy.ndarray(size, dtype, cupy.cuda.MemoryPointer(memory, 0))


def matrix(n, char="d", m=None):
    rng = np.random.default_rng(n)
    shape = (n, n) if m is None else (m, n, n)
    a = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if char in "FD" else 0)
    return a.astype(char)


def definite(n):
    return matrix(n) @ matrix(n).T + n * np.eye(n)


# A matrix, options, and the number of right-hand sides for which a library solves, if that is not 3.
ROADS = {
    "general": (matrix(600), {}),
    "general, FP32": (matrix(600, "f"), {}),
    "complex": (matrix(600, "D"), {}),
    "complex, FP32": (matrix(600, "F"), {}),
    "positive definite": (definite(600), {"assume_a": "pos"}),
    "symmetric": (matrix(600) + matrix(600).T, {"assume_a": "sym"}),
    "triangular": (np.triu(matrix(200)) + 20 * np.eye(200), {"assume_a": "upper triangular"}),
    "stack": (matrix(300, m=4), {}, 64),
    "stack of complex matrices": (matrix(1100, "D", m=2), {}),
    "stack of triangles": (
        np.tril(matrix(200, m=3)) + 20 * np.eye(200),
        {"assume_a": "lower triangular"},
    ),
    "ladder, fp64": (matrix(600), {"precision": Plan("fp64", fallback=False)}, 20),
    "ladder, fp32": (matrix(600), {"precision": Plan("fp32", fallback=False)}, 20),
    "ladder, FP32": (matrix(600, "f"), {"precision": Plan("fp32", fallback=False)}, 20),
}


@pytest.mark.parametrize("road", ROADS)
def test_a_corrupted_answer_is_reported_with_its_own_error(cupy, monkeypatch, road):
    from cupy_backends.cuda.libs import cublas, cusolver

    a, options, *columns = ROADS[road]
    rng = np.random.default_rng(3)
    b = rng.standard_normal((*a.shape[:-1], *(columns or [3]))).astype(a.dtype)
    calls = []
    for (library, name), places in ROUTINES.items():
        module = {"cublas": cublas, "cusolver": cusolver}[library]
        for char, dtype in {"s": "f", "d": "d", "c": "F", "z": "D"}.items():
            solve = getattr(module, char + name)
            changed = functools.partial(corrupted, cupy, solve, places, dtype, calls)
            monkeypatch.setattr(module, char + name, changed)

    found = tcsolve.solve_ex(cupy.asarray(a), cupy.asarray(b), **options)

    assert calls  # an answer was corrupted
    x = host(found.x)
    wide = np.longdouble if a.dtype.kind == "f" else np.clongdouble
    rest = np.abs(b.astype(wide) - a.astype(wide) @ x.astype(wide)).max(axis=-2)
    norm = np.abs(a.astype(wide)).sum(axis=-1).max(axis=-1)[..., None]
    error = (rest / norm / np.abs(x).max(axis=-2)).astype(float)
    rounding = 2.0**-53 * a.shape[-1] ** 0.5 * 2
    np.testing.assert_allclose(found.backward_error, error, rtol=1e-4, atol=rounding)
    met = (error <= found.bound + rounding).all(axis=-1)
    for status, is_met in zip(found.statuses.ravel(), np.ravel(met), strict=True):
        assert is_met if status.ok else status in (Status.NOT_CONVERGED, Status.STALLED)
