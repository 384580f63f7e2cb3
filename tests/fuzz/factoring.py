"""Kinds of cases that factor: one thread, which calls in any order, and several, which share the factors."""

import threading

import numpy as np
import scipy.linalg

from fuzz.exact import EPS, determinant, rcond, target
from fuzz.generate import FAMILIES, PRECISIONS, gauss, laid_out, matrix, pick, right_hand_sides
from fuzz.judge import ROUNDOFF, System, Verdict, error_complaints, judge_solution
from fuzz.outcome import Outcome, bits, same_bits
from tcsolve import InputError, LinAlgError, Status, factor, solve_ex

__all__ = ["factor_and_call", "share_between_threads"]

THREADS = 4


def factor_and_call(rng, place):
    """Factors of a matrix, whose methods are called in any order, some twice; A is overwritten at the end."""
    n = int(rng.integers(1, 25) if rng.random() < 0.85 else rng.integers(25, 120))
    is_complex = bool(rng.random() < 0.3)
    a = matrix(rng, pick(rng, tuple(FAMILIES)), n, is_complex)
    with np.errstate(all="ignore"):
        single = a.astype(np.complex64 if is_complex else np.float32)
    if rng.random() < 0.3 and np.isfinite(single).all():
        a = single
    precision = pick(rng, PRECISIONS)
    given = laid_out(rng, place, a)
    if given.dtype.byteorder != a.dtype.byteorder:
        given = place.given(a)
    before = bits(place, given)
    made = Outcome(lambda: factor(given, precision=precision))
    if made.error is not None or made.warnings:
        return [f"`factor` ended with {made} for {a.dtype}{a.shape}"]
    f, found = made.value, []
    calls = [_call_slogdet, _call_rcond, _call_solve, _call_solve, _call_in_vain, _call_with_nan]
    for number in rng.permutation(len(calls)):
        found += calls[number](rng, place, f, a)
    if bits(place, given) != before:
        found.append("`factor` or its methods modified A")
    if not place.on_host or given.flags.writeable:
        b = place.given(gauss(rng, (n, 1)))
        first = f.solve_ex(b)
        given[...] = 7
        if not same_bits(place, first.x, f.solve_ex(b).x):
            found.append("the answer changes with A after `factor`")
    return [
        f"{sentence} ({a.dtype}{a.shape}, {precision}, now {f.precision})" for sentence in found
    ]


def _call_slogdet(rng, place, f, a):
    """Compare with the exact determinant where the condition number allows it."""
    outcome, n, eps = Outcome(f.slogdet), len(a), 2.0**-52
    if outcome.error is not None or outcome.warnings:
        return [f"`slogdet` ended with {outcome}"]
    if n > 24 or (condition := rcond(a)) < 100 * n * n * eps:
        return []
    (sign, log), (true_sign, true_log) = outcome.value, determinant(a)
    # The factors are those of A + E with |E| at most n u |L||U|, and log det changes by the trace of A^-1 E.
    growth = np.abs(scipy.linalg.lu(a.astype(np.result_type(a, float)))[2]).max() / np.abs(a).max()
    allowed = n * n * eps * max(1, growth) / condition + n * eps * (1 + abs(true_log))
    if f.precision != "fp64":  # with these factors, eight digits are promised
        allowed += 1e-8 * abs(true_log)
    if allowed < 0.1 and not (abs(log - true_log) <= allowed and abs(sign - true_sign) <= allowed):
        return [
            f"slogdet is {sign, log}, the true one {true_sign, true_log}, rcond {condition:.3g}"
        ]
    return (
        [] if Outcome(f.slogdet).value == outcome.value else ["`slogdet` differs the second time"]
    )


def _call_rcond(rng, place, f, a):
    outcome, n, eps = Outcome(f.rcond), len(a), EPS[a.dtype.char]
    if outcome.error is not None or outcome.warnings:
        return [f"`rcond` ended with {outcome}"]
    told, found = outcome.value, []
    coarsest = max(ROUNDOFF.get(rung, eps) for rung in (f.precision, *f.rungs))
    if not (np.isnan(told) or 0 <= told <= 1 + 4 * n * coarsest):
        found.append(f"rcond is {told}, beyond 0 and 1")
    if n <= 24:
        true, u = rcond(a), ROUNDOFF.get(f.precision, eps)
        if true > 100 * n * u and not told >= true / 2:
            found.append(f"rcond is reported as {told:.3g}, and is {true:.3g}")
    return found


