"""`lstsq` and `lstsq_ex`: FP32 factors where they suffice, else SciPy's drivers, and the report."""

import numpy as np
import pytest
import scipy.linalg
from bounds import host

import tcsolve
from tcsolve import lstsq, lstsq_ex

M, N = 900, 200


def problem(m=M, n=N, cond=1e2, noise=1.0, dtype=float, seed=0, k=()):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        x = rng.standard_normal(shape)
        return x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x

    q, _ = np.linalg.qr(normal(m, n))
    p, _ = np.linalg.qr(normal(n, n))
    a = (q * np.geomspace(1, 1 / cond, n)) @ p
    return a, a @ normal(n, *k) + noise * normal(m, *k)


def optimality(a, x, b):
    """Return ||A^H r|| / (||A||_F ||r||) of each column in long double, or 0 if r is only rounding.

    It is small only for the minimum.
    """
    wide = np.clongdouble if np.iscomplexobj(a) or np.iscomplexobj(b) else np.longdouble
    a, x, b = (host(v).astype(wide) for v in (a, x, b))
    r = b - a @ x
    size, norm = (np.sqrt((np.abs(v) ** 2).sum(axis=0)) for v in (r, a.ravel()))
    largest = norm * np.sqrt((np.abs(x) ** 2).sum(axis=0))
    normal = np.sqrt((np.abs(a.conj().T @ r) ** 2).sum(axis=0))
    return np.where(size <= 1e-15 * largest * M**0.5, 0, normal / norm / size).astype(float)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("noise", [0, 1e-3, 1.0])
