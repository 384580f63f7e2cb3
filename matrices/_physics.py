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

    The plate, 1 m by 1 m, is divided into m by m rectangles, m = sqrt(n). Each has a constant charge
    density x (C/m^2). The rectangles are smaller near the edges, where the density is singular. Row i
    is the potential (V) at the centre of rectangle i:

        a_ij = 1/(4 pi epsilon_0) integral over rectangle j of dS / |r_i - r|.

    The integral has a closed form. The matrix is real, and not symmetric because the sizes of the
    rectangles differ. For n = 100, its entries reach 5e9. With the right-hand side 1 V, the total charge
    approximates the capacitance, 40.81 pF; for n = 100 it is 40.45 pF.

    References
    ----------
    R. F. Harrington, Field Computation by Moment Methods, Macmillan (1968), section 2-3.
    F. H. Read, Improved extrapolation technique in the boundary element method, J. Comput. Phys.
    133 (1997), 1-5.
    """
    nodes = plate_nodes(n)
    m = len(nodes) - 1
    centres = (nodes[1:] + nodes[:-1]) / 2
    # The centre of a rectangle never lies on a grid line, so x and y are not zero.
    offset = nodes - centres[:, None]
    x = offset[:, None, :, None]
    y = offset[None, :, None, :]
    # The second difference of `corner` over the corners of a rectangle is the integral of 1/r over it.
    corner = x * np.arcsinh(y / np.abs(x)) + y * np.arcsinh(x / np.abs(y))
    integral = np.diff(np.diff(corner, axis=2), axis=3)
    return integral.reshape(m * m, m * m) / (4 * np.pi * EPSILON_0)


def plate_nodes(n):
    """Return the m + 1 grid lines of the plate, which are Chebyshev points, m = sqrt(n) rounded."""
    m = max(1, round(np.sqrt(n)))
    return (1 - np.cos(np.pi * np.arange(m + 1) / m)) / 2


def sphere_capacitance(n):
    """Charge on a conducting sphere by the method of moments: symmetric, with Coulomb's 1/r.

    A sphere of radius 1 m is divided into n cells of equal area around Fibonacci points. Each cell has
    a charge x (C). Row i is the potential (V) at point i:

        a_ij = 1/(4 pi epsilon_0 |r_i - r_j|),    a_ii = 1/(2 pi epsilon_0 rho).

    The diagonal entry is the potential of a disc of the same area, radius rho = 2 / sqrt(n). With the
    right-hand side 1 V, sum(x) approximates the capacitance: 4 pi epsilon_0 times the radius, 111.3 pF.

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

    A wave polarised along the axis of an infinite, perfectly conducting cylinder is scattered by it.
    The cross-section is an ellipse with semi-axes 1 m and aspect. The contour has n segments, each with
    a constant surface current x (A/m). The frequency grows with n, so that a wavelength has
    per_wavelength segments on average, as is usual. Row i is the field (V/m) at segment i:

        a_ij = k eta / 4 * length_j * H0^(2)(k |r_i - r_j|).

    Here k is the wavenumber (1/m), eta the impedance of free space (ohm), and H0^(2) the Hankel
    function. For a_ii, the form of H0^(2) for small arguments is integrated over the segment. The matrix
    is complex and not symmetric; for aspect = 1 it is symmetric and circulant. Near the interior
    resonances of the cross-section, the integral equation is ill-conditioned.

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
    """Gaussian-process covariance of random points in the unit square; cond is an upper bound.

    The matrix has the kernel exp(-|p - q|^2 / (2 lengthscale^2)) of n uniform points p (lengths have no
    unit), plus the variance of the observation noise on the diagonal. The kernel is positive
    semidefinite. If L is its largest eigenvalue, the noise L / (cond - 1) makes the condition number at
    most cond. The condition number is nearly cond if the smallest eigenvalue of the kernel is far below
    the noise. This kernel is smooth, so this is the case if n is more than a few hundred.

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
    """Love's integral equation for two discs: symmetric Toeplitz, ill-conditioned if the discs are close.

    Two coaxial discs of radius 1 have opposite potentials; `spacing` is their distance in radii. The
    density x of the auxiliary charge on (-1, 1) solves

        x(s) - 1/pi integral of spacing / (spacing^2 + (s - t)^2) x(t) dt = 1.

    The integral is discretized by the midpoint rule, which resolves the kernel if the spacing exceeds
    2/n. As the spacing goes to zero, the norm of the integral operator tends to 1, so the condition
    number grows about as 1 / spacing.

    References
    ----------
    E. R. Love, The electrostatic field of two equal circular co-axial conducting disks, Q. J. Mech.
    Appl. Math. 2 (1949), 428-451.
    """
    h = 2 / n
    s = h * (np.arange(n) + 0.5) - 1
    return np.eye(n) - h * spacing / np.pi / (spacing**2 + (s[:, None] - s) ** 2)


def greens_operator(n, *, alpha=800.0):
    """Integral equation I - alpha G, G the inverse of -d^2/ds^2: singular for alpha = (k pi)^2.

    It discretizes Helmholtz's equation -x'' = alpha x + f on (0, 1) with x(0) = x(1) = 0, by Green's
    function and the trapezoidal rule. With alpha = 1 the matrix is well conditioned. The default is close
    to the ninth eigenvalue, (9 pi)^2 = 799.4, and gives an ill-conditioned matrix.

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
    # Sum the squares of the differences.  |p|^2 + |q|^2 - 2 p.q has cancellation for close points, which give
    # the largest entries of the kernel.
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
