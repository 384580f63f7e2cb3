"""Random cases of every kind keep every promise; and the judge finds answers that are wrong."""

import contextlib
import dataclasses
import json
import math
import os
import runpy
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
from folders import BENCHMARKS
from on_device import allocations_needed
from pages import FACTS

from fuzz import exact
from fuzz.extent import CALLS, COUNTS, largest_failure, many_columns, run_extents
from fuzz.judge import System, Verdict, judge_solution
from fuzz.outcome import Place
from fuzz.runner import KINDS, Kind, kind_named, parse_case, run_case, run_kind, seconds_of
from tcsolve import DeviceMemoryError, Status, factor, solve, solve_ex

HOST = Place(np)
MOST_SHOWN = 20


def pytest_generate_tests(metafunc):
    if "kind" not in metafunc.fixturenames:
        return
    try:
        case = metafunc.config.getoption("fuzz_case")
        kinds = [kind_named(parse_case(case)[0])] if case else KINDS
    except ValueError as error:
        raise pytest.UsageError(f"--fuzz-case: {error}") from None
    cases = [pytest.param(kind, "numpy", id=f"{kind.name}-numpy") for kind in kinds]
    cases += [
        pytest.param(kind, "cupy", marks=pytest.mark.gpu, id=f"{kind.name}-cupy")
        for kind in kinds
        if kind.on_device
    ]
    metafunc.parametrize("kind, library", cases)


