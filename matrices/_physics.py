"""Dense systems from applications: integral equations and Gaussian processes.

Lengths are in metres and potentials in volts unless a docstring says otherwise. Entries are not
rescaled, so a matrix has the range of its units.
"""

import numpy as np
from scipy import special

EPSILON_0 = 8.8541878128e-12  # F/m, vacuum permittivity (CODATA 2018)
ETA_0 = 376.730313668  # ohm, impedance of free space (CODATA 2018)


def plate_capacitance(n):
    """Charge on a square plate by the method of moments; n is rounded to the nearest square.

    The plate, 1 m by 1 m, is cut into m by m rectangles, m = sqrt(n), of constant charge density
    x (C/m^2), finer towards the edges where the density is singular. Row i is the potential (V) at
    the centre of rectangle i,

        a_ij = 1/(4 pi epsilon_0) integral over rectangle j of dS / |r_i - r|,

    integrated in closed form. Real, unsymmetric because of the grading, entries up to 1e10. The
    right-hand side 1 V gives the charge, hence the capacitance: 40.81 pF.

    References
    ----------
    R. F. Harrington, Field Computation by Moment Methods, Macmillan (1968), section 2-3.
    F. H. Read, Improved extrapolation technique in the boundary element method, J. Comput. Phys.
    133 (1997), 1-5.
    """
    nodes = plate_nodes(n)
    m = len(nodes) - 1
    centres = (nodes[1:] + nodes[:-1]) / 2
    # The centre of a rectangle never lies on an edge line, so that no argument is zero.
    offset = nodes - centres[:, None]
    x = offset[:, None, :, None]
    y = offset[None, :, None, :]
    # The integral of 1/r over a rectangle is the second difference of this over its four corners.
    corner = x * np.arcsinh(y / np.abs(x)) + y * np.arcsinh(x / np.abs(y))
    integral = np.diff(np.diff(corner, axis=2), axis=3)
    return integral.reshape(m * m, m * m) / (4 * np.pi * EPSILON_0)


def plate_nodes(n):
    """Return the m + 1 grid lines of the plate, graded as Chebyshev points, m = sqrt(n) rounded."""
    m = max(1, round(np.sqrt(n)))
    return (1 - np.cos(np.pi * np.arange(m + 1) / m)) / 2


def sphere_capacitance(n):
    """Charge on a conducting sphere by the method of moments: symmetric, Coulomb's 1/r.

    The unit sphere (radius 1 m) carries n cells of equal area around Fibonacci points, each with
    charge x (C). Row i is the potential (V) at point i,

        a_ij = 1/(4 pi epsilon_0 |r_i - r_j|),    a_ii = 1/(2 pi epsilon_0 rho),

    the latter that of a disc of the same area, radius rho = 2 / sqrt(n). The right-hand side 1 V
    gives the capacitance as sum(x): 4 pi epsilon_0 times the radius, 111.3 pF.

    References
    ----------
    R. F. Harrington, Field Computation by Moment Methods, Macmillan (1968), chapter 2.
    """
    k = np.arange(n) + 0.5
    z = 1 - 2 * k / n
    azimuth = np.pi * (1 + np.sqrt(5)) * k
    radius = np.sqrt(1 - z**2)
    points = np.column_stack([radius * np.cos(azimuth), radius * np.sin(azimuth), z])
    distance = _distance(points, points)
    np.fill_diagonal(distance, 1 / np.sqrt(n))  # half the radius of the disc
    return 1 / (4 * np.pi * EPSILON_0 * distance)


def scattering_cylinder(n, *, aspect=0.5, per_wavelength=10):
    """Wave scattering from a metal cylinder, electric-field integral equation: complex.

    An infinite, perfectly conducting cylinder of elliptic cross-section (semi-axes 1 m and aspect)
    is met by a wave polarised along its axis. The contour has n segments of constant surface
    current x (A/m), and the frequency grows with n to keep per_wavelength segments in a wavelength
    on average, as practice demands. Row i is the field (V/m) at segment i,

        a_ij = k eta / 4 * length_j * H0^(2)(k |r_i - r_j|),

    k the wavenumber (1/m), eta the impedance of free space (ohm), H0^(2) the Hankel function; a_ii
    takes the small-argument form, integrated. Complex, unsymmetric; symmetric and circulant for
    aspect = 1. Near the interior resonances of the cross-section the equation itself is
    ill-conditioned.

    References
    ----------
    C. A. Balanis, Advanced Engineering Electromagnetics, 2nd ed., Wiley (2012), section 12.3.
    """
    angle = 2 * np.pi * (np.arange(n) + 0.5) / n
    points = np.column_stack([np.cos(angle), aspect * np.sin(angle)])
    length = 2 * np.pi / n * np.hypot(np.sin(angle), aspect * np.cos(angle))
    wavenumber = 2 * np.pi * n / (per_wavelength * length.sum())
    phase = _distance(points, points)
    phase *= wavenumber
    np.fill_diagonal(phase, 1)
    a = np.empty((n, n), complex)
    a.real = special.j0(phase)
    a.imag = -special.y0(phase)
    gamma = np.exp(np.euler_gamma)
    np.fill_diagonal(a, 1 - 2j / np.pi * np.log(gamma * wavenumber * length / (4 * np.e)))
    a *= wavenumber * ETA_0 / 4 * length
    return a


