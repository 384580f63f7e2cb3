"""Each Status has a problem that reaches it, and no failure looks like success."""

import dataclasses
import json
import re
import warnings

import numpy as np
import pytest
from bounds import MET, host, ratio
from systems import gauss, growth_both_ways, spoilt

import tcsolve
from tcsolve import Plan, Status, matrices, solve, solve_ex


def nearly_of_rank_one(n):
    rng = np.random.default_rng(0)
    return np.outer(rng.standard_normal(n), rng.standard_normal(n)) + 1e-18 * gauss(n)


# For each status: a, b and the precision that reach it.
REACHES = {
    Status.CONVERGED: lambda: (gauss(), np.ones(40), "fp16x3"),
    Status.CONVERGED_AFTER_FALLBACK: lambda: (
        matrices.generate("svd_cluster0", 60, cond=1e12).a,
        np.ones(60),
        Plan("bf16", max_steps=3),
    ),
    Status.ILL_CONDITIONED: lambda: (
        matrices.generate("svd_geo", 40, cond=1e17).a,
        np.ones(40),
        "auto",
    ),
    Status.STALLED: lambda: (
        matrices.generate("svd_geo", 60, cond=1e12).a,
        np.ones(60),
        Plan("bf16", block=16, fallback=False),  # one panel of all columns rounds nothing
    ),
    Status.NOT_CONVERGED: lambda: (
        growth_both_ways(120),
        gauss(240)[0],
        Plan("fp64", max_steps=1),
    ),
    Status.SINGULAR: lambda: (matrices.generate("zero_column_middle", 40).a, np.ones(40), "fp16"),
    Status.NOT_POSITIVE_DEFINITE: lambda: (gauss() + gauss().T, np.ones(40), "auto"),
    Status.CONDITION_UNKNOWN: lambda: (
        nearly_of_rank_one(100),
        nearly_of_rank_one(100) @ np.ones(100),
        Plan("fp32", fallback=False),
    ),
    Status.NOT_ACCURATE: lambda: (
        matrices.generate("svd_geo", 40, cond=1e18).a,
        gauss()[0],
        "fp64",
    ),
    Status.NOT_AS_ASSERTED: lambda: (gauss() + 20 * np.eye(40), np.ones(40), "auto"),
    Status.NONFINITE_INPUT: lambda: (spoilt(np.nan, 3, 5), np.ones(40), "auto"),
    Status.OVERFLOW: lambda: (1e-200 * gauss(), 1e200 * np.ones(40), "auto"),
    Status.UNDERFLOW: lambda: (1e200 * gauss(), 1e-200 * np.ones(40), "auto"),
}
ASSUMED = {
    Status.NOT_POSITIVE_DEFINITE: "positive definite",
    Status.NOT_AS_ASSERTED: "symmetric",
}
RESIDUALS = {Status.NOT_ACCURATE: "double-double"}
RAISES = {
    Status.SINGULAR: tcsolve.SingularError,
    Status.NOT_POSITIVE_DEFINITE: tcsolve.NotPositiveDefiniteError,
}


@pytest.mark.parametrize("status", Status, ids=lambda status: status.name)
def test_each_status_is_reached_by_a_problem(xp, status):
    a, b, precision = REACHES[status]()
    assumed = ASSUMED.get(status)
    options = {"check_finite": False, "precision": precision, "assume_a": assumed}
    options["residual"] = RESIDUALS.get(status, "fp64")

    solution = solve_ex(xp.asarray(a), xp.asarray(b), **options)

    assert solution.status is status
    met = bool((solution.backward_error <= solution.bound).all())
    assert status.ok <= met
    if status.ok:
        assert ratio(a, solution.x, b) <= MET


@pytest.mark.parametrize("status", Status, ids=lambda status: status.name)
def test_solve_raises_or_warns_exactly_where_the_status_is_not_plain_success(xp, status):
    a, b, precision = REACHES[status]()
    options = {"check_finite": False, "precision": precision, "assume_a": ASSUMED.get(status)}
    options["residual"] = RESIDUALS.get(status, "fp64")
    expected = {
        Status.CONVERGED: [],
        Status.CONVERGED_AFTER_FALLBACK: [],
        Status.ILL_CONDITIONED: [tcsolve.LinAlgWarning],
        Status.CONDITION_UNKNOWN: [tcsolve.LinAlgWarning],
        Status.NONFINITE_INPUT: [tcsolve.LinAlgWarning],
    }.get(status, [tcsolve.AccuracyWarning])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if status in RAISES:
            with pytest.raises(RAISES[status], match=re.escape(status.value)):
                solve(xp.asarray(a), xp.asarray(b), **options)
            return
        solve(xp.asarray(a), xp.asarray(b), **options)

    assert [w.category for w in caught] == expected
    assert all(status.value in str(w.message) for w in caught)


def test_the_value_of_each_status_is_a_sentence():
    for status in Status:
        assert status.value.endswith(".") and " " in status.value


def test_of_a_stack_one_bad_answer_is_no_success(xp):
    singular = matrices.generate("svd_geo", 240, cond=1e18).a
    stack = xp.asarray(np.stack([growth_both_ways(120), singular]))

    found = solve_ex(stack, xp.asarray(gauss(240)[0]), precision=Plan("fp64", max_steps=1))

    assert found.status is Status.NOT_CONVERGED
    assert found.statuses.tolist() == [Status.NOT_CONVERGED, Status.ILL_CONDITIONED]
    assert found.backward_error.max() > found.bound


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_a_report_is_written_as_json_and_read_back(xp, dtype):
    a, b = (np.eye(3) * 2 + np.eye(3, k=1)).astype(dtype), np.ones((3, 2), dtype)
    for given in ((a, b), (np.stack([a, a]), b), (np.zeros((3, 3)), b)):
        report = solve_ex(*map(xp.asarray, given))

        found = json.loads(json.dumps(report.to_dict(), allow_nan=False))

        assert found["status"] == report.status.name and found["device"] == report.device
        assert list(found) == [field.name for field in dataclasses.fields(report)]
        x = np.array(found["x"], float)
        x = x[..., 0] + 1j * x[..., 1] if report.x.dtype.kind == "c" else x
        assert np.array_equal(x, host(report.x), equal_nan=True)
