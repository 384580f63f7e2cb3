"""The estimate of rcond from factors: whether it is right, and when it is computed."""

import contextlib
import warnings

import numpy as np
import pytest
import scipy.linalg
from bounds import host
from systems import matrix_of, problem

import tcsolve
from tcsolve import LinAlgWarning, SingularError, Status, factor, matrices
from tcsolve._arithmetic.formats import UPDATES
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._backends.select import ops_for

EVERY = ("auto", *UPDATES)


@pytest.fixture
def calls_of(xp, monkeypatch):
    """A function (name, note) that returns a list, to which later calls of that primitive add note(*args)."""
    ops = ops_for(xp.ones(1))
    factors, _ = ops.lu.getrf(xp.eye(2), np.dtype(float))
    classes = type(ops), type(ops.lu), type(factors)

    def watch(name, note):
        primitives = next(cls for cls in classes if hasattr(cls, name))
        noted, body = [], getattr(primitives, name)

        def call(self, *args, **options):
            noted.append(note(*args))
            return body(self, *args, **options)

        monkeypatch.setattr(primitives, name, call)
        return noted

    return watch


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("cond", [1e1, 1e4, 1e7, 1e10, 1e13])
@pytest.mark.parametrize("dtype", [float, complex])
def test_rcond_is_within_a_factor_of_ten(xp, dtype, cond, precision):
    a = problem(50, cond, seed=3, dtype=dtype).a
    true = 1 / (np.linalg.norm(a, 1) * np.linalg.norm(np.linalg.inv(a), 1))

    rcond = factor(xp.asarray(a), precision=precision).rcond()

    # An estimate by random vectors is of another norm, which differs by up to sqrt(n), here 7.
    assert true / 10 <= rcond <= 10 * true


@pytest.mark.parametrize("precision", EVERY)
def test_rcond_is_that_of_the_callers_matrix_however_it_was_scaled(xp, precision):
    a = matrices.generate("mixed_scales", 30, decades=4, seed=1).a
    true = 1 / (np.linalg.norm(a, 1) * np.linalg.norm(np.linalg.inv(a), 1))

    for scale in (1.0, 2.0**900, 2.0**-900):
        rcond = factor(xp.asarray(scale * a), precision=precision).rcond()
        assert true / 10 <= rcond <= 10 * true


def singular(kind, n, dtype):
    rng = np.random.default_rng(4)
    a = rng.standard_normal((n, n)).astype(dtype)
    if dtype is complex:
        a += 1j * rng.standard_normal((n, n))
    a = np.round(a * 2**20) / 2**20
    if kind == "a sum of rows":
        a[-1] = a[:-1].sum(axis=0)
    elif kind.startswith("a multiple of a column"):
        a[:, 7] = 3 * a[:, 3]  # exact in FP64 but not in FP32, so no pivot is zero
        a[:, 5] *= (
            1e-12 if "small" in kind else 1
        )  # a small column makes the norm of the inverse larger
    else:  # the Laplacian of a directed graph
        a = np.diag(abs(a).sum(axis=1)) - abs(a)
    return a.astype(dtype), (rng.standard_normal(n) for _ in range(2))


@pytest.mark.parametrize("precision", ["fp16x3", "fp32"])
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize(
    "kind",
    [
        "a sum of rows",
        "a multiple of a column",
        "a multiple of a column beside a small one",
        "a Laplacian",
    ],
)
def test_a_right_hand_side_in_the_range_does_not_hide_that_a_is_singular(
    xp, kind, dtype, precision
):
    a, solutions = singular(kind, 300, dtype)
    f = factor(xp.asarray(a), precision=precision)

    # The residuals contract although the solutions are wrong: errors along the null vector leave no residual.
    for x in solutions:
        found = f.solve_ex(xp.asarray(a @ x))
        assert found.status is Status.ILL_CONDITIONED and found.rcond < 2.0**-52
    assert f.rcond() == found.rcond


def with_singular_values(s, rng):
    """Return a real matrix with the singular values s and random singular vectors."""
    u, v = (np.linalg.qr(rng.standard_normal((len(s), len(s))))[0] for _ in range(2))
    return (u * s) @ v


