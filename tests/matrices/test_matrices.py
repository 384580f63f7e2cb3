"""Tests of tcsolve.matrices: problems are what their names say; files are read or refused."""

import doctest
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse
from scipy import special
from tcsolve.matrices import _physics, _spectrum, _suitesparse, _words

from tcsolve import matrices

UNIT = 2.0**-53  # roundoff of FP64
CATALOG = {entry.name: entry for entry in matrices.catalog()}
SPECTRA = sorted(_spectrum.GENERATORS)
HEADER = "%%MatrixMarket matrix coordinate"


def spectrum(name, n, cond):
    """Return the prescribed values in descending order, from the definitions."""
    k = np.arange(n)
    return {
        "geo": [cond ** (-i / (n - 1)) for i in k],
        "arith": [1 - i / (n - 1) * (1 - 1 / cond) for i in k],
        "cluster0": [1.0] + [1 / cond] * (n - 1),
        "cluster1": [1.0] * (n - 1) + [1 / cond],
    }[name]


def growth(a):
    """Return the growth factor of Gaussian elimination with partial pivoting."""
    return np.abs(np.triu(scipy.linalg.lu_factor(a)[0])).max() / np.abs(a).max()


# The catalog.


@pytest.mark.parametrize("name", CATALOG)
def test_x_true_solves_the_problem(name):
    for n in (1, 2, 3, 9, 40):
        for rhs, nrhs in (("ones", 1), ("random", 3)):
            p = matrices.generate(name, n, rhs=rhs, nrhs=nrhs)
            assert p.a.shape == (p.n, p.n) and p.a.flags.c_contiguous
            assert p.b.shape == ((p.n,) if nrhs == 1 else (p.n, nrhs))
            assert p.a.dtype == p.b.dtype
            assert np.isfinite(p.b).all()
            if p.x_true is None:
                assert not CATALOG[name].solvable and not np.isfinite(p.a).all()
                continue
            assert p.x_true.shape == p.b.shape and p.x_true.dtype == p.b.dtype
            scale = np.abs(p.a) @ np.abs(p.x_true)
            assert (np.abs(p.b - p.a @ p.x_true) <= 8 * p.n * UNIT * scale).all()


@pytest.mark.parametrize("name", CATALOG)
def test_order_is_kept_or_rounded_to_a_square(name):
    rounded = name in ("poisson2d", "plate_capacitance")
    orders = [matrices.generate(name, n).n for n in (1, 2, 3, 10, 15)]
    assert orders == ([1, 1, 4, 9, 16] if rounded else [1, 2, 3, 10, 15])


@pytest.mark.parametrize("name", CATALOG)
def test_same_seed_gives_same_bits(name):
    first, second = (matrices.generate(name, 20, seed=7, rhs="random") for _ in range(2))
    assert first.a.tobytes() == second.a.tobytes()
    assert first.b.tobytes() == second.b.tobytes()


def test_another_seed_gives_another_matrix():
    assert (matrices.generate("gauss", 5).a != matrices.generate("gauss", 5, seed=1).a).all()


def test_right_hand_sides_leave_the_matrix_alone():
    a = matrices.generate("svd_geo", 20).a
    assert a.tobytes() == matrices.generate("svd_geo", 20, nrhs=4, rhs="random").a.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128])
@pytest.mark.parametrize("name", [name for name in CATALOG if name != "scattering_cylinder"])
def test_every_type_is_made_from_double_precision(name, dtype):
    p = matrices.generate(name, 12, dtype=dtype)
    assert p.a.dtype == p.b.dtype == dtype
    assert np.isfinite(p.a).all() == np.isfinite(matrices.generate(name, 12).a).all()


def test_entries_are_complex_where_they_are_random():
    for name in ("gauss", "uniform", "toeplitz", "svd_geo", "near_overflow"):
        assert np.abs(matrices.generate(name, 5, dtype=complex).a.imag).max() > 0


def test_summaries_are_short_and_distinct():
    summaries = [entry.summary for entry in matrices.catalog()]
    assert all(0 < len(summary) <= 100 for summary in summaries)
    assert len(set(summaries)) == len(summaries) >= 46


def test_repr_shows_no_array():
    text = "Problem(name='hilbert', n=4, dtype=float64, cond=None)"
    assert repr(matrices.generate("hilbert", 4)) == text


