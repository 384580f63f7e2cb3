"""The public products of matrices: arguments checked, and handed to the device."""

import functools
from typing import Any, NamedTuple

import numpy as np

from tcsolve._arguments import require_switch
from tcsolve._arithmetic.products import (
    ENGINES,
    GemmBound,
    choose_product,
    common_dtype,
    error_bound,
)
from tcsolve._arrays import is_cupy
from tcsolve._backends.select import ops_for
from tcsolve._checks import check_array
from tcsolve._errors import InputError
from tcsolve._gemm.checks import check_addend, check_out, check_scalars
from tcsolve._gemm.float64_operands import multiply_narrowed

__all__ = ["gemm", "gemm_batched", "gemm_bound"]

# Batched products that were checked and launched before, and how many of them are kept.
_LAUNCHES, MOST_LAUNCHES = {}, 4096


def gemm(
    a,
    b,
    c=None,
    *,
    alpha=1,
    beta=0,
    transa=False,
    transb=False,
    precision=None,
    refine=None,
    engine="auto",
    out=None,
    rtol=None,
):
    """Compute ``alpha op(a) op(b) + beta c`` on tensor cores, with a stated error.

    Parameters
    ----------
    a, b : array, (m, k) and (k, n) after `transa` and `transb`
        NumPy or CuPy, both the same; float16, bfloat16 (of ml_dtypes), float32, float64 or int8.
        Any strides; nothing is copied if rows or columns are contiguous.
    c : array, (m, n), optional
        Needed if beta is not 0, and not read otherwise.
    alpha, beta : real number
        Integers for int8 operands; rounded to the precision of the sums, FP32 but for float64 operands.  With
        alpha = 0 or k = 0, a and b are not read.
    transa, transb : bool
        Whether op(a) is a.T, and op(b) is b.T.
    precision : {'fp16', 'bf16', 'tf32', 'fp32', 'fp64', 'int8'}, optional
        What the operands are rounded to; by default float16, bfloat16 and int8 are multiplied as
        they are, float32 as 'fp16' with refinement, float64 in float64.  'fp32' and 'fp64' are
        ordinary BLAS products.
    refine : {'none', 'a', 'b', 'ab', 'full'}, optional
        The operands whose rounding errors further products correct [1]_: none (1 product), a or b (2),
        both without the product of the two errors (3), or both with it (4).  By default 'none'
        where the operands are exact in `precision`, else 'ab', which is as accurate as FP32.
    engine : {'auto', 'naive', 'wmma', 'wgmma', 'cublas'}
        The kernel on a GPU: ours, from the plainest to the fastest, or cuBLAS.  On NumPy arrays only
        'auto' is allowed: the tensor cores are emulated.
    out : array, (m, n), optional
        Where to store the result; it may be c.  float16 or bfloat16 if that is wanted.  Each entry needs
        memory of its own.
    rtol : float, optional
        Take the cheapest `refine` whose bound, as `gemm_bound` gives it, is at most this.

    Returns
    -------
    array, (m, n)
        `out`, or a new array: int32 for int8 operands (exact, modulo 2**32 after alpha and beta),
        float64 for float64 operands or precision='fp64', float32 for others.

    Raises
    ------
    InputError
        Shapes that do not match, a dtype or value that is not supported, `out` that overlaps itself or an
        operand, an `rtol` that cannot be met.
    DeviceMemoryError
        The device has not enough memory; no array has been changed.

    See Also
    --------
    gemm_bound : The bound on the error, before anything is computed.
    gemm_batched : Many small products.

    Notes
    -----
    float32 and float64 operands are scaled by powers of two, one for each row of op(a) and column of
    op(b), so that their largest entries come to 2**13 or just above; their residuals then need no scale
    of their own, and neither 65504 nor 6e-5 is a limit.  The scales are undone exactly.  Results in a row
    or column with Inf or NaN are what IEEE arithmetic says, computed in plain FP64 so that no sum of finite
    entries overflows.

    On a GPU, float16 and bfloat16 operands in their own precision reach the tensor cores as they are stored.
    These do not normalize subnormal numbers: a row or column whose entries are all below 6e-5 (float16) or
    1e-38 (bfloat16) has a larger error (see `gemm_bound`); precision='tf32' loses nothing there.

    The same arguments give the same bits on the same device.

    References
    ----------
    .. [1] S. Markidis et al., NVIDIA Tensor Core Programmability, Performance & Precision, IPDPSW 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import gemm
    >>> a = np.full((2, 3), 1 / 3, np.float32)
    >>> b = np.ones((3, 2), np.float32)
    >>> for refine in ('none', 'ab'):
    ...     print(f"{abs(gemm(a, b, refine=refine) - 1).max():.0e}")
    2e-04
    1e-07
    """
    a, b = check_array(a, "a"), check_array(b, "b")
    if a.ndim != 2 or b.ndim != 2:
        raise InputError(
            f"a has shape {a.shape} and b has shape {b.shape}; two matrices are needed: "
            "use gemm_batched for stacks, or reshape vectors to one row or column"
        )
    options = _Options(alpha, beta, transa, transb, precision, refine, engine, rtol)
    return _product_of(a, b, c, out, options)[0]


