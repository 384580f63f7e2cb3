"""Problems of the catalog are what their names say."""

import doctest

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse
from tcsolve.matrices import _spectrum, _suitesparse

from tcsolve import matrices

UNIT = 2.0**-53  # roundoff of FP64
CATALOG = {entry.name: entry for entry in matrices.catalog()}
SPECTRA = sorted(_spectrum.GENERATORS)


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
def test_every_problem_is_made_in_every_type(name, dtype):
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
        (dict(name=["gauss"], n=3), ValueError, "there is no problem"),
        (dict(name=None, n=3), ValueError, "there is no problem None"),
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
        (dict(name="love_capacitor", n=3, spacing=0), ValueError, "NaN or Inf with spacing=0;"),
        (dict(name="foster_growth", n=3, kh=np.nan), ValueError, "NaN or Inf with kh=nan;"),
        (dict(name="gauss", n=3, rhs="zeros"), ValueError, "'ones' or 'random'"),
    ],
)
def test_wrong_arguments_are_explained(arguments, error, text):
    with pytest.raises(error, match=text):
        matrices.generate(**arguments)


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