@pytest.mark.parametrize("module", [matrices, _suitesparse], ids=lambda module: module.__name__)
def test_docstring_examples_run(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (dict(name="hilbrt", n=3), ValueError, "did you mean hilbert.*catalog"),
        (dict(name="?", n=3), ValueError, r"no problem '\?'\. tcsolve.matrices.catalog"),
        (dict(name="gauss", n=0), ValueError, "n is 0"),
        (dict(name="gauss", n=2.5), TypeError, "float"),
        (dict(name="hilbert", n=3, cond=10), TypeError, "no option cond; its options: none"),
        (dict(name="kahan", n=3, alpha=1), TypeError, "no option alpha; its options: theta"),
        (dict(name="svd_geo", n=3, cond=0.5), ValueError, "at least 1"),
        (dict(name="svd_geo", n=3, cond=np.nan), ValueError, "finite"),
        (dict(name="svd_geo", n=3, orthogonal="qr"), ValueError, "'haar' or 'householder'"),
        (dict(name="gp_kernel", n=3, cond=1), ValueError, "above 1"),
        (dict(name="hpl_mxp", n=3, mu=2), ValueError, "between -1 and 1"),
        (dict(name="gauss", n=3, dtype=np.float16), TypeError, "float32, float64"),
        (dict(name="scattering_cylinder", n=3, dtype=float), TypeError, "is complex"),
        (dict(name="mixed_scales", n=9, decades=40, dtype="f4"), ValueError, "range of float32"),
        (dict(name="gauss", n=3, nrhs=0), ValueError, "nrhs is 0"),
        (dict(name="gauss", n=3, rhs="zeros"), ValueError, "'ones' or 'random'"),
    ],
)
def test_wrong_arguments_are_explained(arguments, error, text):
    with pytest.raises(error, match=text):
        matrices.generate(**arguments)


# Prescribed spectra.


@pytest.mark.parametrize("orthogonal", ["haar", "householder"])
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("name", SPECTRA)
def test_spectrum_is_as_prescribed(name, dtype, orthogonal):
    n, cond = 60, 1e6
    p = matrices.generate(name, n, cond=cond, dtype=dtype, orthogonal=orthogonal)
    family, kind = name.split("_")
    if family == "svd":
        values = scipy.linalg.svdvals(p.a)
    else:
        assert (p.a == p.a.conj().T).all()
        eigenvalues = scipy.linalg.eigvalsh(p.a)
        assert (eigenvalues.min() > 0) == (family == "spd")
        values = np.sort(np.abs(eigenvalues))[::-1]
    error = 10 * n * UNIT
    assert p.cond == cond
    assert abs(values[0] - 1) <= error and abs(values[-1] - 1 / cond) <= error
    if kind == "logrand":
        thirds = np.histogram(np.log10(values), [-6.1, -4, -2, 0.1])[0]
        assert (thirds >= n / 6).all()
    else:
        assert (np.abs(values - spectrum(kind, n, cond)) <= error).all()


def test_cond_of_order_one_is_one():
    for name in SPECTRA:
        p = matrices.generate(name, 1)
        assert p.cond == 1 and abs(abs(p.a[0, 0]) - 1) <= UNIT


def test_random_orthogonal_has_both_signs():
    # LAPACK's QR of a number returns Q = 1 always; the uniform distribution on {-1, 1} does not.
    q = [
        _spectrum.random_orthogonal(1, np.random.default_rng(seed), float, "haar")(np.eye(1)).item()
        for seed in range(20)
    ]
    assert set(q) == {-1.0, 1.0}


@pytest.mark.parametrize("name", ["minij", "poisson2d"])
def test_closed_form_cond_is_right(name):
    p = matrices.generate(name, 49)
    assert abs(np.linalg.cond(p.a) / p.cond - 1) <= 1e-9


# Classics.


def test_wilkinson_growth_is_two_to_the_n_minus_one():
    for n in (1, 2, 10, 50):
        assert growth(matrices.generate("wilkinson_growth", n).a) == 2.0 ** (n - 1)


def test_foster_growth_is_exponential():
    small, large = (growth(matrices.generate("foster_growth", n).a) for n in (30, 50))
    assert abs((large / small) ** (1 / 20) - 2.6 / 1.4) <= 1e-3


