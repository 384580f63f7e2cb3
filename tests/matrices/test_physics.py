"""Problems of physics: published numbers, reached by solving them."""

import numpy as np
import pytest
from scipy import special
from tcsolve.matrices import _physics

from tcsolve import matrices


def test_plate_has_the_published_capacitance():
    n = 24**2
    charge_density = np.linalg.solve(matrices.generate("plate_capacitance", n).a, np.ones(n))
    side = np.diff(_physics.plate_nodes(n))
    capacitance = charge_density @ np.outer(side, side).ravel()
    assert abs(capacitance / (4 * np.pi * _physics.EPSILON_0) - 0.3667892) <= 1e-3


def test_plate_matrix_is_the_potential_of_a_rectangle():
    m = 4
    nodes = _physics.plate_nodes(m * m)
    a = matrices.generate("plate_capacitance", m * m).a
    # Gauss quadrature of 1/r over rectangle (0, 3), seen from the centre of rectangle (2, 1).
    point, weight = np.polynomial.legendre.leggauss(20)
    centre, half = (nodes[1:] + nodes[:-1]) / 2, np.diff(nodes) / 2
    x = centre[0] + half[0] * point[:, None] - centre[2]
    y = centre[3] + half[3] * point - centre[1]
    potential = half[0] * half[3] * weight @ (1 / np.hypot(x, y)) @ weight
    assert abs(a[9, 3] * 4 * np.pi * _physics.EPSILON_0 / potential - 1) <= 1e-10


def test_sphere_has_the_exact_capacitance():
    n = 800
    a = matrices.generate("sphere_capacitance", n).a
    capacitance = np.linalg.solve(a, np.ones(n)).sum()
    assert (a == a.T).all()
    assert abs(capacitance / (4 * np.pi * _physics.EPSILON_0) - 1) <= 1e-2


def test_circular_cylinder_scatters_as_the_series_says():
    n = 400
    a = matrices.generate("scattering_cylinder", n, aspect=1.0, per_wavelength=40).a
    angle = 2 * np.pi * (np.arange(n) + 0.5) / n
    k = n / 40  # the circumference, 2 pi, in wavelengths
    current = np.linalg.solve(a, np.exp(1j * k * np.cos(angle)))
    # Balanis, section 11.5: current in an axially polarised plane wave that comes from the right.
    order = np.arange(-40, 41)
    terms = 1j**order * np.exp(1j * np.outer(angle, order)) / special.hankel2(order, k)
    exact = 2 / (np.pi * k * _physics.ETA_0) * terms.sum(axis=1)
    # The error halves when the number of segments doubles: 0.042, 0.020, 0.010 at 20, 40, 80 in a wavelength.
    assert np.linalg.norm(current - exact) <= 0.025 * np.linalg.norm(exact)


def test_elliptic_cylinder_is_unsymmetric():
    a = matrices.generate("scattering_cylinder", 50).a
    assert np.abs(a - a.T).max() > 0.01 * np.abs(a).max()


@pytest.mark.parametrize("cond", [1e3, 1e8])
def test_gp_kernel_has_the_condition_asked_for(cond):
    a = matrices.generate("gp_kernel", 400, cond=cond).a
    assert 0.9 * cond <= np.linalg.cond(a) <= 1.001 * cond
    assert (a == a.T).all()


def test_love_equation_has_the_published_solution():
    # Discs at equal potentials one radius apart: f(0) = 0.65741 (C. T. H. Baker, The Numerical
    # Treatment of Integral Equations, Oxford 1977). There the operator is I + K = 2 I - A.
    n = 201
    a = matrices.generate("love_capacitor", n, spacing=1.0).a
    f = np.linalg.solve(2 * np.eye(n) - a, np.ones(n))
    assert abs(f[n // 2] - 0.65741) <= 2e-5


def test_love_capacitor_hardens_as_the_discs_approach():
    far, near = (matrices.generate("love_capacitor", 400, spacing=d).a for d in (0.1, 0.01))
    assert 5 <= np.linalg.cond(near) / np.linalg.cond(far) <= 20


def test_greens_operator_is_singular_near_its_eigenvalues():
    easy, hard = (matrices.generate("greens_operator", 400, alpha=alpha).a for alpha in (1, 800))
    assert np.linalg.cond(easy) < 2 and np.linalg.cond(hard) > 500
