"""Calls of cuBLAS on row-major views; no global setting changes a result.

We make our own handles, with a fixed math mode: one for each thread, device, lane, and place of the scalars
(host or device).  A lane is a group of calls that may run at the same time as those of other lanes.  Each
call names the precision of its product.
"""

import contextlib
import ctypes
import functools
import sys
import threading

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas

from tcsolve._arithmetic.formats import PREFIX

__all__ = [
    "LANES",
    "column_parts",
    "gemm",
    "gemm_at",
    "gemm_in_blocks",
    "gemm_of_stack",
    "gemm_packed",
    "gemm_strided",
    "gemv",
    "handle",
    "lane",
    "ld",
    "product",
    "recordable",
    "recorded",
    "scalar",
    "zeros",
    "solve_left",
    "solve_right",
    "stores",
    "triangle",
]

# cuBLAS enumerations, by their names in cublas_api.h and library_types.h.
COMPUTE_32F, COMPUTE_32F_FAST_TF32, GEMM_DEFAULT = 68, 77, -1
CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF = 0, 2, 14
DEFAULT_MATH = 0
# The cuBLAS type and the compute type of packed operands.
OPERANDS = {
    "fp16": (CUDA_R_16F, COMPUTE_32F),
    "bf16": (CUDA_R_16BF, COMPUTE_32F),
    "tf32": (CUDA_R_32F, COMPUTE_32F_FAST_TF32),
}
# The cuBLAS type of a result, by its dtype.
RESULT = {"float32": 0, "float16": 2, "bfloat16": 14, "int32": 10, "float64": 1}
# The dtypes of a result that cuBLAS allows, by the precision of the operands.
STORES = {
    "fp16": ("float32", "float16"),
    "bf16": ("float32", "bfloat16"),
    "tf32": ("float32",),
    "int8": ("int32",),
    "fp32": ("float32",),
    "fp64": ("float64",),
}
# The operand type, the compute type, and the dtype of alpha and beta, by precision.
CUDA_R_8I, CUDA_R_64F, COMPUTE_32I, COMPUTE_64F = 3, 1, 72, 70
PRODUCTS = {low: (*kinds, "f") for low, kinds in OPERANDS.items()} | {
    "int8": (CUDA_R_8I, COMPUTE_32I, "i"),
    "fp32": (CUDA_R_32F, COMPUTE_32F, "f"),
    "fp64": (CUDA_R_64F, COMPUTE_64F, "d"),
}
# Largest number of right-hand sides in one triangular solve.  The libraries do not document a limit; this
# number is enough to keep the device busy.
MOST_COLUMNS = 1 << 15
# Number of lanes.
LANES = 3
# The size of a workspace that NVIDIA recommends for Hopper.  cuBLAS chooses the algorithm of a product by the
# size of its workspace.
WORKSPACE_BYTES = 32 << 20
# The functions that can be recorded: C name and argument types ('p' address, 'i' int, 'n' size_t).
RECORDED = {
    "sgemm": ("cublasSgemm_v2", "piiiiippipippi"),
    "sgemmStridedBatched": ("cublasSgemmStridedBatched", "piiiiippinpinppini"),
    "strsm": ("cublasStrsm_v2", "piiiiiippipi"),
    "gemmEx": ("cublasGemmEx", "piiiiippiipiippiiii"),
    "setStream": ("cublasSetStream_v2", "pp"),
    "setWorkspace": ("cublasSetWorkspace_v2", "ppn"),
}
C_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "n": ctypes.c_size_t}

_local = threading.local()


class _Handle:
    """A cuBLAS handle on a device; it is destroyed when its thread has ended and no graph needs it."""

    def __init__(self, device, device_scalars):
        self._device, self.number = device, cublas.create()
        cublas.setMathMode(self.number, DEFAULT_MATH)
        where = "DEVICE" if device_scalars else "HOST"
        cublas.setPointerMode(self.number, getattr(cublas, f"CUBLAS_POINTER_MODE_{where}"))

    def __del__(self):
        if sys.is_finalizing():  # cuBLAS may be unloaded already
            return
        with contextlib.suppress(Exception), cupy.cuda.Device(self._device):
            cublas.destroy(self.number)