def test_classics_match_their_definitions():
    n = 7
    a = {name: matrices.generate(name, n).a for name in CATALOG}
    ones = np.ones((n, n))
    triangle = np.eye(n) - np.triu(ones, 1)
    assert (a["hilbert"] == scipy.linalg.hilbert(n)).all()
    assert (a["moler"] == triangle.T @ triangle).all()
    assert (a["minij"] == np.tril(ones) @ np.triu(ones)).all()
    assert (a["lehmer"][2] == [1 / 3, 2 / 3, 1, 3 / 4, 3 / 5, 3 / 6, 3 / 7]).all()
    assert (a["cauchy"][1] == 1 / np.arange(3, 10)).all()
    assert (a["parter"][0, :3] == [2, -2, -2 / 3]).all()
    assert (a["frank"][1] == [6, 6, 5, 4, 3, 2, 1]).all() and (a["frank"][2, 0] == 0)
    assert abs(np.linalg.det(a["frank"]) - 1) <= 1e-10
    column_norms = np.linalg.norm(a["kahan"], axis=0)
    assert (np.abs(column_norms - 1) <= 10 * UNIT).all()
    t = a["toeplitz"]
    assert (t == scipy.linalg.toeplitz(t[:, 0], t[0])).all()


def test_hpl_mxp_agrees_with_the_published_example():
    skew = matrices.generate("hpl_mxp", 5, mu=-1).a
    symmetric = matrices.generate("hpl_mxp", 5, mu=1).a
    assert (skew[:2, :2] == [[6 / 5, 1 / 6], [1 / 4, 6 / 5]]).all()
    assert (symmetric[0] == [8 / 7, 1 / 8, 1 / 9, 1 / 10, 1 / 11]).all()


def test_poisson2d_is_the_five_point_stencil():
    a = matrices.generate("poisson2d", 9).a
    assert (a[4] == [0, -1, 0, -1, 4, -1, 0, -1, 0]).all()
    assert (a[2] == [0, -1, 4, 0, 0, -1, 0, 0, 0]).all()


def test_dominant_is_diagonally_dominant():
    a = np.abs(matrices.generate("gauss_dominant", 100).a)
    assert (2 * np.diagonal(a) > a.sum(axis=1)).all()


# Extremes.


@pytest.mark.parametrize("dtype, exponent", [(np.float64, 300), (np.float32, 36)])
def test_edge_of_range_is_near_but_inside(dtype, exponent):
    large = np.abs(matrices.generate("near_overflow", 50, dtype=dtype).a).max()
    small = np.abs(matrices.generate("near_underflow", 50, dtype=dtype).a)
    assert 10.0**exponent < large < np.finfo(dtype).max / 10
    assert small.min() > 0 and small.max() < 10.0 ** (1 - exponent)


def test_fp16_problems_leave_its_range():
    assert np.median(np.abs(matrices.generate("fp16_overflow", 50).a)) > 65504
    assert np.abs(matrices.generate("fp16_underflow", 50).a).max() < 2.0**-24 / 2


def test_mixed_scales_spread_rows_and_columns():
    a = np.abs(matrices.generate("mixed_scales", 50, decades=20).a)
    for axis in (0, 1):
        scale = a.max(axis=axis)
        assert scale.max() / scale.min() > 1e20


def test_zero_column_is_where_the_name_says():
    for place, column in (("first", 0), ("middle", 5), ("last", 10)):
        a = matrices.generate(f"zero_column_{place}", 11).a
        assert np.flatnonzero(~a.any(axis=0)).tolist() == [column]


def test_dependent_rows_are_singular_to_working_precision():
    s = scipy.linalg.svdvals(matrices.generate("dependent_rows", 50).a)
    assert s[-1] <= 50 * UNIT * s[0] < s[-2]


def test_one_entry_is_not_finite():
    assert np.isnan(matrices.generate("nan_entry", 30).a).sum() == 1
    assert np.isinf(matrices.generate("inf_entry", 30).a).sum() == 1


# Physics: published numbers of the problem, reached by solving it.


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
    # The error halves with the segments: 0.042, 0.020, 0.010 at 20, 40, 80 in a wavelength.
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


# Matrix Market files.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder that TCSOLVE_MATRICES names."""
    path = tmp_path / "matrices"
    path.mkdir()
    monkeypatch.setenv("TCSOLVE_MATRICES", str(path))
    return path


def write(path, text):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize(
    "text, expected",
    [
        (f"{HEADER} real general\n2 2 2\n1 1 1.5\n2 1 -2\n", [[1.5, 0], [-2, 0]]),
        (f"{HEADER} pattern symmetric\n2 2 2\n1 1\n2 1\n", [[1, 1], [1, 0]]),
        (f"{HEADER} integer symmetric\n2 2 2\n1 1 3\n2 1 4\n", [[3, 4], [4, 0]]),
        (f"{HEADER} real skew-symmetric\n2 2 1\n2 1 4\n", [[0, -4], [4, 0]]),
        (f"{HEADER} complex hermitian\n2 2 2\n1 1 3 0\n2 1 0 4\n", [[3, -4j], [4j, 0]]),
        ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", [[1, 3], [2, 4]]),
    ],
)
def test_file_is_read_dense(tmp_path, suffix, text, expected):
    p = matrices.load(write(tmp_path / f"a{suffix}", text))
    assert (p.a == expected).all()
    assert p.a.dtype == (complex if "complex" in text else float)
    assert p.a.flags.c_contiguous and p.cond is None
    assert (p.b == np.sum(expected, axis=1)).all()


