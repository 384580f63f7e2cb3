"""Random matrices, right-hand sides and layouts, and the names of precisions and structures."""

import numpy as np
import scipy.linalg

from fuzz.outcome import BFLOAT16

__all__ = [
    "FAMILIES",
    "PRECISIONS",
    "STRUCTURES",
    "gauss",
    "laid_out",
    "matrix",
    "pick",
    "read_under",
    "right_hand_sides",
    "with_singular_values",
]

PRECISIONS = ("auto", "fp16", "bf16", "tf32", "fp16x3", "fp32", "fp64")
STRUCTURES = (
    *("gen", "general", "diagonal", "tridiagonal", "banded", "upper triangular"),
    *("lower triangular", "sym", "symmetric", "her", "hermitian", "pos", "positive definite"),
)


def pick(rng, choices):
    """Return a random item of a sequence, with its own type."""
    return choices[int(rng.integers(len(choices)))]


def gauss(rng, shape, is_complex=False):
    """Return standard normal numbers, real or complex."""
    real = rng.standard_normal(shape)
    return real + 1j * rng.standard_normal(shape) if is_complex else real


def orthogonal(rng, n, is_complex):
    return np.linalg.qr(gauss(rng, (n, n), is_complex))[0]


def with_singular_values(rng, s, is_complex):
    """Return a matrix with these singular values, up to rounding."""
    n = len(s)
    return (orthogonal(rng, n, is_complex) * s) @ orthogonal(rng, n, is_complex)


# ---- families of matrices: (rng, n, is_complex) -> (n, n) ---------------------------------------


def _graded(rng, n, is_complex):
    scale = 10.0 ** -(rng.uniform(0, 20) * np.arange(n) / max(n - 1, 1))
    a = gauss(rng, (n, n), is_complex)
    return scale[:, None] * a if rng.random() < 0.5 else a * scale


def _scaled_rows_and_columns(rng, n, is_complex):
    decades = pick(rng, (10, 50, 140))
    rows = 10.0 ** rng.uniform(-decades, decades, (n, 1))
    columns = 10.0 ** rng.uniform(-decades, decades, n) if rng.random() < 0.5 else 1
    return rows * gauss(rng, (n, n), is_complex) * columns


def _nearly_dependent(rng, n, is_complex):
    a = gauss(rng, (n, n), is_complex)
    if n > 1:
        k = int(rng.integers(n))
        rest = np.delete(np.arange(n), k)
        a[k] = rng.integers(-2, 3, n - 1) @ a[rest]
        a[k] += 10.0 ** rng.uniform(-20, -8) * gauss(rng, n, is_complex)
    return a


