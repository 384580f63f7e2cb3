"""Kind of cases that multiply: every entry of `gemm` and `gemm_batched` against `gemm_bound`."""

import ml_dtypes
import numpy as np

from fuzz.generate import laid_out, pick
from fuzz.outcome import BFLOAT16, Outcome, bits, same_bits
from tcsolve import DeviceError, InputError, gemm, gemm_batched, gemm_bound

__all__ = ["multiply"]

LONG = np.longdouble
LONG_EPS = np.finfo(LONG).eps
DTYPES = ("e", BFLOAT16, "f", "f", "f", "d", "d", "b")
EXTENTS = (0, 1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 100, 130)
FORMATS = (None, None, "fp16", "bf16", "tf32", "fp32", "fp64", "int8")
# The dtype that is multiplied without rounding, for the precisions of 16 bits.
NATIVE = {"fp16": np.dtype("e"), "bf16": np.dtype(BFLOAT16)}
LEVELS = (None, None, "none", "a", "b", "ab", "full")
ENGINES = ("auto", "auto", "naive", "wmma", "wgmma", "cublas")


def multiply(rng, place):
    """One product or a batch: dtypes, strides, transposes, levels, NaN and Inf, alpha, beta, c and out."""
    batched = rng.random() < 0.35
    a, b, options = _operands_and_options(rng, place, batched)
    function = gemm_batched if batched else gemm
    given_a, given_b = laid_out(rng, place, a), laid_out(rng, place, b)
    before = bits(place, given_a), bits(place, given_b)
    asked = {key: value for key, value in options.items() if key != "transb"}
    told = Outcome(lambda: gemm_bound(given_a, given_b, **asked))
    made = Outcome(lambda: function(given_a, given_b, **options))
    found = []
    if (bits(place, given_a), bits(place, given_b)) != before:
        found.append("an operand was modified")
    if made.warnings or told.warnings:
        found.append(f"there are warnings: {made}, {told}")
    if made.error is not None or told.error is not None:
        found += _refusal_complaints(made, told)
    else:
        again = function(given_a, given_b, **options)
        if not same_bits(place, made.value, again):
            found.append("two runs give different bits")
        native = None if place.on_host else NATIVE.get(told.value.precision)
        exact = _Exact(a, b, options, batched, native)
        c = place.host(made.value)
        found += _product_complaints(exact, c, told.value, options)
        if not found and c.size and told.value.precision != "int8":
            call = (function, given_a, given_b, options)
            found += _addend_complaints(rng, place, call, exact, told.value, c)
    case = f"a {a.dtype}{a.shape}, b {b.dtype}{b.shape}, batched {batched}, {options}"
    return [f"{sentence} ({case})" for sentence in found]


def _operands_and_options(rng, place, batched):
    m, n, k = (pick(rng, EXTENTS) for _ in range(3))
    if rng.random() < 0.05:
        m, n, k = 4, 4, int(rng.integers(500, 3000))
    dtype_a = pick(rng, DTYPES)
    dtype_b = dtype_a if rng.random() < 0.8 else pick(rng, DTYPES)
    options = {name: bool(rng.random() < 0.3) for name in ("transa", "transb")}
    if rng.random() < 0.6:
        options["precision"] = pick(rng, FORMATS)
    if rng.random() < 0.5:
        options["refine"] = pick(rng, LEVELS)
    elif rng.random() < 0.4:
        options["rtol"] = 10.0 ** rng.uniform(-18, 0)
    if not (place.on_host or batched):
        options["engine"] = pick(rng, ENGINES)
    shape_a = (k, m) if options["transa"] else (m, k)
    shape_b = (n, k) if options["transb"] else (k, n)
    if batched:
        count = int(rng.integers(1, 4))
        heads = (((count,), (count,)), ((count,), ()), ((), (count,)), ((1,), (count,)))
        head_a, head_b = pick(rng, heads)
        shape_a, shape_b = head_a + shape_a, head_b + shape_b
    wild = rng.random() < 0.15
    return _operand(rng, shape_a, dtype_a, wild), _operand(rng, shape_b, dtype_b, wild), options