# Of these SciPy's reader takes a part, or nothing, without a word.
NO_NUMBERS = ("1.5D+01", "1.5d+01", "1.5+01", "1,5", "0x10", "1.2.3", "1e", "1e5.2", "1_0")
GOOD = f"{HEADER} real general\n2 2 2\n1 1 1.0\n2 2 2.0\n"


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "Missing banner"),
        ("hello\n", "Missing banner"),
        (GOOD[:-8], "Truncated file"),
        (GOOD + "1 2 3.0\n", "file too long"),
        (GOOD.replace("2.0", "zz"), "Invalid floating-point"),
        (GOOD.replace("2 2 2.0", "3 3 2.0"), "out of bounds"),
        (GOOD.replace("2 2 2\n", "-2 2 2\n"), "negative"),
        *(
            (GOOD.replace("1.0", word), f"{re.escape(repr(word))} is no real number")
            for word in NO_NUMBERS
        ),
        (GOOD.replace("1.0", "15 3"), "should have 6 numbers in all, and have 7"),
        (GOOD.replace("real", "integer"), "'1.0' is no integer number"),
        (GOOD.replace("real", "pattern"), "should have 4 numbers in all, and have 6"),
        ("%%MatrixMarket matrix array real general\n2 1\n1\n1.5D+01\n", "'1.5D.01' is no real"),
        (GOOD.replace("1.0", "1.0\0"), "is no real number"),
        (GOOD[:-1] + "x", "is no real number"),
        (f"{HEADER} real symmetric\n2 2 2\n2 1 5\n1 2 5\n", "entries on both sides"),
        (f"{HEADER} real symmetric\n2 3 1\n2 1 5\n", "symmetric, and 2 by 3"),
        (f"{HEADER} real skew-symmetric\n2 2 2\n2 1 5\n1 1 2\n", "diagonal is not zero"),
        (f"{HEADER} complex hermitian\n2 2 1\n1 1 1 2\n", "diagonal is not real"),
        (
            "%%MatrixMarket matrix array complex hermitian\n2 2\n1 1\n2 1\n3 0\n",
            "diagonal is not real",
        ),
    ],
)
def test_malformed_file_is_named_with_the_reason(tmp_path, suffix, text, reason):
    path = write(tmp_path / f"broken{suffix}", text)
    with pytest.raises(ValueError, match=rf"broken{suffix} is not .*{reason}"):
        matrices.load(path)


@pytest.mark.parametrize("end", ["", " ", "\r", "\t ", "\n\n", "\r\n"])
def test_a_file_may_end_as_it_likes(tmp_path, end):
    path = write(tmp_path / "a.mtx", GOOD.rstrip("\n") + end)
    np.testing.assert_array_equal(_suitesparse.read(path), np.diag([1, 2]))


def test_unsigned_numbers_have_negative_mirror_images(tmp_path):
    path = write(tmp_path / "a.mtx", f"{HEADER} unsigned-integer skew-symmetric\n2 2 1\n2 1 7\n")
    np.testing.assert_array_equal(_suitesparse.read(path), [[0, -7], [7, 0]])


@pytest.mark.parametrize("word", ["nan", "-Inf", "1E-3", "5.", "-.5", "7"])
def test_numbers_are_read_as_they_are_written(tmp_path, word):
    path = write(tmp_path / "a.mtx", f"%%MatrixMarket matrix array real general\n2 1\n1\n{word}\n")
    np.testing.assert_array_equal(_suitesparse.read(path), [[1], [float(word)]])


def test_words_are_counted_and_looked_at():
    for text in (b"\n", b"1", b" 1 2\r\n", b"1\t2\n\n3", b"1 -2.5e-01 +3\n4. .5 NaN\n-inf\n6"):
        assert _words.look_at(text, False) == (len(text.split()), None)
    for word in (b"1.5D+01", b"1..2", b"nan1", b"+", b"1e+", b"1e", b"-e5", b"1-2", b"1.e5.", b"x"):
        assert _words.look_at(b"1 2\n3 4 " + word + b" 5\n6", False)[1] == word
        assert _words.look_at(b"nan " + word + b" y", False)[1] == word
    assert _words.look_at(b"1\n-7\n1.0\n", True)[1] == b"1.0"


