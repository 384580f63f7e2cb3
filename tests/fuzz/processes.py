"""Kinds of cases of a child process that solves, and of objects that are pickled or copied."""

import copy
import os
import pickle
import traceback
import warnings

import numpy as np

import tcsolve
from fuzz.generate import FAMILIES, PRECISIONS, matrix, pick, right_hand_sides
from fuzz.outcome import Outcome, same_bits
from tcsolve import Plan, Status, factor, gemm, gemm_bound, solve_ex

__all__ = ["pickle_and_copy", "solve_in_a_fork"]


def _system(rng):
    n = int(rng.integers(1, 60))
    a = matrix(rng, pick(rng, tuple(FAMILIES)), n, bool(rng.random() < 0.3))
    return a, right_hand_sides(rng, a, (n, int(rng.integers(1, 4))))


def solve_in_a_fork(rng, place):
    """A child gets the bits and the status of its parent, which has solved at this place before."""
    if not hasattr(os, "fork"):
        return None
    a, b = _system(rng)
    precision = pick(rng, PRECISIONS)
    solve_ex(place.given(a), place.given(b), precision=precision)  # starts BLAS, or CUDA
    f = factor(a, precision=precision, device="cpu")

    def answers():
        """Return the values to compare, on the host."""
        alone = solve_ex(a, b, precision=precision, device="cpu")
        shared = f.solve_ex(b)
        product = gemm(a.real, b.real)
        return [
            alone.x.tobytes(),
            shared.x.tobytes(),
            product.tobytes(),
            alone.status,
            shared.status,
        ]

    answers()  # the rung of the factors is settled
    expected = answers()
    found = _in_child(answers)
    if found == expected:
        return []
    what = found if isinstance(found, str) else "other bits, or another status"
    return [f"the child of a fork has {what} ({a.dtype}{a.shape}, {precision})"]


def _in_child(function):
    """Return what a function returns in a child process, or the text of its exception."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python warns of forks with threads, as BLAS has
        child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            result = pickle.dumps(function())
        except BaseException:
            result = pickle.dumps(traceback.format_exc())
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(result)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        sent = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(sent) if sent else "no answer: it was ended"


def pickle_and_copy(rng, place):
    """Objects that are returned or raised are equal to their copies; copied factors give the same answers."""
    a, b = _system(rng)
    precision = pick(rng, PRECISIONS)
    given = place.given(a), place.given(b)
    solution, found = solve_ex(*given, precision=precision), []
    again = pickle.loads, copy.copy, copy.deepcopy
    for name, back in zip(("pickle", "copy", "deepcopy"), again, strict=True):
        other = Outcome(
            lambda back=back: back(pickle.dumps(solution) if back is pickle.loads else solution)
        )
        if other.error is not None:
            found.append(f"{name} of a Solution ended with {other}")
        else:
            found += [
                f"{name}: {sentence}" for sentence in _differences(place, solution, other.value)
            ]
    plan = Plan(pick(rng, PRECISIONS[1:]), basis=int(rng.integers(1, 60)))
    bound = gemm_bound(np.ones((2, 3), "f"), np.ones((3, 2), "f"), refine=pick(rng, ("none", "ab")))
    for value in (plan, bound, pick(rng, tuple(Status))):
        if pickle.loads(pickle.dumps(value)) != value or copy.deepcopy(value) != value:
            found.append(f"{value!r} is not equal to its copy")
    found += _error_complaints()
    return found + _factor_complaints(place, given, precision)


def _factor_complaints(place, given, precision):
    """Factors on the host are copied, with the same answers; on a device they refuse."""
    a, b = given
    factors, found = factor(a, precision=precision), []
    for duplicate in (lambda f: pickle.loads(pickle.dumps(f)), copy.copy, copy.deepcopy):
        outcome = Outcome(lambda duplicate=duplicate: duplicate(factors))
        if not place.on_host:
            if not isinstance(outcome.error, TypeError):
                found.append(f"a copy of factors ended with {outcome}")
        elif outcome.error is not None:
            found.append(f"a copy of factors ended with {outcome}")
        else:
            x, y = (
                f.solve_ex(b, check_finite=False).x
                for f in (factor(a, precision=precision), outcome.value)
            )
            found += ["a copy of factors has other bits"] * (not same_bits(place, x, y))
    return found


def _differences(place, first, second):
    """Return how two solutions differ; NaN is equal to NaN here."""
    found = []
    if not same_bits(place, first.x, second.x):
        found.append("x has other bits")
    for name in ("iterations", "backward_error", "statuses", "rconds", "rcond", "bound"):
        one, other = np.asarray(getattr(first, name)), np.asarray(getattr(second, name))
        if one.dtype == object:
            same = one.shape == other.shape and all(
                p is q for p, q in zip(one.flat, other.flat, strict=True)
            )
        else:
            same = np.array_equal(one, other, equal_nan=True)
        if not same:
            found.append(f"{name} is {other}, and was {one}")
    for name in ("status", "precision", "rungs", "seconds", "bytes_planned", "device"):
        if getattr(first, name) != getattr(second, name):
            found.append(f"{name} is {getattr(second, name)}, and was {getattr(first, name)}")
    if str(first) != str(second) or len(first.history) != len(second.history):
        found.append("the report or the history is another")
    return found


def _error_complaints():
    """A worker process sends its exceptions by pickle, so each must be equal to its pickled copy."""
    errors = [
        kind("a sentence")
        for kind in (
            tcsolve.InputError,
            tcsolve.SingularError,
            tcsolve.NotPositiveDefiniteError,
            tcsolve.DeviceError,
            tcsolve.DeviceMemoryError,
            tcsolve.AccuracyWarning,
        )
    ]
    errors.append(tcsolve.KernelCompileError("a kernel", "sm_90", ("-std=c++17",), "a log"))
    found = []
    for error in errors:
        outcome = Outcome(lambda error=error: pickle.loads(pickle.dumps(error)))
        if type(outcome.value) is not type(error) or str(outcome.value) != str(error):
            found.append(f"a {type(error).__name__} does not survive pickle: {outcome}")
    return found