@pytest.mark.parametrize("library", ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("seed, number", [(9911, 6628), (9931, 4501)])
def test_an_answer_in_range_is_found_where_scaled_factors_overflow(seed, number, library, request):
    place = HOST if library == "numpy" else Place(request.getfixturevalue("cupy"))
    assert run_case(kind_named("systems"), place, seed, number) == []


@pytest.mark.fuzz
def test_random_cases_keep_every_promise(kind, library, fuzz_tallies, pytestconfig, request):
    xp = np if library == "numpy" else request.getfixturevalue("cupy")
    place, case = Place(xp), pytestconfig.getoption("fuzz_case")
    if case:
        _, seed, number = parse_case(case)
        assert not run_case(kind, place, seed, number)
        return
    seconds = seconds_of(kind, pytestconfig.getoption("fuzz_seconds"))

    tally = run_kind(kind, place, seconds, pytestconfig.getoption("fuzz_seed"))

    fuzz_tallies.append(tally)
    assert not tally.failures, "\n".join([str(tally), *tally.failures[:MOST_SHOWN]])
    assert tally.cases >= kind.floor


# ---- the suite itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("each", KINDS, ids=[kind.name for kind in KINDS])
def test_a_case_is_the_same_whenever_it_runs(each):
    drawn = []

    def draw(rng, place):
        drawn.append(rng.integers(2**62))

    for number in (3, 4, 3):
        run_case(each._replace(run=draw), HOST, 7, number)
    assert drawn[0] == drawn[2] != drawn[1]


def test_no_two_kinds_draw_the_same_numbers():
    drawn = [
        run_case(kind._replace(run=lambda rng, place: rng.integers(2**62)), HOST, 0, 0)
        for kind in KINDS
    ]
    assert len(set(drawn)) == len(KINDS)


def test_all_failures_of_a_kind_are_told_with_what_runs_them_again():
    kind = Kind("systems", lambda rng, place: ["wrong"] if rng.random() < 0.5 else [], 1, 40, "")

    tally = run_kind(kind, HOST, 0, seed=5)

    assert tally.cases == 40 and 5 < len(tally.failures) < 35
    assert tally.failures[0].startswith("--fuzz-case systems:5:")
    again = parse_case(tally.failures[0].split()[1])
    assert run_case(kind, HOST, *again[1:]) == ["wrong"]


def test_a_kind_that_judges_nothing_does_not_reach_its_floor():
    tally = run_kind(Kind("systems", lambda rng, place: None, 1, 5, ""), HOST, 0, seed=0)
    assert tally.cases == 0


def test_an_exception_of_the_case_itself_is_a_failure():
    tally = run_kind(Kind("systems", lambda rng, place: 1 / 0, 1, 1, ""), HOST, 0, seed=0)
    assert len(tally.failures) == 1 and "ZeroDivisionError" in tally.failures[0]


def test_one_case_runs_from_the_command_line():
    command = [sys.executable, "-P", "-m", "pytest", "-q", "--assert=plain"]
    command += ["-m", "fuzz and not gpu", str(Path(__file__)), "--fuzz-case"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = {"capture_output": True, "text": True, "env": environment}

    good = subprocess.run([*command, "files:3:1"], **options)
    bad = subprocess.run([*command, "files-3"], **options)

    assert good.returncode == 0 and "1 passed" in good.stdout
    assert bad.returncode != 0 and "KIND:SEED:NUMBER is needed" in bad.stdout + bad.stderr


# ---- the judge's arithmetic ---------------------------------------------------------------------


def rational_error(a, x, b):
    """Return the backward error of a real system of one right-hand side, computed in fractions."""
    a, x, b = ([Fraction(v) for v in np.ravel(m).tolist()] for m in (a, x, b))
    n = len(x)
    rows = [a[i * n : (i + 1) * n] for i in range(n)]
    rest = max(abs(b[i] - sum(p * q for p, q in zip(rows[i], x, strict=True))) for i in range(n))
    return float(rest / (max(sum(map(abs, row)) for row in rows) * max(map(abs, x))))


@pytest.mark.parametrize("scale", [1.0, 1e300, 1e-310])
@pytest.mark.parametrize("n", [1, 5, 16, 17, 60])
def test_errors_are_those_of_fractions(n, scale):
    rng = np.random.default_rng(n)
    a, x = scale * rng.standard_normal((n, n)), rng.standard_normal((n, 1))
    b = a @ x
    expected = rational_error(a, x, b)

    exactly, no_radius = exact.backward_errors(a, x, b, exactly=True)
    quickly, radius = exact.backward_errors(a, x, b)

    assert exactly == expected and no_radius == 0
    assert abs(quickly - expected) <= radius + 1e-15 * expected


def test_complex_errors_are_those_of_long_double_to_its_precision():
    rng = np.random.default_rng(0)
    for n in (2, 20):
        a, b = (rng.standard_normal((n, k)) + 1j * rng.standard_normal((n, k)) for k in (n, 3))
        x = np.linalg.solve(a, b) * (1 + 1e-9)
        wide = [v.astype(np.clongdouble) for v in (a, x, b)]
        rest = abs(wide[2] - wide[0] @ wide[1]).max(axis=0)
        expected = rest / abs(wide[0]).sum(axis=1).max() / abs(wide[1]).max(axis=0)

        error, _ = exact.backward_errors(a, x, b, exactly=True)

        # A complex sum of n products has an error of at most 4 (n + 2) u |A||x|.
        unit = np.finfo(np.longdouble).eps / 2
        assert (abs(error - expected) <= 4 * (n + 4) * unit + 2.0**-52 * expected).all()


def test_an_error_is_zero_infinite_or_exact_where_numbers_end():
    a, x = np.array([[5e-324, 0], [0, 1e308]]), np.array([[1.0, 0, np.nan], [1.0, 0, 1]])
    b = np.array([[5e-324, 1, 0], [1e308, 0, 0]])
    error, radius = exact.backward_errors(a, x, b)
    assert error.tolist() == [0, math.inf, math.inf] and not radius.any()


def test_conditions_are_those_of_known_inverses():
    hilbert, inverse = scipy.linalg.hilbert(8), scipy.linalg.invhilbert(8, exact=True)
    integers = np.rint(hilbert * 840)  # exact, unlike the rounded Hilbert matrix
    assert exact.rcond(np.diag([1.0, 1e-200])) == pytest.approx(1e-200, rel=1e-9)
    condition = abs(hilbert).sum(axis=0).max() * float(abs(inverse).sum(axis=0).max())
    assert exact.rcond(hilbert) == pytest.approx(1 / condition, rel=1e-5)
    assert exact.rcond(integers) == pytest.approx(1 / np.linalg.cond(integers, 1), rel=1e-6)
    turned = np.array([[3, 4j], [4j, 3]])
    assert exact.rcond(turned) == pytest.approx(25 / 49, rel=1e-9)


def test_singular_matrices_are_told_from_those_that_nearly_are():
    a = np.arange(9.0).reshape(3, 3)
    assert exact.rcond(a) == 0 and exact.is_singular(a) and exact.is_singular(a + 1j * a)
    a[0, 0] = 1e-200
    assert 0 < exact.rcond(a) < 1e-200 and not exact.is_singular(a)


def test_a_rounded_solution_is_told_from_its_neighbours():
    a, b = np.array([[3.0, 1.0], [0.0, 7.0]]), np.array([[1e-310], [2e-310]])
    x = np.array([[5e-310 / 21], [2e-310 / 7]])  # subnormal
    assert exact.is_rounded_solution(a, x, b)
    for i in range(2):
        beside = x.copy()
        beside[i] += 5e-324
        assert not exact.is_rounded_solution(a, beside, b)
    assert not exact.is_rounded_solution(a, np.full((2, 1), np.nan), b)
    assert not exact.is_rounded_solution(a, x, b * 1j)


def test_determinants_are_exact():
    sign, log = exact.determinant(np.array([[0.0, 3.0], [2.0, 1e300]]))
    assert (sign, log) == (-1, math.log(6))
    sign, log = exact.determinant(np.array([[1j, 0], [0, 2.0]]))
    assert abs(sign - 1j) < 1e-15 and log == pytest.approx(math.log(2))


# ---- the judge, on wrong answers ----------------------------------------------------------------


def a_system(n=12):
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, n)), rng.standard_normal((n, 2))