def handle(*, device_scalars=False):
    """Return the handle of this thread and lane for the current device, set to the current stream."""
    handles = _local.__dict__.setdefault("handles", {})
    key = (cupy.cuda.runtime.getDevice(), device_scalars, _lane())
    if key not in handles:
        handles[key] = _Handle(*key[:2])
    number = handles[key].number
    _call("setStream", number, cupy.cuda.get_current_stream().ptr)
    if workspace := getattr(_local, "workspace", None):
        memory = workspace(key[-1])
        _call("setWorkspace", number, memory.data.ptr, memory.nbytes)
        _local.used.add(handles[key])
    return number


def _lane():
    return getattr(_local, "lane", 0)


@contextlib.contextmanager
def lane(number):
    """Let calls in the with block use another lane, which may run at the same time as other lanes."""
    before, _local.lane = _lane(), number
    try:
        yield
    finally:
        _local.lane = before


@contextlib.contextmanager
def recorded(workspace, words, used):
    """Let a CUDA graph record the calls in the with block.

    workspace(lane) returns the workspace of a handle, and words(lane) the memory for `zeros`.  The handles
    that are used are added to the set `used`; they must exist as long as the graph.
    """
    _local.workspace, _local.words, _local.used = workspace, words, used
    try:
        yield
    finally:
        _local.workspace = _local.words = _local.used = None


def zeros(count):
    """Return `count` words that are zero, for kernels that need zeros and restore them.

    While calls are recorded, every call in a lane gets the same words; these kernels run one after the other.
    """
    words = getattr(_local, "words", None)
    if words is None:
        return cupy.zeros(count, cupy.uint32)
    return words(_lane())[:count]


@functools.cache
def recordable():
    """Tell whether cuBLAS can be called directly; CuPy's wrappers refuse to run in a capture."""
    try:
        return bool(_function("sgemm"))
    except (OSError, AttributeError):
        return False


def _call(name, *args):
    """Call cuBLAS through CuPy, or directly if the call may be recorded."""
    if getattr(_local, "workspace", None) is None:
        getattr(cublas, name)(*args)
    elif status := _function(name)(*args):
        raise cublas.CUBLASError(status)


@functools.cache
def _function(name):
    # CuPy has loaded this library, so dlopen finds it by its name.
    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    symbol, types = RECORDED[name]
    function = getattr(ctypes.CDLL(f"libcublas.so.{version // 10000}"), symbol)
    function.argtypes = [C_TYPES[t] for t in types]
    return function


def ld(x):
    """Return the leading dimension, in entries, of a row-major view, or the step of a vector.

    The stride of a single row means nothing, and may be smaller than the row.
    """
    step = x.strides[0] // x.dtype.itemsize
    return max(step, x.shape[1]) if x.ndim == 2 and len(x) == 1 else step


@functools.cache
def scalar(value, char):
    """Return the address of a scalar on the host that is never freed."""
    return _scalar(value, char).ctypes.data


@functools.cache
def _scalar(value, char):
    return np.array(value, dtype=char)


def solve_left(lu, lower, x, adjoint):
    """x := T**-1 x, or T**-T x, in place, for a triangle T of the row-major lu and column-major x.

    The lower triangle has a unit diagonal.
    """
    # cuBLAS is column-major and sees lu.T, so a solve without transpose needs CUBLAS_OP_T.
    n, char = len(x), lu.dtype.char
    how = triangle(lower, lower, cublas.CUBLAS_OP_N if adjoint else cublas.CUBLAS_OP_T)
    trsm, side = getattr(cublas, PREFIX[char] + "trsm"), cublas.CUBLAS_SIDE_LEFT
    for some in column_parts(x):
        operands = (scalar(1, char), lu.data.ptr, ld(lu), some.data.ptr, n)
        trsm(handle(), side, *how, n, some.shape[1], *operands)


def column_parts(x):
    """Yield the columns of a column-major x in parts of at most MOST_COLUMNS, for triangular solves."""
    for start in range(0, x.shape[1], MOST_COLUMNS):
        yield x[:, start : start + MOST_COLUMNS]