def gemm_batched(
    a,
    b,
    c=None,
    *,
    alpha=1,
    beta=0,
    transa=False,
    transb=False,
    precision=None,
    refine=None,
    engine="auto",
    out=None,
    rtol=None,
):
    """Compute ``alpha op(a[s]) op(b[s]) + beta c[s]`` for a batch of small matrices.

    Parameters
    ----------
    a, b : array, (batch, m, k) and (batch, k, n) after `transa` and `transb`
        As in `gemm`.  An operand of two dimensions, or with a batch of 1 or a batch stride of 0, is
        the same for all products and is not repeated in memory.
    c : array, (batch, m, n) or (m, n), optional
    alpha, beta : real number
    transa, transb : bool
        Whether the two last axes of a, of b, change places.
    precision, refine : str, optional
        As in `gemm`, with the same defaults.
    engine : {'auto'}
        One kernel does all sizes up to 64 on a GPU; larger matrices are multiplied one by one.
    out : array, (batch, m, n), optional
    rtol : float, optional

    Returns
    -------
    array, (batch, m, n)

    Raises
    ------
    InputError
        As `gemm`.
    DeviceMemoryError
        The device has not enough memory; a, b and c have not been changed, nor has `out`, unless matrices
        are larger than 64 and it is not c: then the first results may be there.

    Notes
    -----
    At these sizes a product costs what its operands and result cost to move, so the kernel is built as
    a copy with tensor cores in it.  It is compiled for each size when that is first met (about half a
    second, kept on disk).

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import gemm_batched
    >>> a = np.arange(8, dtype=np.float16).reshape(2, 2, 2)
    >>> gemm_batched(a, np.eye(2, dtype=np.float16)).shape
    (2, 2, 2)
    """
    options = _Options(alpha, beta, transa, transb, precision, refine, engine, rtol)
    key, result = _repeated(a, b, c, out, options)
    if result is not None:
        return result
    a, b = check_array(a, "a"), check_array(b, "b")
    for name, x in (("a", a), ("b", b)):
        if x.ndim not in (2, 3):
            raise InputError(
                f"{name} has shape {x.shape}; (batch, rows, columns), or (rows, columns) for one "
                f"matrix in all products, is needed: {name}.reshape(-1, rows, columns)"
            )
    if engine != "auto":
        raise InputError(f"engine is {engine!r}; gemm_batched has engine='auto' alone")
    batch = _batch_of(a, b, out)
    a, b = (_stacked(x, batch) for x in (a, b))
    if c is not None:
        c = check_array(c, "c")
        c = _stacked(c, batch) if c.ndim == 2 else c
    out, launch = _product_of(a, b, c, out, options)
    if key is not None and launch is not None:
        if len(_LAUNCHES) >= MOST_LAUNCHES:
            _LAUNCHES.clear()
        _LAUNCHES[key] = launch
    return out


def _repeated(a, b, c, out, options):
    """Return (key, result) if a product like this one was computed before, else (key, None).

    A small batch is shorter than the checks of its arguments, so they are made once for all arrays that
    differ in their addresses alone.  The key is None where that does not pay.
    """
    beta = options.beta
    if not is_cupy(a) or not isinstance(beta, int | float):
        return None, None
    ops = ops_for(a)
    c = c if beta != 0 else None
    key = ops.signature(options, a, b, c, out)
    try:
        launch = _LAUNCHES.get(key)
    except TypeError:  # an option that cannot be part of a key; the checks will say what it is
        return None, None
    return key, None if launch is None else ops.gemm_again(launch, a, b, c, out)