# Long files. They are read in pieces of a MiB.


@pytest.fixture(params=["general", "symmetric", "skew-symmetric", "hermitian"])
def long_matrix(request):
    """Return (matrix, symmetry) with more than two MiB of text."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((500, 500)) + 1j * rng.standard_normal((500, 500))
    a *= 10.0 ** rng.integers(-9, 9, a.shape)
    forms = {
        "general": a[:, :400],
        "symmetric": a.real + a.real.T,
        "skew-symmetric": a - a.T,
        "hermitian": a + a.conj().T,
    }
    return forms[request.param], request.param


@pytest.mark.parametrize("layout", ["array", "coordinate"])
def test_a_long_file_is_read_as_scipy_reads_it(tmp_path, long_matrix, layout):
    a, symmetry = long_matrix
    path = tmp_path / "long.mtx"
    stored = scipy.sparse.coo_array(a) if layout == "coordinate" else a
    scipy.io.mmwrite(path, stored, comment="of many\nlines", symmetry=symmetry)
    assert path.stat().st_size > 2 << 20
    read = _suitesparse.read(path)
    scipys = scipy.io.mmread(path)
    scipys = scipys.toarray() if layout == "coordinate" else scipys
    assert read.dtype == scipys.dtype and read.flags.c_contiguous
    assert read.tobytes() == np.ascontiguousarray(scipys).tobytes()


def test_entries_that_come_again_in_a_long_file_are_added(tmp_path):
    lines = "1 1 1\n2 1 0.5\n" * 200_000
    path = write(tmp_path / "a.mtx", f"{HEADER} real general\n2 2 400000\n{lines}")
    np.testing.assert_array_equal(_suitesparse.read(path), [[200_000, 0], [100_000, 0]])


@pytest.mark.parametrize(
    "last, reason",
    [
        ("3 1 1", "Line 300004: Row index out of bounds"),
        ("1 2 5", "entries on both sides"),
        ("1 1 x", "'x' is no real number"),
        ("2 1 5\n2 1 5", "too long.*should have 900003 numbers in all, and have 900006 or more"),
        ("", "Truncated.*should have 900003 numbers in all, and have 900000"),
        ("2 1", "Truncated|Invalid floating"),
    ],
)
def test_a_mistake_at_the_end_of_a_long_file_is_found(tmp_path, last, reason):
    text = f"{HEADER} real symmetric\n%\n2 2 300001\n" + "2 1 1\n" * 300_000 + last + "\n"
    path = write(tmp_path / "a.mtx", text)
    with pytest.raises(ValueError, match=rf"a.mtx is not .*{reason}"):
        _suitesparse.read(path)


@pytest.mark.parametrize(
    "text, reason",
    [
        (
            "%%MatrixMarket matrix array real general\n2 1\n1 2\n",
            "2 entries in 1 lines; write each",
        ),
        ("%%MatrixMarket vector array real general\n2\n1\n2\n", "holds a vector"),
        (f"{HEADER} real general\n0 0 1\n1 1 1\n", "out of bounds"),
        ("%%MatrixMarket matrix array real general\n0 3\n1\n", "too long"),
    ],
)
def test_a_file_that_is_not_as_its_first_lines_say_is_refused(tmp_path, text, reason):
    path = write(tmp_path / "a.mtx", text)
    with pytest.raises(ValueError, match=rf"a.mtx is not .*{reason}"):
        _suitesparse.read(path)


MIB = 1 << 20
ONE = b"%%MatrixMarket matrix array real general\n1 1\n1\n"
# Begin of the text, and a MiB that follows 300 times.
BOMBS = {
    "one long word": (ONE, b"%" * MIB, "line of more than"),
    "one long number": (ONE[:-1], b"1" * MIB, "line of more than"),
    "one long blank line": (ONE, b" " * MIB, "line of more than"),
    "a long comment": (ONE[:-6], b"%" * MIB, "no line of sizes"),
    "many comments": (ONE[:-6], b"% x\n" * (MIB // 4), "no line of sizes"),
    "a long first line": (ONE[:30], b" " * MIB, "no line of sizes"),
    "many numbers": (ONE, b"7\n" * (MIB // 2), "file too long"),
    "many comments behind the end": (ONE, b"%\n" * (MIB // 2), "'%' is no real number"),
    "many empty lines": (ONE, b"\n" * MIB, None),
    "a huge matrix": (ONE[:-6] + b"1000000000 1000000000\n", b"7\n" * (MIB // 2), "limit_bytes"),
    "huge coordinates": (
        b"%%MatrixMarket matrix coordinate real general\n1000000000 1000000000 1\n",
        b"7\n" * (MIB // 2),
        "limit_bytes",
    ),
}
# The peak of this process alone; what getrusage says of a child counts its parent's memory, too.
MEASURED = """
import sys, time
from tcsolve.matrices import _suitesparse

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024

