"""Plans that cannot work are refused when they are made."""

import numpy as np
import pytest

import tcsolve
from tcsolve import Plan


@pytest.mark.parametrize(
    "options, message",
    [
        ({"update": "fp8"}, "update is 'fp8', needs one of auto, fp16, bf16"),
        ({"block": 0}, "block is 0, needs a positive integer"),
        ({"block": 1.5}, "block is 1.5"),
        ({"block": 64.0}, "block is 64.0"),
        ({"block": float("inf")}, "block is inf"),
        ({"basis": float("nan")}, "basis is nan"),
        ({"max_steps": -1}, "max_steps is -1"),
        ({"basis": 0}, "basis is 0"),
        ({"contraction": 0}, "needs 0 < contraction < 1"),
        ({"contraction": 1.0}, "needs 0 < contraction < 1"),
        ({"contraction": float("nan")}, "contraction is nan"),
        ({"contraction": "x"}, "contraction is 'x', needs 0 < contraction < 1"),
        ({"basis": True}, "basis is True, needs a positive integer"),
        ({"basis": None}, "basis is None, needs a positive integer"),
        ({"fallback": 3}, "fallback is 3, needs True or False"),
        ({"scale": "no"}, "scale is 'no', needs True or False"),
        ({"method": "qr"}, "method is 'qr', needs one of auto, ir, fgmres, gmres, cg"),
        (
            {"method": "cg", "update": "fp16@each"},
            "method='cg' does not support 'fp16@each'; take 'fp16'",
        ),
        ({"inner_tol": 1.0}, "inner_tol is 1.0, needs 0 < inner_tol < 1, or None"),
        ({"inner_tol": "x"}, "inner_tol is 'x'"),
        ({"preconditioner": "fp32"}, "preconditioner is 'fp32', needs one of auto, factors, fp64"),
        ({"method": ["ir"]}, "method is \\['ir'\\]"),
        ({"update": ["fp16"]}, "update is \\['fp16'\\]"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_when_it_is_made(options, message):
    with pytest.raises(tcsolve.InputError, match=message):
        Plan(**options)


def test_numbers_of_numpy_are_stored_as_those_of_python():
    plan = Plan(
        contraction=np.array(0.25), inner_tol=np.float32(0.5), basis=np.int64(5), fallback=np.True_
    )
    assert plan == Plan(contraction=0.25, inner_tol=0.5, basis=5)
    assert hash(plan) == hash(Plan(contraction=0.25, inner_tol=0.5, basis=5))
    assert "array" not in repr(plan) and "np." not in repr(plan)
    assert (tcsolve.solve(np.eye(4), np.ones(4), precision=plan) == 1).all()
