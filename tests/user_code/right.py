"""Calls of every public name, with the types that a checker must find; test_types.py runs most of them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_type, cast, reveal_type

import numpy as np
from numpy.typing import NDArray

import tcsolve
from tcsolve import Solution, matrices

if TYPE_CHECKING:
    import cupy

HostArray = NDArray[Any]


def solve_on_the_host(a: NDArray[np.float64], b: NDArray[np.float32]) -> None:
    assert_type(tcsolve.solve(a, b), HostArray)
    assert_type(tcsolve.solve([[2, 1], [1, 3]], [3, 4]), HostArray)
    assert_type(tcsolve.solve(a, 1j * b, False, True, False, False, "gen", True), HostArray)
    assert_type(tcsolve.solve(a, b, precision="fp16x3", device="cpu"), HostArray)
    assert_type(tcsolve.solve(a, b, precision=tcsolve.Plan(update="tf32")), HostArray)
    assert_type(tcsolve.solve_ex(a, b, assume_a="sym", lower=True), Solution[HostArray])


def study_matrices(a: NDArray[np.float64]) -> None:
    table = tcsolve.study({"mine": a}, ["fp32", tcsolve.Plan("fp16"), {"update": ["fp64"]}])
    assert_type(table, tcsolve.StudyTable)
    assert_type(
        tcsolve.study(["gen:gauss:n=4"], "fp32", show_progress=False).rows[0], dict[str, Any]
    )
    assert_type(table.columns, tuple[str, ...])
    assert_type(table.text("csv", ["matrix", "plan"]), str)
    assert_type(table.summary(), list[dict[str, Any]])


def read_a_solution(solution: Solution[HostArray]) -> None:
    assert_type(solution.x, HostArray)
    assert_type(solution.status, tcsolve.Status)
    assert_type(solution.status.value, str)
    assert_type(solution.status.ok, bool)
    assert_type(solution.status is tcsolve.Status.CONVERGED, bool)
    assert_type(solution.precision, str)
    assert_type(solution.rungs, tuple[str, ...])
    assert_type(solution.iterations, NDArray[np.int_])
    assert_type(solution.backward_error, NDArray[np.float64])
    assert_type(solution.bound, float)
    assert_type(solution.rcond, float)
    assert_type(solution.seconds["total"], float)
    assert_type(solution.bytes_planned, int)
    assert_type(solution.statuses, NDArray[np.object_])
    assert_type(solution.rconds, NDArray[np.float64])
    for point in solution.history:
        assert_type(point.rung, str)
        assert_type(point.step, NDArray[np.int_])
        assert_type(point.error, NDArray[np.float64])
        assert_type(point.estimated, bool)
    assert_type(solution.to_dict(), dict[str, Any])
    place: str = solution.device
    assert place == "cpu"


def read_any_solution(solution: Solution) -> None:
    assert_type(solution.x, Any)


def factor_on_the_host(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    factors = tcsolve.factor(a, precision="fp64", nrhs=3)
    assert_type(factors, tcsolve.Factorization)
    assert_type(factors.solve(b), HostArray)
    assert_type(factors.solve([1.0, 2.0], check_finite=False), HostArray)
    assert_type(factors.solve_ex(b), Solution[HostArray])
    assert_type(factors.shape, tuple[int, int])
    assert_type(factors.dtype, np.dtype[Any])
    assert_type(factors.nbytes, int)
    assert_type(factors.solve(b, trans=1), HostArray)
    assert_type(factors.solve_ex(b, trans="C").x, HostArray)
    assert_type(factors.rcond(), float)
    assert_type(factors.slogdet().logabsdet, float)
    sign, logarithm = factors.slogdet()
    assert_type(logarithm, float)
    assert sign > 0
    # The precision of a result is a valid argument.
    tcsolve.solve(a, b, precision=factors.precision)
    tcsolve.Plan(update=factors.rungs[0])


def call_the_family(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    factors = tcsolve.lu_factor(a)
    assert_type(factors[0], HostArray)
    assert_type(tcsolve.lu_solve(factors, b, trans=1), HostArray)
    assert_type(tcsolve.cho_solve(tcsolve.cho_factor(a, lower=True), b), HostArray)
    assert_type(tcsolve.solve_triangular(a, b, "T", unit_diagonal=True), HostArray)
    assert_type(tcsolve.solve_banded((0, 0), [[1.0, 2.0]], b), HostArray)
    assert_type(tcsolve.solveh_banded([[1.0, 2.0]], b, lower=True), HostArray)
    x, _, rank, s = tcsolve.lstsq(a, b, lapack_driver="gelsy")
    assert_type(x, HostArray)
    assert_type(s, HostArray | None)
    found = tcsolve.lstsq_ex(a, b)
    assert_type(found, tcsolve.LeastSquares[HostArray])
    assert_type(found.method, str)
    assert_type(found.verified, bool)
    assert_type(tcsolve.inv(a, assume_a="gen" if rank else None), HostArray)
    assert tcsolve.det(a) != 0
    with tcsolve.installed():
        np.linalg.solve(a, b)


def factor_a_stack(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    factors = cast(tcsolve.StackFactorization, tcsolve.factor(a))
    assert_type(factors.solve(b, trans=1), HostArray)
    assert_type(factors.solve_ex(b, trans="C", check_finite=False), Solution[HostArray])
    assert_type(factors.shape, tuple[int, ...])
    assert_type(factors.nbytes, int)
    assert_type(factors.rcond(), NDArray[np.float64])
    assert_type(factors.slogdet().logabsdet, NDArray[np.float64])


def refine_on_the_host(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    correct: Callable[[HostArray], HostArray] = tcsolve.factor(a).solve
    assert_type(tcsolve.refine(a, b, correct), Solution[HostArray])
    assert_type(tcsolve.refine(a, b, lambda r: r / 2, x0=b, tol=1e-8), Solution[HostArray])
    norm = np.abs(a).sum(axis=1).max()
    applied = tcsolve.refine(lambda x: a @ x, b, correct, norm=norm, plan=tcsolve.Plan())
    assert_type(applied, Solution[HostArray])


def multiply_on_the_host(a: NDArray[np.float16], c: NDArray[np.float32]) -> None:
    assert_type(tcsolve.gemm(a, a), HostArray)
    assert_type(tcsolve.gemm(a, a, c, alpha=np.float32(2), beta=0.5, out=c), HostArray)
    assert_type(tcsolve.gemm(a, a, precision="tf32", rtol=0.1), HostArray)
    stack: HostArray = np.stack([a, a])
    assert_type(tcsolve.gemm_batched(stack, a, transa=True, engine="auto"), HostArray)
    found = tcsolve.gemm_bound(a, a, engine="cublas")
    assert_type(found, tcsolve.GemmBound)
    assert_type(found.bound, float)
    assert_type(found.products, int)
    tcsolve.gemm(a, a, precision=found.precision, refine=found.refine)


def solve_on_a_device(a: cupy.ndarray, b: cupy.ndarray) -> None:
    reveal_type(tcsolve.solve(a, b))  # Any, if CuPy has no types
    assert_type(tcsolve.solve(a, b), cupy.ndarray)
    assert_type(tcsolve.solve(a, b, precision="tf32", device="cuda"), cupy.ndarray)
    assert_type(tcsolve.solve_ex(a, b).x, cupy.ndarray)
    factors = tcsolve.factor(a)
    assert_type(factors, tcsolve.Factorization)
    assert_type(factors.solve(b), cupy.ndarray)
    assert_type(factors.solve_ex(b).x, cupy.ndarray)
    assert_type(factors.solve(np.ones(3)), HostArray)
    assert_type(tcsolve.refine(a, b, factors.solve, x0=b, norm=b).x, cupy.ndarray)


def multiply_on_a_device(a: cupy.ndarray, c: cupy.ndarray) -> None:
    assert_type(tcsolve.gemm(a, a, engine="wgmma"), cupy.ndarray)
    assert_type(tcsolve.gemm(a, a, c, beta=1, out=c), cupy.ndarray)
    assert_type(tcsolve.gemm_batched(a, a), cupy.ndarray)
    assert_type(tcsolve.gemm_bound(a, a), tcsolve.GemmBound)


def choose_a_plan() -> None:
    plan = tcsolve.Plan("fp16", 128, fallback=False, max_steps=5)
    assert tcsolve.Plan("auto").update == "auto"
    assert_type(plan.block, int | None)
    assert_type(plan.fallback, bool)
    assert_type(plan.scale, bool)
    assert_type(plan.max_steps, int | None)
    assert_type(plan.basis, int)
    assert_type(plan.contraction, float)
    assert_type(tcsolve.__version__, str)
    tcsolve.clear_cache()


def catch_errors() -> None:
    warnings.simplefilter("error", tcsolve.LinAlgWarning)
    warnings.simplefilter("error", tcsolve.AccuracyWarning)
    try:
        tcsolve.solve(np.zeros((2, 2)), np.ones(2))
    except tcsolve.SingularError as error:
        linear: tcsolve.LinAlgError = error
        assert linear
    except tcsolve.NotPositiveDefiniteError as error:
        linear = error
    except tcsolve.InputError as error:
        value: ValueError = error
        assert value
    except tcsolve.DeviceMemoryError as error:
        memory: MemoryError = error
        assert memory
    except tcsolve.KernelCompileError as error:
        assert_type(error.kernel, str)
        assert_type(error.arch, str)
        assert_type(error.options, tuple[str, ...])
        assert_type(error.log, str)
    except tcsolve.DeviceError as error:
        runtime: RuntimeError = error
        assert runtime
    except tcsolve.TcsolveError as error:
        assert error


def make_problems() -> None:
    problem = matrices.generate("svd_geo", 3, cond=10, dtype=np.float32, rhs="random", nrhs=2)
    assert_type(problem, matrices.Problem)
    assert_type(problem.name, str)
    assert_type(problem.n, int)
    assert_type(problem.a, HostArray)
    assert_type(problem.b, HostArray)
    assert_type(problem.x_true, HostArray | None)
    assert_type(problem.cond, float | None)
    for entry in matrices.catalog():
        assert_type(entry, matrices.Entry)
        assert_type(entry.name, str)
        assert_type(entry.summary, str)
        assert_type(entry.solvable, bool)
        assert_type(entry.options, dict[str, Any])


def read_problems(folder: str) -> None:
    assert_type(matrices.load("west0132", folder=folder), matrices.Problem)
    assert_type(matrices.load(sys.stdin.buffer), matrices.Problem)
    assert_type(matrices.names(folder), tuple[str, ...])
    assert_type(matrices.index(), list[dict[str, Any]])
    assert_type(matrices.find("HB/*", folder, max_n=5, kind="spd"), list[dict[str, Any]])
