"""The public functions `gemm`, `gemm_batched` and `gemm_bound`."""

from tcsolve._arguments import require_switch
from tcsolve._arithmetic.products import GemmBound, error_bound
from tcsolve._arrays import is_cupy
from tcsolve._backends.select import require_usable
from tcsolve._checks import check_array
from tcsolve._errors import InputError
from tcsolve._gemm.multiply import multiply
from tcsolve._gemm.task import (
    Options,
    arithmetic,
    check_engine,
    check_gemm,
    check_gemm_batched,
)

__all__ = ["gemm", "gemm_batched", "gemm_bound"]

# Functions that repeat a product without checks, by the `_key` of its arguments; at most MOST_KEPT.
_AGAIN, MOST_KEPT = {}, 4096
# Arrays with the same key have equal addresses modulo ALIGNMENT, which `Ops.gemm` requires.
ALIGNMENT = 16


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
        Both NumPy or both CuPy.  The dtype is float16, bfloat16 (from ml_dtypes), float32, float64 or
        int8.  Any strides are allowed; if neither rows nor columns are contiguous, a copy is made.
    c : array, (m, n), optional
        Needed if beta is not 0; otherwise it is not read.  If a new result would be float32 (see Returns), c
        may be float32, float16, bfloat16, int8, int16 or uint8; if float64, also float64 or int32; if int32,
        c may be int32, int16, int8, uint16 or uint8.
    alpha, beta : real number
        Integers for int8 operands.  For others they are rounded: to FP64 for float64 operands and for
        precision='fp64', else to FP32.  With alpha = 0 or k = 0, a and b are not read.
    transa, transb : bool
        If True, op(a) is a.T (op(b) is b.T).
    precision : {'fp16', 'bf16', 'tf32', 'fp32', 'fp64', 'int8'}, optional
        The operands are rounded to this format.  By default two operands of the same dtype float16,
        bfloat16 or int8 are not rounded.  float32 operands take 'fp16' with refinement on a GPU.  On the
        host they take 'fp32', unless `refine` is given, or an `rtol` below the bound of 'fp32'.  float64
        operands take 'fp64'.  Operands of two dtypes count as float64 if one is float64, else as float32;
        int8 is multiplied only by int8.  'fp32' and 'fp64' are ordinary BLAS products.  A name such as
        'fp16@h200' emulates the sums of the tensor cores of that GPU on any device, for 'h200' bit for bit.
    refine : {'none', 'a', 'b', 'ab', 'full'}, optional
        Which rounding errors of the operands are corrected by further products [1]_.  'none': those of
        neither operand (1 product in all).  'a', 'b': those of this operand (2 products).  'ab': those of
        both, but not the product of the two errors (3).  'full': all (4).  The default is 'none' if the
        operands are exact in `precision`, and for 'fp32' and 'fp64'; else 'ab', which for 'fp16' and 'tf32'
        is as accurate as FP32.
    engine : {'auto', 'naive', 'wmma', 'wgmma', 'cublas'}
        The kernel on a GPU: our own, from the simplest to the fastest, or cuBLAS.  NumPy arrays allow
        only 'auto': the operands are rounded to `precision`, and BLAS multiplies them, unless `precision`
        names a GPU.
    out : array, (m, n), optional
        Array for the result; it may be c.  float16 and bfloat16 are allowed if a new array would be float32.
        Two entries must not share memory.
    rtol : float, optional
        Take the cheapest `refine` with a bound (see `gemm_bound`) of at most `rtol`.  Not together with
        `refine`.

    Returns
    -------
    array, (m, n)
        `out`, or a new array: int32 for int8 operands, float64 for float64 operands or precision='fp64',
        float32 for others.  For int8 operands the result is the exact ``alpha op(a) op(b) + beta c``,
        reduced modulo 2**32.

    Raises
    ------
    InputError
        The shapes do not match, a dtype or value is not supported, `out` overlaps itself or an operand,
        `rtol` cannot be met, or k is above 131071 for int8 operands.
    DeviceError
        `engine` does not have `precision`, the device does not support one of them, or it cannot be used now.
    DeviceMemoryError
        The device has too little memory; no array has been changed.

    See Also
    --------
    gemm_bound : The bound on the error, without the product.
    gemm_batched : Many small products.

    Notes
    -----
    Operands that are converted to 'fp16', 'bf16' or 'tf32' are first scaled by powers of two, one for each
    row of op(a) and each column of op(b).  The largest entry of each then lies in
    [2**13, 2**14).  On a GPU, the scales for 'bf16' and 'tf32' are at most 2**126, so an entry below 2**-113
    stays below 2**13.  With these scales, the range of FP16 (6e-5 to 65504) is no limit for the operands, and
    their rounding errors need no scales of their own.  The scales are undone exactly.  If a row or a column
    has an Inf or NaN, its results follow IEEE arithmetic.  They are computed in FP64, so that no sum of
    finite entries overflows.

    The tensor cores of a GPU read float16 and bfloat16 operands as they are stored, if `precision` is their
    own format.  Emulated tensor cores do the same on any device.  Tensor cores do not normalize subnormal
    numbers.  So a row or column with all entries below 6e-5 (float16) or 1e-38 (bfloat16) has a larger error
    (see `gemm_bound`).  precision='tf32' avoids this error.

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
    options = Options(alpha, beta, transa, transb, precision, refine, engine, rtol)
    return _product(check_gemm, a, b, c, out, options)


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

    Takes the arguments of `gemm`, with these differences.

    Parameters
    ----------
    a, b : array, (batch, m, k) and (batch, k, n) after `transa` and `transb`
        One matrix can be used in all products: give it two dimensions, a batch of 1 or a batch stride of 0.
        It is not repeated in memory.
    c : array, (batch, m, n) or (m, n), optional
        Needed if beta is not 0; otherwise it is not read.
    alpha, beta : real number
        As in `gemm`.
    transa, transb : bool
        If True, the last two axes of a (of b) are exchanged.
    precision, refine
        As in `gemm`.
    engine : {'auto'}
        On a GPU, one kernel multiplies all matrices if no dimension is above 64.  Larger matrices, and those
        with emulated sums, are multiplied one by one.  'fp32' and 'fp64' are batched products of cuBLAS.
    out : array, (batch, m, n), optional
        Array for the result; it may be c.
    rtol : float, optional
        As in `gemm`.

    Returns
    -------
    array, (batch, m, n)
        As in `gemm`.

    Raises
    ------
    InputError
        As in `gemm`, or `engine` is not 'auto'.
    DeviceError
        As in `gemm`, or one product needs more shared memory than the device has.
    DeviceMemoryError
        The device has too little memory.  a, b and c are unchanged.  `out` is unchanged too, unless the
        matrices are multiplied one by one and `out` is not c; then it may hold the first results.

    Notes
    -----
    On a GPU, small products take as long as reading the operands and writing the result.  The kernel is
    compiled when a size is first used.  This takes about half a second, and the kernel is cached on disk.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import gemm_batched
    >>> a = np.arange(8, dtype=np.float16).reshape(2, 2, 2)
    >>> gemm_batched(a, np.eye(2, dtype=np.float16)).shape
    (2, 2, 2)
    """
    options = Options(alpha, beta, transa, transb, precision, refine, engine, rtol)
    return _product(check_gemm_batched, a, b, c, out, options)


def _product(check, a, b, c, out, options):
    """Return the product; `check` makes its `Task`, unless a product with the same key is known."""
    key, result = _repeated(check, a, b, c, out, options)
    if result is not None:
        return result
    out, again = multiply(check(a, b, c, out, options))
    if key is not None and again is not None:
        if len(_AGAIN) >= MOST_KEPT:
            _AGAIN.clear()
        _AGAIN[key] = again
    return out


def _repeated(check, a, b, c, out, options):
    """Return (key, result) if a product with the same key was computed before, else (key, None).

    A small product takes less time than the checks of its arguments.  So the checks are done once for all
    arguments that differ only in the addresses of the arrays.  The key is None for NumPy arrays, and for
    options that cannot be part of a key.
    """
    beta = options.beta
    if not is_cupy(a) or not isinstance(beta, int | float):
        return None, None
    require_usable(a)
    c = c if beta != 0 else None
    # 1.0 and True are equal keys, but 1.0 is no switch and True is no tolerance.  So the key has the types.
    key = _key((check, options, tuple(map(type, options))), a, b, c, out)
    try:
        again = _AGAIN.get(key)
    except TypeError:  # an option is not hashable; the checks of the arguments will report it
        return None, None
    return key, None if again is None else again(a, b, c, out)


def _key(kind, *arrays):
    """Return a key of all that must be equal to repeat a product; None unless all arrays are CuPy arrays."""
    key = [kind]
    for x in arrays:
        if x is None:
            key.append(None)
        elif is_cupy(x):
            data = x.data
            key += (x.shape, x.strides, x.dtype.char, data.ptr % ALIGNMENT, data.device_id)
        else:
            return None
    return tuple(key)


def gemm_bound(a, b, *, transa=False, precision=None, refine=None, engine="auto", rtol=None):
    """Return an a-priori bound on the error of ``gemm(a, b)``, and the arithmetic that it holds for.

    Parameters
    ----------
    a, b : array
        The operands of `gemm` or `gemm_batched`.  Their entries are not read.
    transa : bool
        As in `gemm`.
    precision, refine, engine, rtol
        As in `gemm`.

    Returns
    -------
    GemmBound
        Named tuple (bound, precision, refine, products) with
        ``|C - op(A) op(B)|_ij <= bound ||row i of op(A)||_2 ||column j of op(B)||_2``.
        It holds for alpha = 1 and beta = 0 if the result is not stored in 16 bits, the entry is not
        subnormal, and no partial sum leaves the range of FP32.  If the tensor cores of a GPU, or emulated
        ones, read the operands as they are stored, subnormal entries count as the smallest normal number in
        the norms: 2**-14 for float16, 2**-126 for bfloat16.

    Raises
    ------
    InputError
        As in `gemm`.

    Notes
    -----
    Let x be a row of op(a), y a column of op(b), and ``|x|`` and ``|y|`` the vectors of their magnitudes.
    The unit roundoff u of the format is 2**-11 for FP16 and TF32, and 2**-8 for BF16.

    1. Rounding.  Refinement divides an operand into two parts, its rounded value and the rounded rest.  An
       operand with one part has an error of at most ``u |x|``, with two parts ``u**2 |x|``.  If e_a and e_b
       are these factors of a and b, the product has an error of at most
       ``(e_a + e_b + e_a e_b) |x|.|y|``.  'ab' drops the product of the two rounding errors, which adds
       ``u**2 |x|.|y|``.  Operands that are exact in the format have no rounding error.
    2. Underflow.  Let 2**emin be the smallest normal number of the format, and u = 2**-t.  The largest entry
       of a scaled row is at least 2**13.  Smaller entries have an additional error of at most
       2**(emin - t), half the smallest subnormal number.  This is at most
       ``2**(emin - t - 13) max |x|``.  With ``max |x| sum |y| <= sqrt(k) ||x|| ||y||``, both operands
       together add ``2 sqrt(k) 2**(emin - t - 13) ||x|| ||y||``.  For 'bf16' and 'tf32' on a GPU, the largest
       entry may be smaller (see `gemm`), but at least 2**-23.  The error is then at most 2**36 times as
       large, and still far below the terms of second order.
    3. Sums.  Tensor cores add g >= 4 exact products to a partial sum.  Each addend is truncated to a multiple
       of 2**-23 of the largest one [1]_.  The error is at most (g + 1) 2**-23 of the sum of the magnitudes
       for g terms, and 1.25 k 2**-23 for k terms.  The size of an addend is computed from the exponents of
       its factors.  A subnormal factor has the exponent of the smallest normal number; only operands that
       are read as they are stored can have such factors.  With refinement, a sum on the tensor cores has 16
       to 64 terms (8 to 64 for TF32) and is then added in FP32, rounded to nearest.  The error is then at
       most 80 2**-23 + (k / 16) 2**-24, with k / 8 for TF32, or 1.25 k 2**-23 if that is smaller.  The engine
       'cublas' sums all k terms on the tensor cores, whatever `refine` is.  With 'cublas', or without
       refinement, the error is at most 1.25 k 2**-23, plus 2**-23 for each product of parts (1 to 4).
    4. ``|x|.|y| <= ||x||_2 ||y||_2`` by the Cauchy-Schwarz inequality.

    The bound is the sum of 1 to 3, times 1 + 2**-8 for terms of second order.  Products of int8 are exact, so
    their bound is 0.  'fp32' and 'fp64' have the bound k u [2]_.  For float64 operands, every precision but
    'fp64' adds 2**-23, because they are rounded to FP32 first.

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
    >>> [gemm_bound(a, a.T, precision='fp16', rtol=rtol).refine for rtol in (1e-2, 1e-4)]
    ['none', 'ab']
    """
    a, b, transa = check_array(a, "a"), check_array(b, "b"), require_switch("transa", transa)
    if not {a.ndim, b.ndim} <= {2, 3} or a.shape[-2 if transa else -1] not in b.shape[-2:]:
        raise InputError(
            f"a has shape {a.shape} and b has shape {b.shape}; matrices, or stacks of them, that can be "
            "multiplied are needed: see transa"
        )
    check_engine(engine)
    k = a.shape[-2 if transa else -1]
    product = arithmetic(a, b, k, Options(1, 0, transa, False, precision, refine, engine, rtol))
    bound = error_bound(product, k, engine)
    return GemmBound(bound, product.name, product.refine, len(product.terms))