def veiled(kind):
    """Return a singular matrix whose null vector is not the first direction that the estimator finds."""
    if kind == "another small singular value":
        s = np.linspace(1, 0.4, 100)
        s[-2:] = 1e-7, 0
        return with_singular_values(s, np.random.default_rng(0))
    if kind == "a larger column of the inverse, without an error":
        s = np.linspace(1, 0.4, 20)
        s[-1] = 0
        bidiagonal = np.eye(40) - 2 * np.eye(40, k=1)
        return scipy.linalg.block_diag(
            bidiagonal, with_singular_values(s, np.random.default_rng(1))
        )
    m = 36 if "scaled" in kind else 20  # pivots grow by 2**m
    a = np.random.default_rng(0).standard_normal((40, 40)) / 2
    a[:m, :m], a[m:, :m] = np.eye(m) - np.tril(np.ones((m, m)), -1), -1
    a = np.round(a * 2**20) / 2**20
    a[:, -1] = a[:, :-1].sum(axis=1) / 8
    return a


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp32"])
@pytest.mark.parametrize(
    "kind",
    [
        "another small singular value",
        "a larger column of the inverse, without an error",
        "growth",
        "growth in what is scaled",
    ],
)
def test_a_null_vector_is_found_although_another_direction_comes_first(xp, kind, precision):
    a = veiled(kind)
    f = factor(xp.asarray(a), precision=precision)

    found = f.solve_ex(xp.asarray(a @ np.ones(len(a))))

    # A pivot may be zero by chance.
    assert found.status in (Status.ILL_CONDITIONED, Status.SINGULAR) and found.rcond < 2.0**-52


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("smallest", [1e-3, 1e-6, 1e-9])
def test_rcond_does_not_depend_on_what_was_solved(xp, smallest, precision):
    a = with_singular_values(np.geomspace(1, smallest, 60), np.random.default_rng(3))
    before = factor(xp.asarray(a), precision=precision).rcond()
    f = factor(xp.asarray(a), precision=precision)
    f.solve_ex(xp.asarray(a @ np.ones(60)))

    true = 1 / np.linalg.cond(a, 1)
    assert true / 10 <= before <= 10 * true
    assert f.precision != precision or f.rcond() == before  # unless more precise factors followed


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp32"])
@pytest.mark.parametrize("n", [40, 200])
def test_a_sample_of_the_inverse_has_its_largest_column(xp, n, precision):
    a = np.eye(n)
    a[1:, 0] = 1e4

    rcond = factor(xp.asarray(a), precision=precision).rcond()

    assert rcond == pytest.approx(1 / np.linalg.cond(a, 1), rel=0.01)


@pytest.mark.parametrize("precision", ["fp16x3", "fp32"])
def test_rcond_of_factors_that_see_it_needs_no_other_solve(xp, calls_of, precision):
    a = problem(300, 3e6).a
    f = factor(xp.asarray(a), precision=precision)
    columns = calls_of("residual", lambda a, x, b: b.shape[1])

    found = f.solve_ex(xp.asarray(a @ np.ones(300)))

    true = 1 / np.linalg.cond(a, 1)
    assert found.rungs == (precision,) and true / 10 <= found.rcond <= 10 * true
    assert set(columns) <= {1}  # no other system was solved, which would cost more


def test_rcond_does_not_change_on_asking_again(xp):
    f = factor(xp.asarray(problem().a), precision="fp16x3")
    before = f.rcond()
    f.solve(xp.ones(60))
    assert f.rcond() == before


@pytest.fixture
def estimates(calls_of):
    """A function that lists the calls that estimate rcond, by LAPACK or by us, or start an estimate."""
    found = [calls_of(name, lambda *_, name=name: name) for name in ("gecon", "probes", "aside")]
    return lambda: sum(found, [])


@pytest.mark.parametrize("precision", ["fp16", "fp16x3", "fp64"])
@pytest.mark.parametrize("n", [60, 300])
def test_where_dominance_bounds_the_condition_solve_does_not_estimate_it(
    n, precision, xp, estimates
):
    a = np.random.default_rng(0).standard_normal((n, n)) + 2 * n * np.eye(n)
    b = a @ np.ones(n)
    args = xp.asarray(a), xp.asarray(b)

    x = tcsolve.solve(*args, precision=precision, assume_a="general")

    assert not estimates()
    solution = tcsolve.solve_ex(*args, precision=precision, assume_a="general")
    assert estimates()
    assert np.array_equal(host(x), host(solution.x))
    assert solution.rcond == pytest.approx(1 / np.linalg.cond(a, 1), rel=0.5)