def gemm_bound(a, b, *, transa=False, precision=None, refine=None, engine="auto", rtol=None):
    """Return an a-priori bound on the error of ``gemm(a, b)``, and the arithmetic it holds for.

    Parameters
    ----------
    a, b : array
        As `gemm` takes them (or `gemm_batched`); only dtypes and shapes are looked at.
    transa : bool
    precision, refine, engine, rtol
        As `gemm` takes them.

    Returns
    -------
    GemmBound
        Named tuple (bound, precision, refine, products) with
        ``|C - op(A) op(B)|_ij <= bound ||row i of op(A)||_2 ||column j of op(B)||_2``
        for alpha = 1, beta = 0 and a result that is neither stored in 16 bits nor subnormal, where no
        partial sum is beyond the range of FP32.  On a GPU, subnormal entries of float16 operands in 'fp16',
        and of bfloat16 in 'bf16', count as the smallest normal number (2**-14, 2**-126) in the norms.

    Raises
    ------
    InputError
        As `gemm`.

    Notes
    -----
    With ``|x|``, ``|y|`` a row and a column, and u the unit roundoff of the format (2**-11 for FP16 and
    TF32, 2**-8 for BF16):

    1. Rounding.  One part of x misses at most ``u |x|``, two parts ``u**2 |x|``, and x below
       2**(emin - t + 1) of its scaled row is lost: another ``2**(emin - t - 13) max |x|``.  With e_a and e_b
       the factors so found, the product of the parts kept misses ``(e_a + e_b + e_a e_b) |x|.|y|``, and u**2
       more for 'ab', which drops the product of the residuals.  Operands exact in the format cost nothing.
    2. Lost entries.  ``max |x| sum |y| <= sqrt(k) ||x|| ||y||``, so they add 2 sqrt(k) 2**(emin - t - 13).
    3. Sums.  Tensor cores add g >= 4 exact products and the sum so far with truncation, each addend
       to a unit of 2**-23 of the largest [1]_: at most (g + 1) 2**-23 of the sum of all magnitudes for g
       terms, 1.25 k 2**-23 in all.  The size of an addend is found from the exponents of its factors; that of
       a subnormal number is the exponent of the smallest normal one.  Only operands that are multiplied as
       they are stored have rows of such numbers.  With refinement a sum ends after 16 to 64 terms (TF32: 8 to
       64) and is added to nearest in FP32: 80 2**-23 + (k / 16) 2**-24 (k / 8).  Engine 'cublas'
       sums along all of k at every level.
    4. ``|x|.|y| <= ||x||_2 ||y||_2`` (Cauchy and Schwarz).

    The sum of 1 to 3 is the bound; terms of second order are covered by a factor 1 + 2**-8.
    Products of int8 are exact (bound 0); 'fp32' and 'fp64' have k u [2]_.

    References
    ----------
    .. [1] M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, Numerical behavior of NVIDIA tensor cores,
       PeerJ Comput. Sci. 7 (2021), e330.
    .. [2] N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import gemm_bound
    >>> a = np.zeros((10, 64), np.float32)
    >>> gemm_bound(a, a.T, rtol=1e-2).refine, gemm_bound(a, a.T, rtol=1e-4).refine
    ('none', 'ab')
    """
    a, b, transa = check_array(a, "a"), check_array(b, "b"), require_switch("transa", transa)
    if not {a.ndim, b.ndim} <= {2, 3} or a.shape[-2 if transa else -1] not in b.shape[-2:]:
        raise InputError(
            f"a has shape {a.shape} and b has shape {b.shape}; matrices, or stacks of them, that can be "
            "multiplied are needed: see transa"
        )
    _check_engine(engine)
    dtype = common_dtype(a.dtype.name, b.dtype.name)
    k = a.shape[-2 if transa else -1]
    product = choose_product(dtype, k, precision, refine, rtol, engine)
    bound = error_bound(product, k, engine)
    return GemmBound(bound, product.precision, product.refine, len(product.terms))


class _Options(NamedTuple):
    """The arguments of `gemm` that are no arrays."""

    alpha: Any
    beta: Any
    transa: Any
    transb: Any
    precision: Any
    refine: Any
    engine: Any
    rtol: Any