def _singular_integers(rng, n, is_complex):
    a = rng.integers(-9, 10, (n, n)).astype(float)
    a = a + 1j * rng.integers(-9, 10, (n, n)) if is_complex else a
    a[-1] = a[0] - 2 * a[n // 2] if n > 1 else 0
    return a if rng.random() < 0.5 else a.T.copy()


def _growing_pivots(rng, n, is_complex):
    a = np.eye(n) - np.tril(np.ones((n, n)), -1)
    a[:, -1] = 1
    return a * (1 + 1e-3 * gauss(rng, (n, n), is_complex))


def _known_condition(rng, n, is_complex):
    cond, step = 10.0 ** rng.uniform(0, 18), np.arange(n) / max(n - 1, 1)
    spectra = (cond**-step, np.where(step > 0, 1 / cond, 1), np.where(step < 1, 1, 1 / cond))
    return with_singular_values(rng, pick(rng, spectra), is_complex)


def _permuted_triangle(rng, n, is_complex):
    a = np.triu(gauss(rng, (n, n), is_complex) + 2 * np.eye(n))
    return a[rng.permutation(n)][:, rng.permutation(n)]


def _triangle(rng, n, is_complex):
    a = np.triu(gauss(rng, (n, n), is_complex)) + pick(rng, (0, 1, 3)) * np.eye(n)
    return a if rng.random() < 0.5 else a.T.copy()


def _band(rng, n, is_complex):
    below, above = rng.integers(0, 4, 2)
    i, j = np.indices((n, n))
    return np.where((j - i <= above) & (i - j <= below), gauss(rng, (n, n), is_complex), 0)


def _hermitian(rng, n, is_complex):
    a = gauss(rng, (n, n), is_complex)
    return a + (a.T if rng.random() < 0.3 else a.conj().T)


def _positive(rng, n, is_complex):
    a = gauss(rng, (n, n), is_complex)
    return a @ a.conj().T + pick(rng, (0, 1e-8, 1)) * np.eye(n)


def _sparse(rng, n, is_complex):
    a = np.where(rng.random((n, n)) < 3 / n, gauss(rng, (n, n), is_complex), 0)
    return a + np.diag(gauss(rng, n, is_complex)) if rng.random() < 0.6 else a


def _nearly_rank_one(rng, n, is_complex):
    outer = np.outer(gauss(rng, n, is_complex), gauss(rng, n, is_complex))
    return outer + 10.0 ** rng.uniform(-18, 0) * gauss(rng, (n, n), is_complex)


def _two_scales(rng, n, is_complex):
    a, k, factor = gauss(rng, (n, n), is_complex), n // 2, 10.0 ** rng.uniform(3, 140)
    a[:k, :k] *= factor
    a[k:, k:] /= factor
    return a


FAMILIES = {
    "gauss": lambda rng, n, c: gauss(rng, (n, n), c),
    "graded": _graded,
    "scaled rows and columns": _scaled_rows_and_columns,
    "nearly dependent rows": _nearly_dependent,
    "singular integers": _singular_integers,
    "growing pivots": _growing_pivots,
    "known condition": _known_condition,
    "hilbert": lambda rng, n, c: scipy.linalg.hilbert(n) + (0j if c else 0),
    "vandermonde": lambda rng, n, c: np.vander(rng.uniform(-1, 1, n)) + (0j if c else 0),
    "toeplitz": lambda rng, n, c: scipy.linalg.toeplitz(gauss(rng, n, c), gauss(rng, n, c)),
    "permuted triangle": _permuted_triangle,
    "triangle": _triangle,
    "band": _band,
    "hermitian": _hermitian,
    "positive definite": _positive,
    "dominant": lambda rng, n, c: gauss(rng, (n, n), c) + 3 * n * np.eye(n),
    "orthogonal": orthogonal,
    "sparse": _sparse,
    "nearly rank one": _nearly_rank_one,
    "two scales": _two_scales,
    "tiny": lambda rng, n, c: gauss(rng, (n, n), c) * 10.0 ** -rng.uniform(300, 323),
    "huge": lambda rng, n, c: gauss(rng, (n, n), c) * 10.0 ** rng.uniform(280, 306),
}


def matrix(rng, family, n, is_complex):
    """Return a finite matrix of a family; numbers beyond FP64 become zeros."""
    with np.errstate(all="ignore"):
        a = np.asarray(FAMILIES[family](rng, n, is_complex))
    return np.where(np.isfinite(a), a, 0)


def right_hand_sides(rng, a, shape):
    """Return b for a stack or matrix a: random, of known x, with zeros, a unit vector, or of any scale."""
    is_complex = a.dtype.kind == "c"
    b = gauss(rng, shape, is_complex or rng.random() < 0.1)
    kind = rng.random()
    with np.errstate(all="ignore"):
        if kind < 0.2 and len(shape) >= 2 and a.ndim == len(shape):
            b = a @ gauss(rng, (*a.shape[:-1], shape[-1]), is_complex)
        elif kind < 0.3:
            b = np.where(rng.random(shape) < 0.7, 0, b)
        elif kind < 0.35:
            b = 0 * b
        elif kind < 0.45 and b.size:
            b = 0 * b
            b.flat[int(rng.integers(b.size))] = 1
        elif kind < 0.6:
            b = b * 10.0 ** rng.uniform(-150, 150, shape[-1] if len(shape) > 1 else 1)
    return np.where(np.isfinite(b), b, 0)


def read_under(a, structure, lower):
    """Return the full matrices that SciPy reads in a stack a under `structure`."""
    i, j = np.indices(a.shape[-2:])
    if structure == "diagonal":
        return np.where(i == j, a, 0)
    if structure == "tridiagonal":
        return np.where(abs(i - j) <= 1, a, 0)
    if structure == "upper triangular":
        return np.where(i <= j, a, 0)
    if structure == "lower triangular":
        return np.where(i >= j, a, 0)
    if structure in (None, "gen", "general", "banded"):
        return a
    mirrored = np.swapaxes(a, -1, -2)
    if structure not in ("sym", "symmetric"):
        a, mirrored = np.where(i == j, a.real, a), mirrored.conj()
    return np.where(i >= j if lower else i <= j, a, mirrored)


# ---- layouts -------------------------------------------------------------------------------------


def laid_out(rng, place, x):
    """Return a NumPy array at a place, in one of the layouts that a caller may have."""
    if x.ndim == 0 or x.size == 0:
        return place.given(x)
    if x.dtype == BFLOAT16 and not place.on_host:
        return laid_out(rng, place, x.view(np.uint16)).view(BFLOAT16)
    layouts = _LAYOUTS if place.on_host else _LAYOUTS[:4]
    return pick(rng, layouts)(place.xp, place.given(np.ascontiguousarray(x)))


def _strided(xp, x):
    wide = xp.zeros(tuple(2 * s + 1 for s in x.shape), x.dtype)
    view = wide[tuple(slice(0, 2 * s, 2) for s in x.shape)]
    view[...] = x
    return view


def _reversed(xp, x):
    backwards = (slice(None, None, -1),) * x.ndim
    return xp.ascontiguousarray(x[backwards])[backwards]


def _read_only(_, x):
    x = x.copy()
    x.flags.writeable = False
    return x


def _unaligned(_, x):
    view = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


_LAYOUTS = (
    lambda xp, x: x,
    lambda xp, x: xp.asfortranarray(x),
    _strided,
    _reversed,
    _read_only,
    _unaligned,
    lambda _, x: x.astype(x.dtype.newbyteorder()),
)
