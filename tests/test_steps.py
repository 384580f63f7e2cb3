"""Each public call checks its arguments once, decides once where it computes, and guards its memory once."""

from collections import Counter

import numpy as np
import pytest
from systems import gauss

import tcsolve
from tcsolve._backends.cpu.lu import HostLU
from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._steps import observed

A, B, STACK = gauss(260), np.ones(260), np.stack([gauss(4, seed) for seed in range(3)])
LOW = A.astype(np.float32)
ONCE = {"check": 1, "place": 1, "guard": 1}
# Calls that choose no device, because their arrays always stay where they are.
STAYS = {"check": 1, "guard": 1}
CALLS = {
    "solve": (lambda: tcsolve.solve(A, B, precision="fp16x3"), ONCE),
    "solve, directly": (lambda: tcsolve.solve(A, B.astype(np.float32)), ONCE),
    "solve, a small system": (lambda: tcsolve.solve(A[:40, :40], B[:40]), STAYS),
    "solve, one panel": (lambda: tcsolve.solve(A[:40, :40], B[:40], precision="fp16x3"), STAYS),
    "solve, on a requested device": (
        lambda: tcsolve.solve(A, B.astype(np.float32), device="cpu"),
        ONCE,
    ),
    "solve, climbing": (lambda: tcsolve.solve_ex(near_singular(), B, precision="fp16"), ONCE),
    "solve, a structure": (
        lambda: tcsolve.solve(A + A.T, B, assume_a="sym", precision="fp32"),
        ONCE,
    ),
    "solve, a stack at once": (lambda: tcsolve.solve(STACK, np.ones(4)), STAYS),
    "solve, a stack one by one": (
        lambda: tcsolve.solve(STACK, np.ones(4), precision="fp16"),
        STAYS,
    ),
    "solve_ex": (lambda: tcsolve.solve_ex(A, B, precision="fp16x3"), ONCE),
    "factor": (lambda: tcsolve.factor(A, precision="fp16x3"), ONCE),
    "factor, a stack": (lambda: tcsolve.factor(STACK), ONCE),
    "refine": (lambda: tcsolve.refine(A, B, lambda r: np.linalg.solve(A, r)), ONCE),
    "gemm": (lambda: tcsolve.gemm(LOW, LOW), ONCE),
    "gemm, float64 in fp16": (lambda: tcsolve.gemm(A, A, precision="fp16"), ONCE),
    "gemm, into an array": (lambda: tcsolve.gemm(LOW, LOW, LOW, beta=1, out=LOW.copy()), ONCE),
    "gemm_batched": (lambda: tcsolve.gemm_batched(STACK, STACK[0]), ONCE),
}


def near_singular():
    return tcsolve.matrices.generate("svd_geo", 260, cond=1e12).a


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_each_step_once(name):
    call, expected = CALLS[name]

    with observed() as steps:
        call()

    assert Counter(steps) == expected
    assert steps.index("check") == 0


@pytest.mark.parametrize("method", ["solve", "solve_ex"])
def test_a_solve_with_factors_takes_each_step_once(method):
    f = tcsolve.factor(near_singular(), precision="fp16")

    with observed() as steps:
        getattr(f, method)(B)

    assert Counter(steps) == ONCE and len(f.rungs) > 1


@pytest.mark.parametrize("method", ["solve", "solve_ex"])
def test_a_solve_with_a_factored_stack_takes_each_step_once(method):
    f = tcsolve.factor(STACK)

    with observed() as steps:
        getattr(f, method)(np.ones(4))

    assert Counter(steps) == ONCE


def test_reading_a_factorization_without_factors_makes_none(monkeypatch):
    f = tcsolve.factor(near_singular(), precision="fp16x3")

    def refuse(*args, **options):
        raise MemoryError("no room")

    for of, name in (
        (HostLU, "getrf"),
        (NumpyOps, "cast_scaled"),
        (HostLU, "strip"),
        (NumpyOps, "gemm"),
    ):
        monkeypatch.setattr(of, name, refuse)
    with pytest.raises(MemoryError, match="no room"):
        f.rcond()  # FP64 factors may replace the present ones

    with observed() as steps:
        assert f.shape == (260, 260) and f.dtype == float and f.nbytes == A.nbytes
        assert f.rungs == (f.precision,) == ("fp16x3",)
        assert f.bytes_planned > 0 and "precision fp16x3" in repr(f)
    assert not steps


def test_steps_are_seen_inside_the_block_alone():
    with observed() as outer, observed() as inner:
        tcsolve.gemm(LOW, LOW)
    tcsolve.gemm(LOW, LOW)

    assert inner == outer == ["check", "place", "guard"]