def _product_of(a, b, c, out, options):
    """Check what `gemm` and `gemm_batched` have in common, and compute.

    Returns the result, and what the device needs to compute another one like it, or None.
    """
    turns = (require_switch(name, getattr(options, name)) for name in ("transa", "transb"))
    a, b = (x.swapaxes(-1, -2) if turn else x for x, turn in zip((a, b), turns, strict=True))
    if a.shape[-1] != b.shape[-2]:
        raise InputError(
            f"op(a) has shape {a.shape} and op(b) has shape {b.shape}; the columns of op(a) must be "
            "the rows of op(b): see transa and transb"
        )
    _check_engine(options.engine)
    dtype = common_dtype(a.dtype.name, b.dtype.name)
    how = options.precision, options.refine, options.rtol, options.engine
    product = choose_product(dtype, a.shape[-1], *how)
    wide = dtype == "float64" and product.precision != "fp64"
    accumulator = "float64" if wide else product.accumulator
    scalars = check_scalars(options.alpha, options.beta, accumulator)
    shape = (*a.shape[:-1], b.shape[-1])
    c = check_addend(c, scalars[1], shape, accumulator)
    ops = ops_for(a, b, *(() if c is None else (c,)))
    if out is None:
        out = _guarded(ops, ops.xp.empty)(shape, accumulator)
    else:
        check_out(ops.xp, out, shape, accumulator, (a, b, c))
        ops_for(out, a)  # on one device
    if not out.size:
        return out, None
    arrays, rest = (a, b, c, out), (*scalars, options.engine)
    if scalars[0] == 0 or a.shape[-1] == 0:
        _guarded(ops, _without_product)(ops, c, out, scalars[1], accumulator)
    elif wide:
        _guarded(ops, multiply_narrowed)(ops, arrays, product, *rest)
    else:
        return out, _guarded(ops, _compute)(ops, arrays, product, *rest)
    return out, None


@functools.cache
def _guarded(ops, function):
    """Return the function with a DeviceMemoryError where memory runs out in it.

    Kept, because to make it takes microseconds, as a small product does.
    """
    return ops.guarded(function)


def _compute(ops, arrays, product, alpha, beta, engine):
    """Call the primitive, in the accumulator's dtype where c has another dtype than the result."""
    a, b, c, out = arrays
    if beta == 0 or c.dtype == out.dtype:
        return ops.gemm(a, b, c, out, product, alpha, beta, engine)
    addend = ops.converted(c, np.dtype(product.accumulator))
    total = ops.xp.empty(out.shape, product.accumulator)
    ops.gemm(a, b, addend, total, product, alpha, beta, engine)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out[...] = ops.converted(total, out.dtype)
    return None


def _without_product(ops, c, out, beta, accumulator):
    """out = beta c, rounded to the accumulator's dtype."""
    if beta == 0:
        out[...] = 0
        return
    dtype = np.dtype(accumulator)
    # A product of two FP32 numbers is exact in FP64, where no library flushes subnormal numbers to zero.
    wide = dtype if dtype.kind == "i" else np.dtype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = ops.converted(c, wide) * wide.type(dtype.type(beta))
        out[...] = ops.converted(ops.converted(scaled, dtype), out.dtype)


# ---- checks ------------------------------------------------------------------------------------


def _check_engine(engine):
    if engine not in ENGINES:
        raise InputError(f"engine is {engine!r}; needs one of {', '.join(map(repr, ENGINES))}")


def _batch_of(a, b, out):
    """Return the number of products."""
    sizes = {x.shape[0] for x in (a, b) if x.ndim == 3}
    longer = sizes - {1}
    if len(longer) > 1:
        raise InputError(
            f"a has shape {a.shape} and b has shape {b.shape}; the batches must be equal, or 1"
        )
    if longer:
        return longer.pop()
    if not sizes and out is not None and getattr(out, "ndim", 0) == 3:
        return out.shape[0]
    return 1


def _stacked(x, batch):
    """Return x as (batch, rows, columns); repeated by a stride of 0, not in memory."""
    if x.ndim == 3 and x.shape[0] == batch:
        return x
    matrix = x if x.ndim == 2 else x[0]
    repeat = _repeat_of(x)
    return repeat(matrix, (batch, *matrix.shape))


def _repeat_of(x):
    """Return the function of x's library that makes a view of repetitions."""
    return ops_for(x).xp.broadcast_to