# A diagonal that dominates by too little, one that does not dominate, and a matrix that a `Frame` scales.
@pytest.mark.parametrize("change", ["barely", "not", "frame"])
def test_solve_estimates_the_condition_where_dominance_does_not_tell(change, xp, estimates):
    n = 60
    a = np.random.default_rng(0).standard_normal((n, n)) + 2 * n * np.eye(n)
    if change == "not":
        a[0, 1:] = 5
    if change == "frame":
        a *= 2.0**-1000
    if change == "barely":
        a = np.diag(np.r_[np.ones(n - 1), 1e-17])
    args = xp.asarray(a), xp.asarray(a @ np.ones(n))
    warned = pytest.warns(LinAlgWarning) if change == "barely" else contextlib.nullcontext()

    with warned:
        x = tcsolve.solve(*args, precision="fp16x3", assume_a="general")

    assert estimates()
    assert np.allclose(host(x), 1)


@pytest.mark.parametrize("columns, beside", [(1, True), (3, False)])
@pytest.mark.parametrize("kind", ["good", "another", "badly scaled", "huge", "hard"])
def test_a_condition_begun_beside_the_refinement_is_that_found_after_it(
    kind, columns, beside, monkeypatch
):
    a = matrices.generate("gauss", 80, seed=1).a if kind == "another" else matrix_of(kind)
    b = np.random.default_rng(0).standard_normal((80, columns))
    places, compared, held = ["after"], [], NumpyOps.held

    def watched(self, *args):
        compared.append(places[-1])
        return held(self, *args)

    def aside(self, w, others, name, body, then=None):
        places.append("beside")
        both = then(*body())
        places.pop()
        return lambda: both

    def solve():
        compared.clear()
        plan = tcsolve.Plan("fp16x3", block=64)  # one panel would be solved without the ladder
        return tcsolve.solve_ex(a, b, precision=plan, assume_a="general"), list(compared)

    monkeypatch.setattr(NumpyOps, "held", watched)
    after, of_after = solve()
    # A pretended device: it has inverses of diagonal blocks, and estimates rcond during the refinement.
    finish = HostLU.finish
    inverted = lambda self, lu, *rest: (finish(self, lu, *rest)[0], lu[:0])  # noqa: E731
    monkeypatch.setattr(HostLU, "finish", inverted)
    monkeypatch.setattr(NumpyOps, "aside", aside)
    found, of_found = solve()

    assert found.rcond == after.rcond and np.array_equal(found.x, after.x)
    assert "beside" not in of_after
    if kind == "another":  # the estimator finds the largest column first
        assert of_after == ["after"] and of_found == (["beside"] if beside else ["after"])


@pytest.mark.parametrize("dtype", [float, complex])
def test_solve_warns_of_a_matrix_that_is_singular_to_working_precision(dtype):
    """Also for sizes at which one random vector is tried before the estimate."""
    rng = np.random.default_rng(4)
    for n in (25, 40, 120, 300):
        for _ in range(6):
            u, _, v = np.linalg.svd(rng.standard_normal((n, n)).astype(dtype))
            s = np.ones(n)
            s[-1] = 1e-18
            a = u * s @ v
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # A pivot may be exactly zero.
                with pytest.raises((LinAlgWarning, SingularError)):
                    tcsolve.solve(a, np.ones(n))


@pytest.mark.parametrize("xp", ["numpy"], indirect=True)
def test_one_random_vector_spares_solve_the_estimate(estimates):
    rng = np.random.default_rng(4)
    a = rng.standard_normal((200, 200))
    b = rng.standard_normal(200)

    x = tcsolve.solve(a, b)

    assert not estimates()
    solution = tcsolve.solve_ex(a, b)
    assert estimates() == ["gecon"] and np.array_equal(x, solution.x)