def _call_solve(rng, place, f, a):
    n = len(a)
    b = right_hand_sides(rng, a, pick(rng, ((n,), (n, 0), (n, 1), (n, 3), (n, 40))))
    given = place.given(b)
    before, rung = bits(place, given), f.precision
    outcome = Outcome(lambda: f.solve_ex(given))
    if outcome.error is not None or outcome.warnings:
        return [f"`solve_ex` of the factors ended with {outcome} for b {b.dtype}{b.shape}"]
    solution, found = outcome.value, []
    if bits(place, given) != before:
        found.append("b was modified")
    if solution.x.shape != b.shape:
        return [*found, f"x has the shape {solution.x.shape}, b {b.shape}"]
    if not b.size:
        return found
    again = f.solve_ex(given)
    # A solve that replaces the factors refines with the old and the new ones.  The next two solves have only
    # the new ones.
    first, second = (solution, again) if f.precision == rung else (again, f.solve_ex(given))
    if f.precision == first.precision and not same_bits(place, first.x, second.x):
        found.append(f"the same b gives different bits, {solution.status.name}")
    x = place.host(solution.x).reshape(1, n, -1)
    system = System(a[None], b.reshape(1, n, -1).astype(x.dtype), x.dtype)
    if not np.isfinite(system.b).all():
        return found
    theirs = Outcome(lambda: scipy.linalg.solve(a, b, assume_a="gen"))
    doubts = isinstance(theirs.error, LinAlgError) or bool(theirs.warnings)
    their_x = None if theirs.error else theirs.value.reshape(1, n, -1)
    return found + judge_solution(system, solution, x, Verdict(their_x, doubts))


def _call_in_vain(rng, place, f, a):
    """Check that wrong right-hand sides are refused, and that the factors solve afterwards."""
    n = len(a)
    wrong = (np.ones(n + 1), np.full(n, np.nan), np.ones((n, 1, 1)), np.ones((n + 2, 2)))
    outcomes = [Outcome(lambda b=b: f.solve(place.given(b))) for b in wrong]
    outcomes += [Outcome(lambda b=b: f.solve(b)) for b in (None, ["x"] * n)]
    bad = [str(outcome) for outcome in outcomes if not isinstance(outcome.error, InputError)]
    found = [f"a wrong b ended with {bad}"] if bad else []
    return found + [f"after a wrong b: {sentence}" for sentence in _call_solve(rng, place, f, a)]


def _call_with_nan(rng, place, f, a):
    """Check the status of a b with NaN in one column, that this column of x is NaN, and the other columns.

    The others must meet the bound if a solve for them alone does.
    """
    b, others = gauss(rng, (len(a), 3)), [0, 2]
    b[int(rng.integers(len(a))), 1] = np.nan
    outcome = Outcome(lambda: f.solve_ex(place.given(b), check_finite=False))
    if outcome.error is not None or outcome.warnings:
        return [f"a column with NaN ended with {outcome}"]
    solution = outcome.value
    if solution.status is not Status.NONFINITE_INPUT:
        return [f"a column with NaN has the status {solution.status.name}"]
    x, reported = place.host(solution.x), solution.backward_error
    found = [] if np.isnan(x[:, 1]).all() else ["the x of a NaN is not NaN"]
    alone = f.solve_ex(place.given(b[:, others]))
    args = a, x[:, others], b[:, others], reported[others], alone.status, target(x.dtype, len(a))
    return found + [f"beside a NaN: {sentence}" for sentence in error_complaints(*args)]


def share_between_threads(rng, place):
    """Threads that share factors, and that solve systems of their own, get the bits of one thread alone."""
    n, precision = int(rng.integers(5, 80)), pick(rng, PRECISIONS)
    family = pick(rng, ("gauss", "known condition", "graded", "dominant"))
    a = place.given(matrix(rng, family, n, bool(rng.random() < 0.3)))
    sides = [place.given(gauss(rng, (n, int(rng.integers(1, 4))))) for _ in range(2 * THREADS)]
    f = factor(a, precision=precision)
    for _ in range(2):  # the rung may change the first time
        for b in sides:
            f.solve_ex(b)
        logarithm = f.slogdet()
        condition = f.rcond()
    alone = [f.solve_ex(b) for b in sides]
    apart = [solve_ex(a, b, precision=precision) for b in sides]
    found = []

    def compare(found_x, expected, what):
        if not same_bits(place, found_x.x, expected.x) or found_x.status is not expected.status:
            found.append(f"{what} of a thread differs")

    def work(number):
        try:
            for i in np.roll(range(len(sides)), number):
                compare(f.solve_ex(sides[i]), alone[i], "a solve by shared factors")
                compare(solve_ex(a, sides[i], precision=precision), apart[i], "`solve_ex`")
            if (f.rcond(), f.slogdet()) != (condition, logarithm):
                found.append("rcond or slogdet of a thread differs")
        except Exception as error:
            found.append(f"a thread ended with {error!r}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [f"{sentence} ({family}, n = {n}, {precision})" for sentence in sorted(set(found))]