@pytest.mark.parametrize("cond", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("k", [(), (1,), (3,)])
def test_a_problem_of_full_rank_is_solved_by_fp32_factors_and_verified(xp, dtype, noise, cond, k):
    a, b = problem(cond=cond, noise=noise, dtype=dtype, k=k)

    report = lstsq_ex(xp.asarray(a), xp.asarray(b))

    assert report.method == "qr fp32" and report.verified and not report.reason
    assert report.rank == N and report.s is None and report.x.shape == (N, *k)
    assert isinstance(report.x, xp.ndarray) and report.x.dtype == dtype
    assert (report.backward_error <= report.bound).all()
    assert len(report.backward_error) == (k or (1,))[0]
    if noise:
        # The bound of a backward stable method, which depends on the condition number (Higham 2002, chapter
        # 20).
        assert optimality(a, report.x, b).max() <= 1e-15 * M**0.5 * (1 + cond / noise * 1e-2)
    exact = np.linalg.lstsq(a, b)[0]
    size = cond * (1 + (cond if noise else 0) * noise * M**0.5 / np.linalg.norm(exact)) * 1e-14
    assert np.abs(host(report.x) - exact).max() <= size * np.abs(exact).max()
    assert 1 / cond / N <= report.rcond <= min(1, 30 / cond)


def test_lstsq_returns_what_scipys_gelsy_returns(xp):
    a, b = problem(k=(2,))
    x, residues, rank, s = lstsq(xp.asarray(a), xp.asarray(b), lapack_driver="gelsy")
    expected = scipy.linalg.lstsq(a, b, lapack_driver="gelsy")
    assert np.allclose(host(x), expected[0], rtol=1e-10)
    assert residues.shape == expected[1].shape == (0,) and rank == expected[2] and s is None


def test_the_residues_are_the_squares_of_the_norms(xp):
    a, b = problem()
    report = lstsq_ex(xp.asarray(a), xp.asarray(b))
    expected = scipy.linalg.lstsq(a, b)[1]
    assert host(report.residues).shape == () and np.allclose(
        host(report.residues), expected, rtol=1e-12, atol=0
    )
    a, b = problem(k=(2,))
    assert np.allclose(
        host(lstsq_ex(xp.asarray(a), xp.asarray(b)).residues),
        scipy.linalg.lstsq(a, b)[1],
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("driver", [None, "gelsd", "gelss"])
def test_the_other_drivers_are_scipys(driver):
    a, b = problem(40, 20)
    for found, expected in zip(
        lstsq(a, b, lapack_driver=driver),
        scipy.linalg.lstsq(a, b, lapack_driver=driver),
        strict=True,
    ):
        assert np.array_equal(found, expected)


def problem_of_rank(rank):
    a, b = problem()
    a[:, rank:] = a[:, :1]
    return a, b


OTHERS = {
    "small": (lambda: problem(40, 20), "small"),
    "wide": (
        lambda: tuple(reversed((np.ones(300), np.random.default_rng(0).random((300, 900))))),
        "m < n",
    ),
    "FP32": (lambda: tuple(v.astype(np.float32) for v in problem()), "FP32"),
    "of low rank": (lambda: problem_of_rank(100), "too small for FP32 factors"),
    "ill-conditioned": (lambda: problem(cond=1e12), "too small for FP32 factors"),
    "huge": (lambda: tuple(1e200 * v for v in problem()), "too large or small"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_fp32_factors_do_not_serve_for_is_solved_by_scipy_and_told(kind):
    make, reason = OTHERS[kind]
    a, b = make()

    report = lstsq_ex(a, b)

    expected = scipy.linalg.lstsq(a, b, lapack_driver="gelsy")
    assert report.method == "gelsy" and reason in report.reason and not report.verified
    assert report.backward_error is None and report.rank == expected[2]
    assert np.array_equal(report.x, expected[0])


def test_the_rank_follows_the_cutoff_of_the_caller():
    a, b = problem(cond=1e4)
    assert lstsq_ex(a, b, cond=1e-8).method == "qr fp32"
    report = lstsq_ex(a, b, cond=1e-2)
    assert report.method == "gelsy" and report.rank < N


def test_columns_of_any_size_are_scaled(xp):
    a, b = problem()
    scale = 2.0 ** np.linspace(-15, 15, N).round()
    found = lstsq_ex(xp.asarray(a * scale), xp.asarray(b), cond=1e-14)
    assert found.verified
    assert np.allclose(host(found.x) * scale, np.linalg.lstsq(a, b)[0], rtol=1e-9)


def test_zero_right_hand_sides_have_zero_answers(xp):
    a, b = problem(k=(2,))
    b[:, 1] = 0
    report = lstsq_ex(xp.asarray(a), xp.asarray(b))
    assert report.verified and not host(report.x)[:, 1].any()


def test_inputs_are_not_modified(xp):
    a, b = problem()
    given = xp.array(a), xp.array(b)
    lstsq(*given, lapack_driver="gelsy")
    lstsq_ex(*given)
    assert np.array_equal(host(given[0]), a) and np.array_equal(host(given[1]), b)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_bad_input_of_least_squares_is_refused(driver):
    a, b = problem()
    for wrong in ((a, b[1:]), (a, np.full(M, np.nan)), (np.full((M, N), np.inf), b)):
        with pytest.raises(ValueError):
            lstsq(*wrong, lapack_driver=driver)
    with pytest.raises(ValueError, match='driver "gels" is not found; use one of gelsd'):
        lstsq(a, b, lapack_driver="gels")
    with pytest.raises(
        tcsolve.InputError, match="lstsq_ex: a has shape .*, b has shape|are needed"
    ):
        lstsq_ex(np.stack([a, a]), b)


def test_stacks_of_problems_broadcast():
    a, b = np.random.default_rng(0).random((3, 8, 4)), np.random.default_rng(1).random((2, 1, 8, 2))
    x, residues, rank, s = lstsq(a, b)
    assert x.shape == (2, 3, 4, 2) and residues.shape == (2, 3, 2) and s.shape == (2, 3, 4)
    assert (rank == 4).all() and np.allclose(
        x[1, 2], np.linalg.lstsq(a[2], b[1, 0])[0], rtol=1e-10, atol=1e-13
    )


def test_gelsy_has_empty_residues_of_the_dtype_of_x():
    a = np.random.default_rng(0).standard_normal((1200, 200)) + 0j
    for given in (a, a.real):
        x, residues, *_ = tcsolve.lstsq(given, given[:, 0], lapack_driver="gelsy")
        assert residues.shape == (0,) and residues.dtype == x.dtype
    nothing = np.zeros((3, 0)), np.ones((3, 2))
    for ours, theirs in zip(
        tcsolve.lstsq(*nothing, lapack_driver="gelsy"),
        scipy.linalg.lstsq(*nothing, lapack_driver="gelsy"),
        strict=True,
    ):
        assert np.shape(ours) == np.shape(theirs)