def verdict(solution, a, b, x=None, their_x=None, doubts=False):
    x = solution.x if x is None else x
    system = System(a[None], b[None], x.dtype)
    return judge_solution(system, solution, x[None], Verdict(their_x, doubts))


def test_the_judge_has_nothing_to_say_of_a_good_answer():
    for n in (12, 50):
        a, b = a_system(n)
        assert verdict(solve_ex(a, b), a, b) == []


@pytest.mark.parametrize("n", [12, 50])
@pytest.mark.parametrize("times", [1.2, 3, 1e6])
def test_an_answer_beyond_the_bound_is_no_success(n, times):
    a, b = a_system(n)
    solution = solve_ex(a, b)
    away = np.zeros_like(b)
    far = times * (solution.bound + exact.rounding_of_residual(n))
    away[0] = far * abs(a).sum(axis=1).max() * abs(solution.x).max()
    error, _ = exact.backward_errors(a, solution.x, b - away, exactly=True)
    lie = dataclasses.replace(solution, backward_error=error)
    assert any("times the bound" in sentence for sentence in verdict(lie, a, b - away))


def test_an_error_that_is_not_the_true_one_is_seen():
    a, b = a_system()
    lie = dataclasses.replace(solve_ex(a, b), backward_error=np.array([1e-16, 3e-16]))
    assert any("the true one" in sentence for sentence in verdict(lie, a, b))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("reported", [0.0, np.nan])
def test_no_status_makes_an_answer_of_nan(value, reported):
    a, b = a_system()
    solution = solve_ex(a, b)
    x = solution.x.copy()
    x[3, 0] = value
    lie = dataclasses.replace(solution, backward_error=np.array([reported, 0.0]))
    assert any("not finite" in sentence for sentence in verdict(lie, a, b, x))


def test_a_bound_that_is_too_large_is_seen():
    a, b = a_system()
    lie = dataclasses.replace(solve_ex(a, b), bound=1e-15)
    assert any("promised" in sentence for sentence in verdict(lie, a, b))


