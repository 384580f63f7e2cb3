"""Products of matrices on CuPy: the engines of `gemm` and the choice between them.

Every engine computes the product that `tcsolve._backends.cpu.gemm` defines.  They differ only in the order
and the rounding of the sums.
"""

import functools

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas

from tcsolve._arithmetic.block_sums import sum_of_terms
from tcsolve._arithmetic.products import CHAIN
from tcsolve._backends.cuda.gemm.emulated_sums import add_product, values
from tcsolve._backends.cuda.gemm.job import Work
from tcsolve._backends.cuda.gemm.layout import (
    Stored,
    bits,
    copied,
    empty_aligned,
    leading,
    rows_contiguous,
)
from tcsolve._backends.cuda.gemm.repeated import repeated
from tcsolve._backends.cuda.gemm.wgmma import (
    launch_wgmma,
    maps_of,
    results_of,
    split_kernel,
    takes_turns,
)
from tcsolve._backends.cuda.runtime import compiler, cublas_calls
from tcsolve._backends.cuda.runtime.out_of_memory import is_out_of_memory
from tcsolve._errors import DeviceError
from tcsolve.kernels.arch import HOPPER, arch_number
from tcsolve.kernels.product_shapes import WGMMA_DEPTH, WGMMA_ROWS, wmma_shape, wmma_tile

__all__ = ["RUN", "fastest", "gemm", "require_formats"]

# Number of rows and columns of C that a block of gemm_naive.cu computes: 2 x 2 tiles.
NAIVE_TILE = 32
# Number of blocks of gemm_wgmma.cu in a cluster, which share the tiles of one operand.
CLUSTER = 2
# cuBLAS multiplies INT8 only if the sizes are multiples of WORD.  The sizes of copies are rounded up to
# multiples of 16, which cuBLAS recommends; if it still refuses, to multiples of 128, whole tiles.
WORD, RUNS_OF_INTEGERS = 4, (16, 128)


# ---- which engine --------------------------------------------------------------------------------


def fastest(product, m, n, k, arch):
    """Return the engine that 'auto' selects.

    It is wmma for int8, for which cuBLAS may need copies.  Otherwise it is cuBLAS if that has the product;
    else wgmma, if the device has it for the precision and the matrices fill its tiles; else wmma.
    """
    if product.precision == "int8":
        return "wmma"
    if product.native or product.direct:
        return "cublas"
    hopper = arch_number(arch) == HOPPER and product.precision in ("fp16", "bf16")
    fills = min(m, n) >= WGMMA_ROWS and k >= WGMMA_DEPTH
    return "wgmma" if hopper and fills else "wmma"


def require_formats(product, arch):
    """Raise a DeviceError if the kernels do not have the format on `arch`."""
    if arch_number(arch) < 80 and product.precision in ("bf16", "tf32", "int8"):
        raise DeviceError(
            f"precision {product.precision!r} needs compute capability 8.0 or later, and this is "
            f"{arch}; use precision='fp16' (for int8 operands, convert them to float16 first)"
        )


def _check_engine(engine, product, arch):
    """Raise a DeviceError if the requested engine cannot compute the product on this device."""
    if engine in ("cublas", "emulated"):
        return
    if product.native:
        raise DeviceError(
            f"engine {engine!r} has no products in {product.precision!r}; use engine='auto'"
        )
    require_formats(product, arch)
    if engine != "wgmma":
        return
    if arch_number(arch) != HOPPER:
        raise DeviceError(
            f"engine 'wgmma' needs compute capability 9.0 (Hopper), and this is {arch}; "
            "use engine='wmma', or 'auto'"
        )
    if product.precision not in ("fp16", "bf16"):
        raise DeviceError(
            f"engine 'wgmma' multiplies 'fp16' and 'bf16', not {product.precision!r}; "
            "use engine='wmma', or 'auto'"
        )


# ---- the product -----------------------------------------------------------------------------------


def gemm(job, arch, multiprocessors):
    """Compute job.out for matrices, as the `Job` says.

    Return the `Repeated` that computes more products of arrays that are alike (see repeated.py), or None.
    """
    c, out, product, engine = job.c, job.out, job.product, job.engine
    if not rows_contiguous(out):
        _into_other_order(job, arch, multiprocessors)
        return None
    if product.sums is not None:
        engine = "emulated"
    elif engine == "auto":
        engine = fastest(product, *out.shape, job.a.shape[1], arch)
    _check_engine(engine, product, arch)
    c = None if job.beta == 0 else c if rows_contiguous(c) else copied(c)
    work = Work.of(job._replace(c=c), arch, multiprocessors)
    found = RUN[engine](work)
    same = all(x.array.data.ptr == y.data.ptr for x, y in ((work.a, job.a), (work.b, job.b)))
    return found if same else None


