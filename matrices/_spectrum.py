"""Matrices with prescribed singular values or eigenvalues, as in LAPACK's and MAGMA's tests.

The names are a family and a spectrum: ``svd_geo``, ``spd_cluster0``, ``heev_logrand``, and so on.
With random orthogonal (unitary for complex types) U and V, a spectrum S with largest value 1 and
smallest 1/cond gives

==========  ==========================================================================
``svd_``    A = U S V^H: general, singular values S
``spd_``    A = V S V^H: Hermitian positive definite, eigenvalues S
``heev_``   A = V D V^H: Hermitian indefinite, eigenvalues D = S with random signs
==========  ==========================================================================

The singular values have an absolute error of about n 2^-53, so a smaller value is lost. Use
cond <= 1e14 / n, and below the reciprocal of the unit roundoff of the dtype of the matrix.

References
----------
J. W. Demmel, A. McKenney, A test matrix generation suite, LAPACK Working Note 9 (1989).
F. Mezzadri, How to generate random matrices from the classical compact groups, Notices AMS 54
(2007), 592-604.
"""

import numpy as np

DEFAULT_COND = 1e4
REFLECTORS = 3  # enough that no entry of U S V^H is zero; applying them costs O(n^2)


def geo(n, cond, rng):
    """Values in geometric progression from 1 to 1/cond."""
    return cond ** -np.linspace(0, 1, n)


def arith(n, cond, rng):
    """Values in arithmetic progression from 1 to 1/cond."""
    return 1 - np.linspace(0, 1, n) * (1 - 1 / cond)


def cluster0(n, cond, rng):
    """One value 1, all others 1/cond."""
    s = np.full(n, 1 / cond)
    s[0] = 1
    return s


def cluster1(n, cond, rng):
    """All values 1 but one of 1/cond."""
    s = np.ones(n)
    s[1:][-1:] = 1 / cond  # for n = 1 the only value stays 1
    return s


def logrand(n, cond, rng):
    """Values log-uniform between 1/cond and 1, both ends attained."""
    s = cond ** -rng.random(n)
    s[1:][-1:] = 1 / cond
    s[0] = 1
    return s


def standard_normal(rng, shape, dtype):
    """Draw standard normal numbers in double precision, complex if dtype is complex."""
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = (x + 1j * rng.standard_normal(shape)) / np.sqrt(2)
    return x


def random_orthogonal(n, rng, dtype, kind):
    """Draw a random orthogonal or unitary matrix Q; return the function a -> Q a.

    ``kind="haar"`` is distributed uniformly and costs O(n^3). ``kind="householder"`` is a product of three
    random reflectors, which is the identity plus a matrix of rank 3. Applying it costs O(n^2).
    """
    if kind == "haar":
        q, r = np.linalg.qr(standard_normal(rng, (n, n), dtype))
        d = np.diagonal(r)
        # Q is uniform if the diagonal of R is positive.  LAPACK chooses its signs in another way.
        q *= d / np.abs(d)
        return lambda a: q @ a
    if kind == "householder":
        vectors = standard_normal(rng, (REFLECTORS, n), dtype)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

        def apply(a):
            for v in vectors:
                a = a - np.outer(2 * v, v.conj() @ a)
            return a

        return apply
    raise ValueError(f"orthogonal is {kind!r}; it must be 'haar' or 'householder'")


def svd(s, rng, dtype, orthogonal):
    """Build U diag(s) V^H."""
    u = random_orthogonal(len(s), rng, dtype, orthogonal)
    v = random_orthogonal(len(s), rng, dtype, orthogonal)
    return v(u(np.diag(s)).conj().T).conj().T


def spd(s, rng, dtype, orthogonal):
    """Build V diag(s) V^H, Hermitian to the last bit."""
    v = random_orthogonal(len(s), rng, dtype, orthogonal)
    a = v(v(np.diag(s)).conj().T)
    return (a + a.conj().T) / 2


def heev(s, rng, dtype, orthogonal):
    """Build V diag(+-s) V^H with random signs, Hermitian to the last bit."""
    return spd(s * rng.choice([-1.0, 1.0], len(s)), rng, dtype, orthogonal)


def _generator(family, spectrum, summary):
    def generator(n, rng, dtype, *, cond=DEFAULT_COND, orthogonal="haar"):
        if not 1 <= cond < np.inf:
            raise ValueError(f"cond is {cond}; it must be finite and at least 1")
        return family(spectrum(n, cond, rng), rng, dtype, orthogonal)

    generator.__doc__ = summary
    return generator


def condition(n, *, cond=DEFAULT_COND, **_):
    """Return the 2-norm condition number that the spectrum prescribes."""
    return float(cond) if n > 1 else 1.0


_FAMILIES = {
    svd: "General matrix, singular values",
    spd: "Hermitian positive definite matrix, eigenvalues",
    heev: "Hermitian indefinite matrix, eigenvalues of random sign, with moduli",
}
_SPECTRA = {
    geo: "in geometric progression",
    arith: "in arithmetic progression",
    cluster0: "all 1/cond but one of 1",
    cluster1: "all 1 but one of 1/cond",
    logrand: "log-uniform",
}
GENERATORS = {
    f"{family.__name__}_{spectrum.__name__}": _generator(family, spectrum, f"{what} {how}.")
    for family, what in _FAMILIES.items()
    for spectrum, how in _SPECTRA.items()
}
CONDITIONS = dict.fromkeys(GENERATORS, condition)