def test_a_singular_matrix_must_not_converge_where_scipy_doubts():
    a = np.random.default_rng(0).integers(-9, 10, (5, 5)).astype(float)
    a[4] = a[0] - 2 * a[2]
    b = a @ np.ones((5, 2))
    told = solve_ex(a, b)
    lie = dataclasses.replace(told, status=Status.CONVERGED, statuses=np.array(Status.CONVERGED))
    assert told.status is Status.ILL_CONDITIONED and verdict(told, a, b, doubts=True) == []
    assert any("SciPy warns" in sentence for sentence in verdict(lie, a, b, doubts=True))


def test_a_singular_slice_must_not_converge():
    a = np.array([np.eye(3), np.ones((3, 3))])
    b = a @ np.ones((2, 3, 1))
    told = solve_ex(np.eye(3), np.ones((3, 1)))
    both = np.array([Status.CONVERGED] * 2)
    x = np.ones((2, 3, 1))
    lie = dataclasses.replace(told, statuses=both, backward_error=np.zeros((2, 1)), rcond=0.5)
    found = judge_solution(System(a, b, x.dtype), lie, x, Verdict(None, True))
    assert len(found) == 1 and "rcond is 0" in found[0]


@pytest.mark.parametrize("status", [Status.ILL_CONDITIONED, Status.SINGULAR])
def test_a_good_matrix_must_not_be_doubted(status):
    a, b = a_system()
    lie = dataclasses.replace(solve_ex(a, b), status=status, statuses=np.array(status))
    assert any("does not doubt" in sentence for sentence in verdict(lie, a, b))


@pytest.mark.parametrize("status", [Status.NOT_CONVERGED, Status.STALLED, Status.UNDERFLOW])
def test_giving_up_where_scipy_does_not_is_seen(status):
    a, b = a_system()
    lie = dataclasses.replace(solve_ex(a, b), status=status, statuses=np.array(status))
    theirs = scipy.linalg.solve(a, b)[None]
    assert any("SciPy's answer" in sentence for sentence in verdict(lie, a, b, their_x=theirs))


@pytest.mark.parametrize("spacings, excused", [(1, True), (2, False), (1000, False)])
def test_an_underflow_is_excused_only_by_the_rounding_of_subnormal_numbers(spacings, excused):
    a, x = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[2.0**-1025], [2.0**-1026]])
    b = a @ x  # exactly
    off = x + np.array([[0.0], [spacings * 2.0**-1074]])
    error, _ = exact.backward_errors(a, off, b)
    told = solve_ex(a, np.ones((2, 1)))
    lie = {"status": Status.UNDERFLOW, "statuses": np.array(Status.UNDERFLOW)}
    told = dataclasses.replace(told, x=off, backward_error=error, rcond=exact.rcond(a), **lie)
    found = verdict(told, a, b, their_x=x[None])
    assert not found if excused else any("SciPy's answer" in sentence for sentence in found)


def test_a_condition_far_from_the_true_one_is_seen():
    a, b = a_system()
    solution = solve_ex(a, b)
    lie = dataclasses.replace(solution, rcond=solution.rcond / 4)
    assert any("rcond is reported" in sentence for sentence in verdict(lie, a, b))


# ---- defects that random cases have found -------------------------------------------------------


def test_a_stack_has_a_status_for_each_matrix():
    solution = solve_ex(np.array([np.eye(3), np.zeros((3, 3))]), np.ones(3))
    assert [status.name for status in solution.statuses] == ["CONVERGED", "SINGULAR"]


def test_long_double_is_taken_for_fp64():
    a, b = a_system()
    x = solve(a, b.astype(np.longdouble), precision="fp16x3")
    assert x.dtype == np.float64


def test_unaligned_arrays_of_a_structure_are_solved():
    a, b = a_system()
    unaligned = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    unaligned[...] = a + a.T
    assert np.array_equal(solve(unaligned, b), solve(a + a.T, b))