def triangle(lower, unit, op):
    """Return the arguments (uplo, op, diag) of cuBLAS for a triangle of a row-major matrix."""
    return (
        cublas.CUBLAS_FILL_MODE_UPPER if lower else cublas.CUBLAS_FILL_MODE_LOWER,
        op,
        cublas.CUBLAS_DIAG_UNIT if unit else cublas.CUBLAS_DIAG_NON_UNIT,
    )


def solve_right(l, b):
    """b := L**-1 b in place, where L is the unit lower triangle of l; both are row-major."""
    # cuBLAS is column-major: it computes b.T := b.T (l.T)**-1, where l.T is upper triangular.
    k, r = b.shape
    char = b.dtype.char
    how = triangle(True, True, cublas.CUBLAS_OP_N)
    args = (r, k, scalar(1, char), l.data.ptr, ld(l), b.data.ptr, ld(b))
    _call(PREFIX[char] + "trsm", handle(), cublas.CUBLAS_SIDE_RIGHT, *how, *args)


def gemv(y, a, x, beta=0):
    """y = a x + beta y in FP64, for a row-major or column-major view a, and vectors of any stride."""
    # cuBLAS is column-major, so it sees the transpose of a row-major view.
    op, step = _operand(a.T)
    shape = a.shape if op == cublas.CUBLAS_OP_N else a.shape[::-1]
    operands = (scalar(1, "d"), a.data.ptr, step, x.data.ptr, ld(x), scalar(beta, "d"))
    cublas.dgemv(handle(), op, *shape, *operands, y.data.ptr, ld(y))


def gemm(c, l, u):
    """c -= l u for row-major views of one dtype, in the precision of this dtype."""
    (m, r), k, char = c.shape, l.shape[1], c.dtype.char
    n = cublas.CUBLAS_OP_N
    operands = (scalar(-1, char), u.data.ptr, ld(u), l.data.ptr, ld(l))
    result = (scalar(1, char), c.data.ptr, ld(c))
    _call(PREFIX[char] + "gemm", handle(), n, n, r, m, k, *operands, *result)


def gemm_at(shape, c, a, b, scale, transposed):
    """c = alpha op(a) b + beta c in FP32, where `scale` is (alpha, beta).

    c is (m, r) and b is (k, r), where `shape` is (m, r, k).  a is (m, k), or (k, m) if it is `transposed`.
    All are row-major, and given by their address and leading dimension.
    """
    (m, r, k), (alpha, beta) = shape, scale
    op = cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N
    operands = (scalar(alpha, "f"), *b, *a, scalar(beta, "f"), *c)
    _call("sgemm", handle(), cublas.CUBLAS_OP_N, op, r, m, k, *operands)


def gemm_strided(c, a, b, alpha, count):
    """c = alpha a b for `count` products of row-major views.

    c, a and b are pairs: the first matrix, and the number of entries after which the next one begins.
    """
    (c, step_c), (a, step_a), (b, step_b) = c, a, b
    (m, r), k, char = c.shape, a.shape[1], c.dtype.char
    n = cublas.CUBLAS_OP_N
    operands = (scalar(alpha, char), b.data.ptr, ld(b), step_b, a.data.ptr, ld(a), step_a)
    result = (scalar(0, char), c.data.ptr, ld(c), step_c)
    name = PREFIX[char] + "gemmStridedBatched"
    _call(name, handle(), n, n, r, m, k, *operands, *result, count)