def gp_kernel(n, rng, *, cond=1e6, lengthscale=0.2):
    """Gaussian-process covariance of random points in the unit square; knob: cond, an upper bound.

    The kernel exp(-|p - q|^2 / (2 lengthscale^2)) of n uniform points p (lengths without unit) plus
    the variance of the observation noise on the diagonal. The kernel is positive semidefinite with
    largest eigenvalue L, so the noise L / (cond - 1) makes the condition number at most cond, and
    equal to it when the smallest eigenvalue of the kernel is far below the noise: for this smooth
    kernel, whenever n is more than a few hundred.

    References
    ----------
    C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, MIT Press (2006),
    chapter 2.
    """
    if not 1 < cond < np.inf:
        raise ValueError(f"cond is {cond}; it must be finite and above 1")
    points = rng.random((n, 2))
    a = np.exp(-(_distance(points, points) ** 2) / (2 * lengthscale**2))
    a[np.diag_indices(n)] += _largest_eigenvalue(a) / (cond - 1)
    return a


def love_capacitor(n, *, spacing=0.1):
    """Love's equation for two charged discs, I - K: symmetric Toeplitz; knob: spacing.

    Two coaxial discs of radius 1 at opposite potentials, the given spacing apart (in radii). The
    density x of the auxiliary charge on (-1, 1) solves

        x(s) - 1/pi integral of spacing / (spacing^2 + (s - t)^2) x(t) dt = 1,

    here by the midpoint rule. The norm of the integral operator tends to 1 as the discs approach,
    so the condition number grows about as 1 / spacing; the rule resolves the kernel while the
    spacing exceeds 2/n.

    References
    ----------
    E. R. Love, The electrostatic field of two equal circular co-axial conducting disks, Q. J. Mech.
    Appl. Math. 2 (1949), 428-451.
    """
    h = 2 / n
    s = h * (np.arange(n) + 0.5) - 1
    return np.eye(n) - h * spacing / np.pi / (spacing**2 + (s[:, None] - s) ** 2)


def greens_operator(n, *, alpha=800.0):
    """Integral equation I - alpha G, G the inverse of -d^2/ds^2; knob: alpha, singular at (k pi)^2.

    Helmholtz's equation -x'' = alpha x + f on (0, 1) with x(0) = x(1) = 0, by Green's function and
    the trapezoidal rule. alpha = 1 is easy; the default lies close to the ninth eigenvalue, (9
    pi)^2 = 799.4, and is hard.

    References
    ----------
    C. T. Kelley, Newton's method in mixed precision, SIAM Review 64 (2022), 191-211.
    """
    s = np.linspace(0, 1, n)
    weight = np.full(n, 1 / max(n - 1, 1))
    weight[[0, -1]] /= 2
    t = s[:, None]
    return np.eye(n) - alpha * np.minimum(s, t) * (1 - np.maximum(s, t)) * weight


def _distance(p, q):
    """Return the distances between the rows of p and those of q."""
    # Sum squares of differences: |p|^2 + |q|^2 - 2 p.q has cancellation for close points, the largest
    # entries.
    square = np.zeros((len(p), len(q)))
    for u, v in zip(p.T, q.T, strict=True):
        square += (u[:, None] - v) ** 2
    return np.sqrt(square, out=square)


def _largest_eigenvalue(a, steps=50):
    """Return the largest eigenvalue of a positive semidefinite matrix with positive entries."""
    # The power method starts from a positive vector, so it converges to the Perron vector.
    x = np.ones(len(a))
    for _ in range(steps):
        x = a @ x
        x /= np.linalg.norm(x)
    return x @ a @ x


GENERATORS = {
    generator.__name__: generator
    for generator in (
        plate_capacitance,
        sphere_capacitance,
        scattering_cylinder,
        gp_kernel,
        love_capacitor,
        greens_operator,
    )
}
