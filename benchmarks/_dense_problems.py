"""The dense problems of `training.py`: Poisson, boundary elements, covariance, given singular values."""

import math

# The condition number of the types 2 to 6; the condition number and the length scale of the covariance.
COND, COVARIANCE_COND, LENGTHSCALE = 100.0, 1e6, 0.2
POWER_STEPS = 30


def make(xp, name, n):
    """Return (A, its condition number or None, a description of this number).

    `poisson` rounds n to a square.
    """
    rng = xp.random.default_rng(7)
    return PROBLEMS[name](xp, n, rng)


def poisson(xp, n, rng):
    """Five-point Laplacian of a square grid, dense."""
    m = max(2, round(math.sqrt(n)))
    a, i = xp.zeros((m * m, m * m)), xp.arange(m * m)
    a[i, i] = 4.0
    for step, keep in ((1, i % m != m - 1), (m, i < m * (m - 1))):
        near = i[keep]
        a[near, near + step] = a[near + step, near] = -1.0
    return a, 1 / math.tan(math.pi / (2 * (m + 1))) ** 2, "2-norm, exact"


def boundary(xp, n, rng):
    """Potential of n discs on a sphere (R. F. Harrington, Field Computation by Moment Methods, 1968)."""
    k = xp.arange(n) + 0.5
    z, turn = 1 - 2 * k / n, math.pi * (1 + math.sqrt(5)) * k
    ring = xp.sqrt(1 - z**2)
    a = _squares(xp, (ring * xp.cos(turn), ring * xp.sin(turn), z))
    i = xp.arange(n)
    a[i, i] = 1.0
    a **= -0.5
    a[i, i] = math.sqrt(n)
    return a, None, "unknown"


def covariance(xp, n, rng):
    """Gaussian-process covariance of random points in the unit square, with noise."""
    a = _squares(xp, (rng.random(n), rng.random(n)))
    a *= -1 / (2 * LENGTHSCALE**2)
    xp.exp(a, out=a)
    v = xp.ones(n)
    for _ in range(POWER_STEPS):
        v = a @ v
        top = float(xp.linalg.norm(v))
        v /= top
    i = xp.arange(n)
    a[i, i] += top / (COVARIANCE_COND - 1)
    return a, COVARIANCE_COND, "2-norm, upper bound"


def _squares(xp, coordinates):
    """Return the squared distances of points."""
    n = len(coordinates[0])
    a = xp.zeros((n, n))
    for x in coordinates:
        step = x[:, None] - x
        step *= step
        a += step
    return a


def of_type(values, definite):
    """Return a maker of V S V^T or U S V^T with singular values `values`(xp, n, rng)."""

    def make(xp, n, rng):
        s = values(xp, n, rng)
        v = xp.linalg.qr(rng.standard_normal((n, n)))[0]
        u = v if definite else xp.linalg.qr(rng.standard_normal((n, n)))[0]
        return (u * s) @ v.T, COND, "2-norm, given"

    return make


def dominant(xp, n, rng):
    """Random matrix; the sum of the magnitudes of each row is added to its diagonal entry."""
    a = rng.standard_normal((n, n))
    i = xp.arange(n)
    a[i, i] += xp.abs(a).sum(axis=1)
    return a, None, "unknown"


def log_uniform(xp, n, rng):
    s = COND ** -rng.random(n)
    s[0], s[-1] = 1.0, 1 / COND
    return s


def clustered(xp, n, rng):
    s = xp.ones(n)
    s[-1] = 1 / COND
    return s


def arithmetic(xp, n, rng):
    return 1 - xp.arange(n) / (n - 1) * (1 - 1 / COND)


PROBLEMS = {
    "poisson": poisson,
    "boundary": boundary,
    "covariance": covariance,
    "type 1": dominant,
    "type 2": of_type(log_uniform, True),
    "type 3": of_type(clustered, True),
    "type 4": of_type(clustered, False),
    "type 5": of_type(arithmetic, True),
    "type 6": of_type(arithmetic, False),
}