def _operand(rng, shape, dtype, wild):
    """Return random entries of many sizes; a wild one holds NaN or Inf as well."""
    dtype = np.dtype(dtype)
    if dtype.kind == "i":
        return rng.integers(-128, 128, shape).astype(dtype)
    x, uniform = rng.standard_normal(shape), rng.uniform
    kinds = (
        lambda: x * 10.0 ** uniform(-12, 12, (*shape[:-1], 1)),
        lambda: x * 10.0 ** uniform(-6, 6, shape),
        lambda: x * 2.0 ** uniform(-140, 120),
        lambda: np.where(rng.random(shape) < 0.7, 0, x),
        lambda: rng.integers(-5, 6, shape) * 1.0,
        lambda: x * 10.0 ** -uniform(36, 45),
        lambda: np.abs(x),
        lambda: x * 10.0 ** (uniform(-300, 300) if dtype == np.float64 else 3),
        lambda: np.where(rng.random(shape) < 0.1, 1e6 * x, 1e-6 * x),
        lambda: x,
    )
    with np.errstate(all="ignore"):
        x = np.array(pick(rng, kinds)().astype(dtype))
    x = np.where(np.isfinite(x), x, np.ones((), dtype)).astype(dtype)
    if wild and x.size:
        for _ in range(2):
            x.flat[int(rng.integers(x.size))] = pick(rng, (np.nan, np.inf, -np.inf))
    return x


def _refusal_complaints(made, told):
    """Check that a product and its bound are refused together, by an InputError.

    The product alone may be refused where a device lacks an engine.
    """
    if isinstance(made.error, DeviceError) and told.error is None:
        return []
    if isinstance(made.error, InputError) and isinstance(told.error, InputError):
        return []
    return [f"the product ended with {made}, the bound with {told}"]


class _Exact:
    """The product in long double, for finite numbers.

    Attributes
    ----------
    value, size : ndarray of long double
        op(A) op(B), and ||row|| ||column||.  Entries of A or B that are not finite count as zero.  In the
        norms, a subnormal number of the dtype `native` counts as the smallest normal one (see `gemm_bound`).
    magnitude : ndarray of long double
        |op(A)| |op(B)|
    k : int
    rounding : float
        Bound on the error of the sums in long double, in units of `size`.
    ieee : ndarray of long double
        The product by IEEE arithmetic.
    reached : ndarray of bool
        Whether the row or the column holds NaN or Inf.
    """

    def __init__(self, a, b, options, batched, native=None):
        floors = [ml_dtypes.finfo(v.dtype).tiny if v.dtype == native else 0 for v in (a, b)]
        a, b = (v.astype(np.float64).astype(LONG) for v in (a, b))
        a = np.swapaxes(a, -1, -2) if options["transa"] else a
        b = np.swapaxes(b, -1, -2) if options["transb"] else b
        a, b = (v[None] if batched and v.ndim == 2 else v for v in (a, b))
        rows, columns = ~np.isfinite(a).all(axis=-1), ~np.isfinite(b).all(axis=-2)
        self.reached = rows[..., :, None] | columns[..., None, :]
        with np.errstate(all="ignore"):
            self.ieee = a @ b
            a, b = (np.where(np.isfinite(v), v, 0) for v in (a, b))
            self.value, self.magnitude = a @ b, np.abs(a) @ np.abs(b)
            a, b = (
                np.where(v == 0, 0, np.maximum(np.abs(v), floor))
                for v, floor in zip((a, b), floors, strict=True)
            )
            norms = np.sqrt((a * a).sum(axis=-1)), np.sqrt((b * b).sum(axis=-2))
        self.size = norms[0][..., :, None] * norms[1][..., None, :]
        self.k = a.shape[-1]
        self.rounding = (self.k + 2) * LONG_EPS


