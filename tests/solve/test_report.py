"""`print(solution)`: the report of a solve, a stack and a structured system, in 80 columns."""

import numpy as np
import pytest

import tcsolve
from tcsolve import matrices

WIDTH = 80
STACK = np.stack([np.eye(3), np.zeros((3, 3)), 2 * np.eye(3), np.full((3, 3), np.nan)])


def lines_of(solution):
    """Return {name: text} of the lines of the report, and its whole text; no line is too long."""
    text = str(solution)
    assert all(0 < len(line) <= WIDTH for line in text.splitlines())
    named = [line for line in text.splitlines() if line[:16].rstrip() and line[14:16] == "  "]
    return {line[:16].rstrip(): line[16:] for line in named}, text


def test_a_solve_tells_verdict_place_precision_and_error():
    problem = matrices.generate("gauss", 50)
    solution = tcsolve.solve_ex(problem.a, problem.b)
    lines, text = lines_of(solution)

    assert text.startswith(f"converged: {solution.status.value}\n")
    assert lines["x"] == "float64 of shape (50,), computed on cpu"
    assert lines["precision"] == "fp64" and lines["steps"] == str(solution.iterations[0])
    error, bound = solution.backward_error[0], solution.bound
    assert lines["backward error"] == f"{error:.1e} (bound {bound:.1e})"
    assert lines["rcond"] == f"{solution.rcond:.1e}"
    assert lines["seconds"].startswith(f"{solution.seconds['total']:.3g}")
    assert "matrices" not in lines


def test_several_rungs_and_columns_are_told():
    problem = matrices.generate("svd_geo", 100, cond=1e12)
    b = np.stack([problem.b, problem.b], axis=1)
    lines, text = lines_of(tcsolve.solve_ex(problem.a, b, precision="bf16"))

    assert text.startswith("converged after fallback: ")
    assert lines["precision"].endswith("fp64)") and "(tried bf16, " in lines["precision"]
    assert lines["x"] == "float64 of shape (100, 2), computed on cpu"
    assert ", the worst (bound" in lines["backward error"]


def test_a_stack_tells_how_many_matrices_have_each_status():
    solution = tcsolve.solve_ex(STACK, np.ones(3), check_finite=False)
    lines, text = lines_of(solution)

    assert text.startswith("singular: ")
    assert lines["matrices"] == "2 converged, 1 singular, 1 nonfinite input (the first: 1)"
    assert lines["rcond"] == "0.0e+00, the smallest"
    assert lines_of(tcsolve.solve_ex(STACK[:1], np.ones(3)))[0]["matrices"] == "1 converged"


def test_the_worst_matrix_of_a_stack_with_two_axes_is_named_by_both():
    solution = tcsolve.solve_ex(STACK[:3].reshape(3, 1, 3, 3), np.ones(3))
    assert lines_of(solution)[0]["matrices"].endswith("1 singular (the first: (1, 0))")


@pytest.mark.parametrize("structure", ["upper triangular", "symmetric", "positive definite"])
def test_a_structured_system_reads_as_a_general_one(structure):
    lines, text = lines_of(tcsolve.solve_ex(4 * np.eye(30), np.ones(30), assume_a=structure))

    assert text.startswith("converged: ")
    assert lines["x"] == "float64 of shape (30,), computed on cpu"


def test_a_failed_structure_says_what_to_do():
    _, text = lines_of(tcsolve.solve_ex(-np.eye(5), np.ones(5), assume_a="pos"))

    assert text.startswith("not positive definite: ") and "leave assume_a out" in text


def test_an_estimate_of_the_forward_error_is_told():
    problem = matrices.generate("gauss", 50)
    solution = tcsolve.solve_ex(problem.a, problem.b, residual="double-double")

    assert lines_of(solution)[0]["forward error"] == f"{solution.forward_error[0]:.1e} (estimated)"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3)])
def test_an_empty_system_reads_well_too(shape):
    lines, _ = lines_of(tcsolve.solve_ex(np.ones(shape), np.ones(shape[-1])))
    assert lines["precision"] == "fp64"