def test_an_error_next_to_the_bound_has_another_step():
    a = np.array(
        [
            [-2.424080543974937e-151, -1.3620620043409223e-150],
            [8.91389766355476e-151, -4.318865844348793e-151],
        ]
    )
    b = np.array([5.761330116027907e-82, -8.500937649320878e-24])
    solution = solve_ex(a, b, precision="tf32", assume_a="gen")
    assert solution.status is Status.CONVERGED
    # Corrections go on above 0.9 of the bound.  After the first one, the error is 0.997 of the bound.
    assert solution.backward_error[0] <= 0.9 * solution.bound


def test_a_singular_matrix_has_the_same_answer_twice():
    a = np.array([[7.0, 3.0, 0.0], [-4.0, -4.0, -9.0], [15.0, 11.0, 18.0]])
    f = factor(a, precision="fp16x3")
    first, second = (f.solve_ex(np.array([6.0, 3.0, 8.0])) for _ in range(2))
    assert first.status is second.status is Status.SINGULAR
    assert np.array_equal(first.x, second.x, equal_nan=True)


def test_a_complex_matrix_far_beyond_fp32_has_no_warning_of_numpy():
    solve_ex(np.vander(np.linspace(0.01, 1, 88)) + 0j, np.ones(88), precision="bf16")


# ---- many columns and slices --------------------------------------------------------------------


RUNS = [(call, what) for call in CALLS for what in ("columns", "slices") if getattr(call, what)]


@pytest.mark.parametrize("call, what", RUNS, ids=[f"{call.name}-{what}" for call, what in RUNS])
def test_more_columns_and_slices_than_a_grid_is_high_are_right(xp, call, what):
    assert getattr(call, what)(Place(xp), 70000) <= 1


def test_a_wrong_column_of_many_is_seen():
    def off_by_one(a, b):
        x = solve(a, b)
        x[0, -1] += 1e-12
        return x

    assert many_columns(off_by_one)(HOST, 1000) > 1


# ---- the page -----------------------------------------------------------------------------------