def _product_complaints(exact, c, told, options):
    if c.shape != exact.value.shape:
        return [f"the shape is {c.shape}, not {exact.value.shape}"]
    if told.precision == "int8":
        wanted = exact.value.astype(np.int64).astype(np.int32)
        return (
            []
            if c.dtype == np.int32 and (c == wanted).all()
            else ["a product of int8 is not exact"]
        )
    found, limit = [], np.finfo(c.dtype)
    if options.get("rtol") is not None and told.bound > options["rtol"]:
        found.append(f"the bound is {told.bound}, above rtol")
    beyond = exact.magnitude > limit.max
    wide = c.astype(LONG)
    same = (np.isnan(wide) & np.isnan(exact.ieee)) | (wide == exact.ieee) | np.isfinite(exact.ieee)
    if not (same | ~exact.reached | beyond).all():
        found.append("NaN or Inf is not what IEEE arithmetic gives")
    judged = ~exact.reached & ~beyond
    with np.errstate(all="ignore"):
        excess = np.abs(wide - exact.value) - (told.bound + exact.rounding) * exact.size
    # Subnormal intermediate results have lost further digits.
    faint = (np.abs(exact.value) <= limit.tiny) | (exact.size <= 8 * limit.tiny)
    excess = excess - np.where(faint, _lost_below(limit, told, exact.k), 0)
    if not (~judged | (excess <= 0)).all():
        excess = np.where(judged, np.nan_to_num(excess, nan=np.inf), -np.inf)
        worst = np.unravel_index(np.argmax(excess), c.shape)
        found.append(
            f"entry {tuple(map(int, worst))} is {c[worst]}, the true one is {exact.value[worst]}, "
            f"more than {told.bound:.3g} times {exact.size[worst]:.3g} away"
        )
    return found


def _lost_below(limit, told, k):
    """Return the error from subnormal numbers: k products and k sums are rounded to the subnormal unit.

    An operation of a tensor core adds four or more products and one addend, and truncates each of these
    terms: at most 1.25 terms for each product.
    """
    halves = 2 * k if told.precision in ("fp32", "fp64") else 2.5 * k * told.products
    return halves * limit.smallest_subnormal / 2


def _addend_complaints(rng, place, call, exact, told, c):
    """Check alpha op(A) op(B) + beta C, with `out` and without; C must not be read if beta is 0."""
    function, a, b, options = call
    alpha, beta = pick(rng, (1, -1, 0, 2.5, 1e-3, 1e5)), pick(rng, (0, 1, -1, 0.5, 3))
    addend = rng.standard_normal(c.shape).astype(c.dtype)
    if beta == 0:
        addend = np.full_like(addend, np.nan)
    given_c = place.given(addend.copy())
    outs = (
        None,
        place.xp.full(c.shape, np.nan, c.dtype),
        given_c,
        place.xp.asfortranarray(given_c.copy()),
    )
    out = pick(rng, outs)
    made = Outcome(lambda: function(a, b, given_c, alpha=alpha, beta=beta, out=out, **options))
    if made.error is not None or made.warnings:
        return [f"alpha {alpha} and beta {beta} ended with {made}"]
    if out is not None and made.value is not out:
        return ["`out` is not what is returned"]
    eps, tiny = np.finfo(c.dtype).eps, np.finfo(c.dtype).smallest_subnormal
    scaled = 0 if beta == 0 else LONG(beta) * addend.astype(LONG)
    with np.errstate(all="ignore"):
        wanted = alpha * exact.value + scaled if alpha else scaled + 0 * exact.size
        # The sum and both products by scalars are rounded, and so are the scalars.
        allowed = abs(alpha) * (told.bound + exact.rounding) * exact.size
        allowed = (
            allowed
            + 4 * eps * (abs(alpha * exact.value) + abs(scaled))
            + 4 * (1 + abs(alpha)) * tiny
            + abs(alpha) * _lost_below(np.finfo(c.dtype), told, exact.k)
        )
        off = np.abs(place.host(made.value).astype(LONG) - wanted)
    # Scalars multiply before or after the sum, so either may overflow.
    near_the_end = exact.magnitude * max(1, abs(alpha)) > np.finfo(c.dtype).max / 2
    ignored = (exact.reached | near_the_end) if alpha else False
    if not ((off <= allowed) | ignored).all():
        return [
            f"alpha {alpha}, beta {beta} and out {type(out).__name__} are off by {np.nanmax(off)}"
        ]
    return []