def _into_other_order(job, arch, multiprocessors):
    """Compute the transposed product for a column-major `out`; for any other `out`, copy the result to it."""
    out = job.out
    if rows_contiguous(out.T):
        c = None if job.beta == 0 else job.c.T
        turned = {
            "a": job.b.T,
            "b": job.a.T,
            "c": c,
            "out": out.T,
            "product": job.product.swapped(),
        }
        gemm(job._replace(**turned), arch, multiprocessors)
        return
    result = cupy.empty(out.shape, out.dtype)
    gemm(job._replace(out=result), arch, multiprocessors)
    bits(out)[...] = bits(result)


def _naive(work):
    work.find_tops()
    kernel = compiler.kernel("gemm_naive", "tcs_gemm_naive", **work.defines)
    blocks = -(-work.m // NAIVE_TILE) * -(-work.n // NAIVE_TILE)
    kernel((blocks,), (128,), (*work.target, *work.operands, *work.sizes))


def _wmma(work, swizzle=1, tile=None):
    product, operands, t_in = work.product, (work.a, work.b), work.defines["T_IN"]
    if work.scaled and product.level == 0 and product.precision in ("fp16", "bf16"):
        # Round the operands once before the product, not in every block that loads them.
        parts, t_in = work.split(0, 0), product.precision
        operands = [Stored(hi, x.transposed) for (hi, _), x in zip(parts, operands, strict=True)]
    else:
        work.find_tops()
    size = work.m, work.n
    if tile is None:
        tile = wmma_tile(*size, work.k, t_in, work.arch, work.multiprocessors)
    defines = work.defines | work.transposes | {"T_IN": t_in, "SWIZZLE": swizzle, "TILE": tile}
    kernel = compiler.kernel("gemm_wmma", "tcs_gemm_wmma", **defines)
    blocks, threads, shared = wmma_shape(*size, tile, t_in, product.precision, work.arch)
    a, b = operands
    args = (*work.target, a.array, a.ld, b.array, b.ld, *work.origin, *work.sizes)
    kernel((blocks,), (threads,), args, shared=shared)


def _wgmma(work):
    product = work.product
    pairs = (
        work.split(*product.splits)
        if work.scaled
        else [(_on_16_bytes(x), None) for x in (work.a, work.b)]
    )
    defines = {"T_LOW": product.precision, "REFINE": product.level, "CLUSTER": CLUSTER}
    defines["SCALED"] = int(work.scaled)
    size = work.m, work.n
    turns = work.turns if takes_turns(defines, *size, work.multiprocessors) else None
    for part, operands in work.along_k(pairs):
        results = *results_of(part.out, part.c, part.beta), None, turns
        maps = maps_of(operands, product.precision)
        args = (*maps, *results, *part.target, *part.origin, *part.sizes)
        launch_wgmma(defines | part.transposes, *size, args, part.multiprocessors)
    return repeated(work, pairs, defines) if part is work else None


def _on_16_bytes(operand):
    """Return the array of a 16-bit operand, copied if its rows do not start on 16-byte boundaries."""
    x = operand.array
    if x.data.ptr % 16 or operand.ld * x.itemsize % 16:
        aligned = empty_aligned(x.shape, bits(x).dtype)
        aligned[...] = bits(x)
        x = aligned
    return x


# ---- cuBLAS ----------------------------------------------------------------------------------------


def _by_cublas(work):
    product = work.product
    if work.scaled:
        _refined_by_cublas(work)
    elif product.precision == "int8":
        _integers_by_cublas(work)
    elif cublas_calls.stores(product.precision, work.out.dtype.name):
        if work.c is not None and work.c.data.ptr != work.out.data.ptr:
            bits(work.out)[...] = bits(work.c)
        cublas_calls.product(work.out, work.a, work.b, product.precision, work.alpha, work.beta)
    else:
        total = cupy.empty((work.m, work.n), cupy.float32)
        cublas_calls.product(total, work.a, work.b, product.precision, 1.0, 0.0)
        _finish(work, total)


def _integers_by_cublas(work):
    """Multiply INT8 by cuBLAS, which allows only 0 and 1 for alpha and beta.

    cuBLAS documents only one layout of the operands [1].  The operands are tried without a copy first.

    [1] NVIDIA, cuBLAS 13, cublasLtMatmul, "To use IMMA kernels": pointers, leading dimensions, m and k are
    multiples of 4 bytes, and the format is "TN", with both operands contiguous along k.
    """
    out, total = work.out, None
    if _in_words(work):
        here = work.alpha == 1 and work.beta == 0 and leading(out) % WORD == 0
        total = out if here else cupy.empty(out.shape, np.int32)
    if total is None or _refusal(total, work.a, work.b):
        total = _integers_along_k(work)
    if total is out:
        return
    if work.alpha != 1:
        total *= _modulo(work.alpha)
    if work.beta != 0:
        total += work.c * _modulo(work.beta)
    out[...] = total


def _in_words(work):
    """Tell whether the sizes, addresses and leading dimensions of INT8 operands are multiples of 4."""
    rows = (x.array.data.ptr | x.ld for x in (work.a, work.b))
    return all(number % WORD == 0 for number in (work.m, work.n, work.k, *rows))


def _refusal(total, a, b):
    """Compute total = a b and return None, or return the error of cuBLAS if it lacks this product.

    An error that says that the memory is full is raised.
    """
    try:
        cublas_calls.product(total, a, b, "int8", 1, 0)
    except cublas.CUBLASError as error:
        if is_out_of_memory(error):
            raise
        return error
    return None


def _integers_along_k(work):
    """Return the product of copies that are contiguous along k and padded with zeros."""
    sizes = work.m, work.n, work.k
    for unit in RUNS_OF_INTEGERS:
        m, n, k = (-(-size // unit) * unit for size in sizes)
        a, b = cupy.zeros((m, k), np.int8), cupy.zeros((n, k), np.int8)
        a[: work.m, : work.k] = work.a.op
        b[: work.n, : work.k] = work.b.op.T
        total = cupy.empty((m, n), np.int32)
        refusal = _refusal(total, Stored(a, False), Stored(b, True))
        if refusal is None:
            return total[: work.m, : work.n]
    raise DeviceError(
        f"cuBLAS does not multiply int8 of sizes m, n, k = {sizes} ({refusal}); "
        "use engine='auto' or 'wmma'"
    ) from refusal


def _modulo(x):
    """Return an integer modulo 2**32, as INT32."""
    return np.int32((int(x) + 2**31) % 2**32 - 2**31)


def _refined_by_cublas(work):
    """Scale and split both operands, sum the products of their parts, and undo the scaling."""
    low, operands = work.product.precision, (work.a, work.b)
    pairs = work.split(*work.product.splits)
    parts = [
        [None if x is None else Stored(x, operand.transposed) for x in pair]
        for pair, operand in zip(pairs, operands, strict=True)
    ]
    total = cupy.empty((work.m, work.n), cupy.float32)
    for number, (i, j) in enumerate(work.product.terms):
        cublas_calls.product(total, parts[0][i], parts[1][j], low, 1.0, float(number > 0))
    _finish(work, total)


def _finish(work, total):
    """out = alpha total + beta c, where the scaling of total is undone."""
    low = work.product.precision if work.scaled else "fp16"  # any format will do without scales
    args = (*work.target, total, work.n, *work.origin, *work.sizes)
    blocks = -(-work.m // 8) * -(-work.n // 256)
    split_kernel("tcs_finish", low)((blocks,), (32, 8), args)


# ---- emulated tensor cores -------------------------------------------------------------------------


def _emulated(work):
    product, operands = work.product, (work.a, work.b)
    pairs = work.split(*product.splits) if work.scaled else [(x.array, None) for x in operands]
    parts = [
        [None if x is None else Stored(values(x, product), operand.transposed).op for x in pair]
        for pair, operand in zip(pairs, operands, strict=True)
    ]
    run = work.k if product.refine == "none" else CHAIN
    add = functools.partial(add_product, product)
    _finish(work, sum_of_terms(*parts, product.terms, run, add))


# The engines: functions of a `Work`.  A caller cannot choose 'emulated'; a `Product` with a unit uses it.
RUN = {
    "naive": _naive,
    "wmma": _wmma,
    "wgmma": _wgmma,
    "cublas": _by_cublas,
    "emulated": _emulated,
}