def gemm_in_blocks(sums, a, x, c):
    """Store sums, shape (count, m, k), whose sum is a x, in FP64 or complex FP64.

    Each block of c columns of a is multiplied by the c rows of x that belong to it.  sums[j] is the sum of
    the products of the whole blocks j, j + count, j + 2 count, ...; a shorter last block is added to sums[0].
    a (m, n) and x (n, k) are row-major or column-major views, and there are at least as many whole blocks as
    sums.
    """
    (most, m, k), n, char, size = sums.shape, len(x), sums.dtype.char, sums.itemsize
    (of_a, ld_a), (of_x, ld_x) = _operand(a), _operand(x)
    step_a, step_x = c * a.strides[1] // size, c * x.strides[0] // size
    gemm, number, one = (
        getattr(cublas, PREFIX[char] + "gemmStridedBatched"),
        handle(),
        scalar(1, char),
    )
    to, beta, first = (sums.data.ptr, k, m * k), scalar(0, char), 0
    while (left := n - first * c) > 0:  # the last block may be shorter
        count, depth = (min(most, left // c), c) if left >= c else (1, left)
        of_blocks = x.data.ptr + first * step_x * size, ld_x, step_x
        of_columns = a.data.ptr + first * step_a * size, ld_a, step_a
        gemm(number, of_x, of_a, k, m, depth, one, *of_blocks, *of_columns, beta, *to, count)
        first, beta = first + count, one


def _operand(x):
    """Return the operation and the leading dimension of a row-major or column-major view for cuBLAS."""
    (m, n), (row, column) = x.shape, (step // x.dtype.itemsize for step in x.strides)
    if column == 1 or n == 1:
        return cublas.CUBLAS_OP_N, max(row, n)
    return cublas.CUBLAS_OP_T, max(column, m)


def gemm_of_stack(shape, c, a, b, how):
    """c[j] = a[j] b[j] + beta c[j] for j < count, where `how` is (beta, transposed, precision).

    c[j] is (m, r), a[j] is (m, k), and b[j] is (k, r), or (r, k) if it is `transposed`, where `shape` is
    (count, m, r, k).  All are row-major, and given by their address, leading dimension, and the number of
    entries after which the next one begins.  c is FP64 for 'fp64', and FP32 for other precisions.
    """
    (count, m, r, k), (beta, transposed, precision) = shape, how
    kind, compute, char = PRODUCTS[precision]
    ops = cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N
    operands = (scalar(1, char), b[0], kind, *b[1:], a[0], kind, *a[1:])
    result = (scalar(beta, char), c[0], RESULT["float64" if char == "d" else "float32"], *c[1:])
    how = (count, compute, GEMM_DEFAULT)
    cublas.gemmStridedBatchedEx(handle(), *ops, r, m, k, *operands, *result, *how)


def gemm_packed(c, ldc, p, q, low, scalars):
    """C := alpha P Q^T + beta C on the tensor cores, with FP32 sums.

    C is FP32 (m, r), row-major; P has m rows or more.  P and Q (r, depth) are packed in the format `low`.
    `scalars` are alpha and beta on the device.
    """
    m, (r, depth), (alpha, beta) = len(c), q.shape, scalars
    kind, compute = OPERANDS[low]
    operands = (q.data.ptr, kind, depth, p.data.ptr, kind, depth)
    _call(
        "gemmEx",
        handle(device_scalars=True),
        cublas.CUBLAS_OP_T,
        cublas.CUBLAS_OP_N,
        r,
        m,
        depth,
        alpha.data.ptr,
        *operands,
        beta.data.ptr,
        c.data.ptr,
        CUDA_R_32F,
        ldc,
        compute,
        GEMM_DEFAULT,
    )


def stores(precision, dtype):
    """Tell whether `product` in `precision` can store its result in this dtype."""
    return dtype in STORES[precision]


def product(out, a, b, precision, alpha, beta):
    """out = alpha a b + beta out for a row-major `out`; a and b are `gemm.layout.Stored`."""
    kind, compute, char = PRODUCTS[precision]
    (m, n), k = out.shape, a.array.shape[0 if a.transposed else 1]
    ops = [cublas.CUBLAS_OP_T if x.transposed else cublas.CUBLAS_OP_N for x in (b, a)]
    scalars = np.array([alpha, beta], dtype=char)  # cuBLAS reads them before the call returns
    # cuBLAS is column-major: it computes out.T = b.T a.T.
    cublas.gemmEx(
        handle(),
        *ops,
        n,
        m,
        k,
        scalars.ctypes.data,
        b.array.data.ptr,
        kind,
        b.ld,
        a.array.data.ptr,
        kind,
        a.ld,
        scalars.ctypes.data + scalars.itemsize,
        out.data.ptr,
        RESULT[out.dtype.name],
        ld(out) if m > 1 else n,
        compute,
        GEMM_DEFAULT,
    )
