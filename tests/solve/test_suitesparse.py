"""Real matrices: answers are about as good as SciPy's, and low precision is enough for badly scaled ones."""

import functools
import warnings

import numpy as np
import pytest
import scipy.linalg
import tcsolve.matrices
from bounds import backward_error

from tcsolve import Plan, Status, solve_ex

# Small matrices of many fields, half of them with entries beyond the range of FP16.
NAMES = [
    "08blocks",
    "494_bus",
    "CAG_mat364",
    "arc130",
    "bcsstk03",
    "bcsstk04",
    "bcsstk05",
    "bcsstk06",
    "bcsstk22",
    "bfwa398",
    "bwm200",
    "cavity02",
    "ck400",
    "cz308",
    "e05r0000",
    "ex1",
    "ex2",
    "fs_183_1",
    "fs_183_6",
    "fs_541_2",
    "gre_115",
    "gre_185",
    "gre_216b",
    "hor_131",
    "impcol_a",
    "impcol_e",
    "lns_131",
    "lop163",
    "lund_a",
    "mcfe",
    "mesh2em5",
    "mesh3e1",
    "mhda416",
    "mhdb416",
    "nos1",
    "nos4",
    "nos5",
    "odepa400",
    "orbitRaising_1",
    "oscil_dcop_01",
    "oscil_trans_01",
    "pivtol",
    "plat362",
    "plskz362",
    "poisson2D",
    "qc324",
    "rajat05",
    "rajat11",
    "rbsa480",
    "rdb450",
    "robot",
    "rw496",
    "saylr1",
    "spaceStation_3",
    "steam1",
    "str_600",
    "tomography",
    "tumorAntiAngiogenesis_2",
    "utm300",
    "west0132",
    "west0167",
    "west0381",
    "west0479",
]
# Entries beyond the range of FP16, and condition numbers up to 1e15 that come nearly all from the scales.
BADLY_SCALED = {
    "fp16": ["arc130", "steam1", "mcfe"],
    "fp16x3": [
        "west0132",
        "west0167",
        "west0381",
        "west0479",
        "mcfe",
        "lns_131",
        "arc130",
        "steam1",
    ],
}


@functools.cache
def load(name, folder):
    return tcsolve.matrices.load(name, folder=folder)


@functools.cache
def row_of_index(name, folder):
    return next(row for row in tcsolve.matrices.index(folder) if row["name"] == name)


@functools.cache
def scipys_error(name, folder):
    problem = load(name, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        x = scipy.linalg.solve(problem.a, problem.b, assume_a="general")
    return backward_error(problem.a, x, problem.b)


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp16x3"])
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_meets_the_bound_or_has_at_most_twice_scipys_error(
    matrices_folder, name, precision
):
    problem = load(name, matrices_folder)

    solution = solve_ex(problem.a, problem.b, assume_a="general", precision=precision)

    error = backward_error(problem.a, solution.x, problem.b)
    allowed = max(2 * scipys_error(name, matrices_folder), 2.0**-53 * problem.n**0.5)
    assert error <= allowed
    # LU with pivoting gives small residuals for all of these.
    assert solution.status.ok


@pytest.mark.parametrize(
    "update, name", [(update, name) for update, names in BADLY_SCALED.items() for name in names]
)
def test_a_badly_scaled_matrix_converges_on_its_first_rung(matrices_folder, update, name):
    problem = load(name, matrices_folder)

    solution = solve_ex(problem.a, problem.b, assume_a="general", precision=update)

    assert solution.rungs == (update,)
    assert solution.status in (Status.CONVERGED, Status.ILL_CONDITIONED)


# Triangular solves in FP32 have no correct digit for these, and no more precise factors are allowed.
@pytest.mark.parametrize(
    "update, name", [("fp16x3", "rw496"), ("fp16", "rw496"), ("fp16x3", "plat362")]
)
def test_fgmres_applies_its_factors_in_fp64_before_it_gives_up(matrices_folder, update, name):
    problem = load(name, matrices_folder)
    plan = Plan(update, method="fgmres", block=32, basis=200, max_steps=500, fallback=False)
    b = problem.a @ np.random.default_rng(0).standard_normal(problem.n)

    solution = solve_ex(problem.a, b, assume_a="general", precision=plan)

    assert solution.rungs == (update,)
    assert solution.status.ok
    assert backward_error(problem.a, solution.x, b) <= 2.0**-53 * problem.n**0.5


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp16x3", "fp64"])
def test_numerically_singular_matrices_are_flagged_and_the_well_conditioned_are_not(
    matrices_folder, precision
):
    flagged, singular, fine = [], [], []
    for name in ("mhda416", "fs_183_6", "steam1", "west0381", "gre_115", "nos4"):
        problem, row = load(name, matrices_folder), row_of_index(name, matrices_folder)
        status = solve_ex(problem.a, problem.b, assume_a="general", precision=precision).status
        flagged += [name] if status in (Status.ILL_CONDITIONED, Status.SINGULAR) else []
        (singular if row["numerically_nonsingular"] == "no" else fine).append(name)

    assert singular == ["mhda416"] and len(fine) == 5
    assert flagged == singular


def test_the_list_has_63_names_and_their_matrices_are_there(matrices_folder):
    assert len(set(NAMES)) == len(NAMES) == 63
    assert set(NAMES) <= set(tcsolve.matrices.names(matrices_folder))