before, start, reason = peak(), time.perf_counter(), ""
try:
    source = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.buffer
    _suitesparse.read(source, limit_bytes=1 << 20)
except (MemoryError, ValueError) as error:
    reason = str(error)
print(peak() - before, time.perf_counter() - start, reason)
"""


def bomb(kind, members):
    """Return 300 MiB as a gzip file of one member, or of many."""
    begin, block, reason = BOMBS[kind]
    if members == "many":
        return gzip.compress(begin) + 300 * gzip.compress(block, 1), reason
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(begin), *(packer.compress(block) for _ in range(300))]
    return b"".join(parts) + packer.flush(), reason


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak")
@pytest.mark.parametrize("how", ["whole", "cut off"])
@pytest.mark.parametrize(
    "kind, members", [(kind, "many") for kind in BOMBS] + [("one long word", "one")]
)
def test_memory_and_time_are_bounded_by_the_matrix_not_by_the_text(tmp_path, kind, members, how):
    data, reason = bomb(kind, members)
    assert len(data) < 2 * MIB
    if how == "cut off":
        data = data[:-9]
        reason = reason or "ended before the end"
    path = tmp_path / "bomb.mtx.gz"
    path.write_bytes(data)
    command = [sys.executable, "-P", "-c", MEASURED, path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    megabytes, seconds, told = run.stdout.split(maxsplit=2) if reason else (*run.stdout.split(), "")
    assert (reason or "") in told and run.stderr == ""
    assert float(megabytes) < 200
    assert float(seconds) < 5


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak")
@pytest.mark.parametrize("kind", ["one long word", "many numbers", "a huge matrix"])
def test_standard_input_is_bounded_too(kind):
    data, reason = bomb(kind, "many")
    command = [sys.executable, "-P", "-c", MEASURED]
    run = subprocess.run(command, input=data, capture_output=True, timeout=200)
    megabytes, seconds, told = run.stdout.decode().split(maxsplit=2)
    assert reason in told and told.startswith("<stdin> is ") and run.stderr == b""
    assert float(megabytes) < 200
    assert float(seconds) < 5


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak")
def test_reading_takes_little_more_memory_than_the_matrix(tmp_path):
    path = tmp_path / "a.mtx"
    a = np.random.default_rng(0).standard_normal((1500, 1500))  # 17 MiB, and more text
    scipy.io.mmwrite(path, a, symmetry="general")
    command = [sys.executable, "-P", "-c", MEASURED.replace("1 << 20", "1 << 30"), path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.stderr == ""
    assert float(run.stdout.split()[0]) < (a.nbytes + path.stat().st_size) / MIB


# Open files.


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_open_file_is_read(pack):
    file = io.BufferedReader(io.BytesIO(pack(GOOD.encode())))
    problem = matrices.load(file)
    np.testing.assert_array_equal(problem.a, np.diag([1, 2]))
    assert not file.closed
    with pytest.raises(MemoryError, match="the open file is 2 by 2"):
        matrices.load(io.BufferedReader(io.BytesIO(pack(GOOD.encode()))), limit_bytes=31)


def test_an_open_file_that_is_malformed_is_named(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(gzip.compress(GOOD.encode())[:-9])
    with open(path, "rb") as file, pytest.raises(ValueError, match="data is not a readable"):
        matrices.load(file)


def test_damaged_compression_is_a_malformed_file(tmp_path):
    path = tmp_path / "broken.mtx.gz"
    data = gzip.compress(GOOD.encode())
    flipped = data[:15] + bytes([data[15] ^ 255]) + data[16:]
    for damaged in (b"not gzip", data[:-10], flipped, data[:-6] + b"\0\0\0\0\0\0"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="broken.mtx.gz is not"):
            matrices.load(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.mtx"):
        matrices.load(tmp_path / "absent.mtx")


def test_rectangular_matrix_is_refused(tmp_path):
    path = write(tmp_path / "a.mtx", GOOD.replace("2 2 2\n", "2 3 2\n"))
    with pytest.raises(ValueError, match="2 by 3.*square"):
        matrices.load(path)


def test_huge_matrix_is_refused_from_its_header(tmp_path):
    path = write(tmp_path / "huge.mtx", f"{HEADER} real general\n999999 999999 1\n1 1 1.0\n")
    with pytest.raises(MemoryError, match="huge.mtx is 999999 by 999999.*limit_bytes"):
        matrices.load(path)
    path = write(tmp_path / "small.mtx", GOOD)
    with pytest.raises(MemoryError):
        matrices.load(path, limit_bytes=31)
    assert matrices.load(path, limit_bytes=32).n == 2


def test_complex_file_is_not_made_real(tmp_path):
    path = write(tmp_path / "a.mtx", f"{HEADER} complex general\n1 1 1\n1 1 1 2\n")
    with pytest.raises(TypeError, match="is complex"):
        matrices.load(path, dtype=float)
    assert matrices.load(path, dtype=np.complex64).a.dtype == np.complex64


# The local folder.


def test_names_are_found_in_the_folder(folder):
    write(folder / "one.mtx", GOOD)
    write(folder / "two.mtx.gz", GOOD)
    (folder / "two.txt").touch()
    assert matrices.names() == matrices.names(folder) == ("one", "two")
    assert matrices.load("one").n == matrices.load("HB/two").n == 2


def test_index_is_typed_and_gives_cond(folder):
    write(folder / "one.mtx", GOOD)
    write(folder / "two.mtx", GOOD)
    (folder / "index.csv").write_text(
        "name,group,n,kind,cond_2norm,max_abs\none,HB,2,real,2e+00,2\ntwo,HB,2,real,,2\n"
    )
    rows = matrices.index()
    assert rows[0] == dict(name="one", group="HB", n=2, kind="real", cond_2norm=2.0, max_abs=2.0)
    assert np.isnan(rows[1]["cond_2norm"])
    assert matrices.load("one").cond == 2 and matrices.load("two").cond is None


@pytest.mark.parametrize(
    "text, told",
    [
        ("", r"columns \(none\) in its first line; name and group are needed"),
        ("\nname,group,n\n", r"columns \(none\) in its first line; name and group are needed"),
        ("name,n\none,2\n", "columns name, n in its first line; name and group are needed"),
        ('name,group\none,"HB' + 200000 * "x", "is not a CSV file in UTF-8: field larger"),
        ("name,group\none,\udcff\n", "is not a CSV file in UTF-8: .*can't decode"),
        ("name,group,n\none,HB\n", "line 2 has more or fewer cells"),
        ("name,group,n\none,HB,2\ntwo,HB,2,3\n", "line 3 has more or fewer cells"),
        ("name,group,n\none,HB,two\n", "line 2 is not as the columns say: .*'two'"),
    ],
)
def test_an_index_that_is_none_says_where_and_what_to_do(folder, text, told):
    write(folder / "one.mtx", GOOD)
    (folder / "index.csv").write_text(text, "utf-8", "surrogateescape")
    for call in (matrices.index, partial(matrices.load, "HB/one"), partial(matrices.load, "one")):
        with pytest.raises(ValueError, match=rf"index\.csv.*{told}"):
            call()


def test_same_name_in_another_group_is_another_matrix(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    write(folder / "one.mtx", GOOD)
    # As some spreadsheets write it, with a mark at the beginning.
    (folder / "index.csv").write_text("\ufeffname,group,n\none,HB,2\n", "utf-8")
    assert matrices.load("HB/one").n == 2
    with pytest.raises(ImportError, match="no matrix Bai/one"):
        matrices.load("Bai/one")


def test_unknown_name_says_where_and_what_to_do(folder):
    write(folder / "west0132.mtx", GOOD)
    text = "west0123 in .*has west0132.*TCSOLVE_MATRICES.*group/west0123"
    with pytest.raises(FileNotFoundError, match=text):
        matrices.load("west0123")


def test_unset_or_wrong_folder_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("TCSOLVE_MATRICES", raising=False)
    for call in (matrices.names, matrices.index, partial(matrices.load, "west0132")):
        with pytest.raises(FileNotFoundError, match="no folder is known.*TCSOLVE_MATRICES"):
            call()
        with pytest.raises(FileNotFoundError, match="absent is not a folder"):
            call(folder=tmp_path / "absent")


@pytest.mark.parametrize("name", ["", "a/b/c", "../a", "HB/..", "a b", "/a"])
def test_name_cannot_leave_the_folder(folder, name):
    with pytest.raises(ValueError, match="not the name of a matrix"):
        matrices.load(name)


# The download, from a local archive in place of the collection.


@pytest.fixture
def collection(tmp_path, monkeypatch, folder):
    """Serve HB/tiny from a file through pooch; return the archive and the addresses asked for."""
    pooch = pytest.importorskip("pooch", reason="the download needs pooch")
    archive = tmp_path / "tiny.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for member, text in (("tiny/tiny.mtx", GOOD), ("tiny/tiny_b.mtx", "rhs")):
            entry = tarfile.TarInfo(member)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    asked = []

    def copy(url, output_file, pooch):
        asked.append(url)
        if not url.endswith("/MM/HB/tiny.tar.gz"):
            raise ConnectionError("404")
        shutil.copy(archive, output_file)

    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")
    monkeypatch.setattr(pooch, "retrieve", partial(pooch.retrieve, downloader=copy))
    return archive, asked


def test_download_is_checked_by_its_hash(collection):
    archive, asked = collection
    digest = sys.modules["pooch"].file_hash(archive)
    for _ in range(2):
        assert matrices.load("HB/tiny", known_hash=digest).a.tolist() == [[1, 0], [0, 2]]
    assert asked == ["https://suitesparse-collection-website.herokuapp.com/MM/HB/tiny.tar.gz"]
    with pytest.raises(ValueError, match="hash"):
        matrices.load("HB/tiny", known_hash="0" * 64)


def test_unknown_hash_is_reported_once_and_kept(collection):
    archive, asked = collection
    with pytest.warns(UserWarning, match=sys.modules["pooch"].file_hash(archive)):
        matrices.load("HB/tiny")
    matrices.load("HB/tiny")
    cached = next(archive.parent.glob("cache/**/tiny.tar.gz"))
    cached.write_bytes(b"damaged")
    assert matrices.load("HB/tiny").n == 2
    assert len(asked) == 2


def test_local_file_comes_before_the_download(collection, folder):
    write(folder / "tiny.mtx", GOOD.replace("2.0", "5.0"))
    assert matrices.load("HB/tiny").a[1, 1] == 5
    assert collection[1] == []


def test_failed_download_says_what_was_tried(collection, folder):
    with pytest.raises(FileNotFoundError, match=rf"HB/huge in {folder}.*TCSOLVE_MATRICES.*404"):
        matrices.load("HB/huge")


def test_wrong_archive_is_refused_and_its_hash_not_recorded(collection):
    archive, _ = collection
    whole = archive.read_bytes()
    for damaged in (b"an error page", whole[:-40], whole[:60]):
        archive.write_bytes(damaged)
        shutil.rmtree(archive.parent / "cache", ignore_errors=True)
        with pytest.raises(ValueError, match="not the archive of a matrix tiny; delete it"):
            matrices.load("HB/tiny")
    assert not list(archive.parent.glob("cache/**/*.sha256"))


def test_missing_pooch_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'tcsolve\[study\]'"):
        matrices.load("HB/west0132")


# The real matrices.


@pytest.fixture(scope="module")
def real_matrices():
    """Return the folder of collection matrices."""
    path = os.environ.get("TCSOLVE_MATRICES")
    if path and (Path(path) / "index.csv").is_file():
        return Path(path)
    reason = f"TCSOLVE_MATRICES is {path!r}, not a folder of collection matrices with an index.csv"
    if os.environ.get("TCSOLVE_REQUIRE_MATRICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def test_every_real_matrix_has_the_indexed_order(real_matrices):
    rows = matrices.index()
    assert tuple(sorted(row["name"] for row in rows)) == matrices.names()
    for row in rows:
        header = scipy.io.mminfo(real_matrices / f"{row['name']}.mtx.gz")
        assert header[:2] == (row["n"], row["n"])


def test_every_small_real_matrix_loads(real_matrices):
    rows = [row for row in matrices.index() if row["n"] <= 2000]
    assert rows
    for row in rows:
        p = matrices.load(row["name"])
        assert p.n == row["n"]
        assert np.iscomplexobj(p.a) == row["kind"].startswith("complex")
        assert np.count_nonzero(p.a) <= row["nnz"]
        assert abs(np.abs(p.a).max() / row["max_abs"] - 1) <= 0.01
        if "symmetric" in row["kind"].split() and "real" in row["kind"]:
            assert (p.a == p.a.T).all()