@pytest.fixture
def benchmark(monkeypatch):
    """The namespace of benchmarks/fuzz.py; it cannot be imported, because the package `fuzz` has its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "fuzz.py"))


def rows_of(place, largest_k, failures=0):
    """Return the rows of a run at a place: one kind and one call."""
    kind = {"what": "kind", "kind": "edges", "cases": 1234, "failures": failures, "known": 2}
    kind |= {"seconds": 60.0}
    listed = ["--fuzz-case edges:1:7: the error"] * failures
    counts = [{"count": 65536, "of_bound": 0.5}, {"count": 70000, "of_bound": 2.0}]
    call = {
        "what": "call",
        "call": "solve",
        "largest_k": largest_k,
        "columns": counts,
        "slices": [],
    }
    run = {"what": "run", "seconds": 60, "seed": 1, "machine": FACTS}
    rows = run, kind | {"listed": listed, "arithmetic": "integers"}, call | {"arithmetic": "balls"}
    return [row | {"place": place} for row in rows]


def test_the_page_counts_cases_and_lists_failures(benchmark):
    page = benchmark["page"](FACTS, rows_of("numpy", None, failures=1))
    assert "| edges | 1234 | 1 | 2 | integers |" in page and "| all | 1234 | 1 | 2 |" in page
    assert "- `--fuzz-case edges:1:7: the error`" in page
    assert "| solve |  | 65536, 70000 (above the bound) |  |  |  | balls |" in page


def test_the_page_has_columns_for_the_host_and_a_device(benchmark):
    page = benchmark["page"](FACTS, rows_of("numpy", None) + rows_of("cupy", 17))
    assert "| edges | 1234 | 0 | 2 | 1234 | 0 | 2 | integers |" in page
    cell = "65536, 70000 (above the bound)"
    assert f"| solve | 17 | {cell} | {cell} |  |  | balls |" in page


def test_rows_of_another_place_stay_in_the_file(benchmark, tmp_path):
    path = tmp_path / "fuzz.json"
    assert benchmark["kept"](path, "cupy", False) == []
    path.write_text(
        json.dumps({"machine": FACTS, "rows": rows_of("numpy", None) + rows_of("cupy", 17)})
    )
    assert benchmark["kept"](path, "cupy", False) == rows_of("numpy", None)
    kinds = [row for row in rows_of("cupy", 17) if row["what"] != "call"]
    assert benchmark["kept"](path, "cupy", True) == rows_of("numpy", None) + kinds


def test_a_call_that_fails_with_many_columns_is_told(benchmark):
    def run(place, count):
        if count > 65536:
            raise ValueError("too many")
        return 0.5

    rows = run_extents(HOST, run)

    assert [row["count"] for row in rows] == list(COUNTS)
    assert benchmark["extents"](rows[:2]) == "65536, 70000 (ValueError: too many)"
    assert benchmark["fails"]({"columns": rows, "slices": []})
    assert not benchmark["fails"]({"columns": rows[:1], "slices": []})
    above = [{"count": 65536, "of_bound": value} for value in (1.5, np.nan)]
    assert all(benchmark["fails"]({"columns": [], "slices": [row]}) for row in above)
    assert benchmark["fails"]({"failures": 1}) and not benchmark["fails"]({"failures": 0})


# ---- the failing allocator ----------------------------------------------------------------------


class _OutOfMemory(MemoryError):
    def __init__(self, size, *_):
        super().__init__(size)


class _Library:
    """The parts of CuPy that the failing allocator uses."""

    def __init__(self):
        self.malloc = bytes
        self.cuda = SimpleNamespace(
            memory=SimpleNamespace(OutOfMemoryError=_OutOfMemory),
            Memory=bytes,
            using_allocator=self.using_allocator,
        )

    def get_default_memory_pool(self):
        return SimpleNamespace(malloc=bytes)

    @contextlib.contextmanager
    def using_allocator(self, malloc):
        self.malloc = malloc
        yield
        self.malloc = bytes


def failures_of(call, library, expected=6, once=False):
    """Return the largest k for which allocation k was made to fail, and the number of checks."""
    checks = []

    def prepare():
        return lambda: call(library)

    def check():
        checks.append(call(library))
        assert checks[-1] == expected

    return allocations_needed(library, prepare, check, expected, once), len(checks)


def three_allocations(library):
    try:
        return sum(len(library.malloc(size)) for size in (1, 2, 3))
    except MemoryError as error:
        raise DeviceMemoryError("the arguments are unchanged") from error


@pytest.mark.parametrize(
    "once, expected", [(True, [[1], [2], [3], []]), (False, [[1, 2, 3], [2, 3], [3], []])]
)
def test_every_allocation_fails_alone_or_with_all_later_ones(once, expected):
    refused = []

    def call(library):
        failed = []
        for size in (1, 2, 3):
            try:
                library.malloc(size)
            except MemoryError:
                failed.append(size)
        refused.append(failed)
        if failed:
            raise DeviceMemoryError("the arguments are unchanged")
        return 6

    assert failures_of(call, _Library(), once=once) == (3, 4)
    assert refused[::2] == expected and not any(refused[1::2])  # a check follows each call


def test_the_allocator_comes_back_after_its_failures():
    library = _Library()

    assert failures_of(three_allocations, library) == (3, 4)
    assert library.malloc is bytes and library.cuda.Memory is bytes


def test_only_our_error_is_a_way_to_fail():
    with pytest.raises(MemoryError):
        failures_of(lambda library: len(library.malloc(6)), _Library())


def test_a_wrong_result_without_memory_is_seen():
    def call(library):
        try:
            return three_allocations(library)
        except DeviceMemoryError:
            return 5

    with pytest.raises(AssertionError):
        failures_of(call, _Library())


ALLOCATING = [call for call in CALLS if call.allocating]


@pytest.mark.gpu
@pytest.mark.parametrize("call", ALLOCATING, ids=[call.name for call in ALLOCATING])
def test_an_allocation_that_fails_harms_no_public_call(call, cupy, record_property):
    most = largest_failure(Place(cupy), call)

    record_property("allocations", most)
    assert most > 0
