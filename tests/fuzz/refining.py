"""Kind of cases that refine, with good and with bad corrections and operators."""

import math

import numpy as np

from fuzz.exact import rounding_of_residual, target
from fuzz.generate import gauss, pick, with_singular_values
from fuzz.judge import error_complaints
from fuzz.outcome import Outcome, bits
from tcsolve import InputError, Plan, Status, refine

__all__ = ["refine_with_anything"]

MAX_STEPS = 100


class _OwnError(Exception):
    """What a caller's function raises."""


class _Corrections:
    """A `correct` for `refine`, of one of KINDS: some of them invert A well, and others misbehave."""

    KINDS = {
        "good": lambda self, y, r: y,
        "low": lambda self, y, r: y.astype(np.complex64 if y.dtype.kind == "c" else np.float32),
        "noisy": lambda self, y, r: y * (1 + 0.1 * np.cos(1 + np.arange(y.size)).reshape(y.shape)),
        "alternating": lambda self, y, r: y * (1 + 0.3 * (-1) ** self.calls),
        "diverging": lambda self, y, r: 3 * y,
        "negated": lambda self, y, r: -y,
        "zero": lambda self, y, r: 0 * y,
        "huge": lambda self, y, r: 1e300 * y,
        "NaN": lambda self, y, r: np.nan * y,
        "Inf": lambda self, y, r: np.inf * y,
        "sometimes NaN": lambda self, y, r: y * (np.nan if self.calls % 3 == 0 else 1.01),
        "NaN after the first": lambda self, y, r: y * (1.001 if self.calls == 1 else np.nan),
        "float16": lambda self, y, r: y.real.astype(np.float16),
        "integer": lambda self, y, r: np.zeros(y.shape, int),
        "other memory order": lambda self, y, r: np.repeat(y, 2, axis=0)[::2],
        "one memory": lambda self, y, r: self._in_one_memory(y),
        "in place": lambda self, y, r: self._in_place(y, r),
        "complex": lambda self, y, r: y * (1 + 0.01j),
        "too short": lambda self, y, r: y[1:],
        "a row too many": lambda self, y, r: np.concatenate([y, y[:1]]),
        "flat": lambda self, y, r: y.ravel(),
        "nothing": lambda self, y, r: None,
        "a list": lambda self, y, r: y.tolist(),
        "a number": lambda self, y, r: 0.0,
        "objects": lambda self, y, r: y.astype(object),
        "raising": lambda self, y, r: self._raise_after_two(y),
    }

    def __init__(self, place, kind, inverse):
        self.place, self.kind, self.calls = place, kind, 0
        self._inverse, self._memory = inverse, None

    def __call__(self, r):
        self.calls += 1
        host = self.place.host(r)
        with np.errstate(all="ignore"):
            found = self.KINDS[self.kind](self, self._inverse @ host, r)
        ours = isinstance(found, np.ndarray) and self.place.takes(found)
        return self.place.given(found) if ours else found

    def _in_one_memory(self, y):
        if self._memory is None or self._memory.shape != y.shape:
            self._memory = np.empty_like(y)
        self._memory[...] = y
        return self._memory

    def _in_place(self, y, r):
        if y.dtype != r.dtype:
            return y
        r[...] = self.place.given(y)
        return r

    def _raise_after_two(self, y):
        if self.calls > 2:
            raise _OwnError
        return y


OPERATORS = {
    "good": lambda y, calls: y,
    "NaN after two": lambda y, calls: y * (np.nan if calls > 2 else 1),
    "FP32": lambda y, calls: y.astype(np.complex64 if y.dtype.kind == "c" else np.float32),
    "too short": lambda y, calls: y[1:],
    "nonlinear": lambda y, calls: y + 1e-3 * np.sin(np.abs(y)),
}


class _Operator:
    def __init__(self, place, kind, a):
        self._place, self._kind, self._a, self._calls = place, kind, a, 0

    def __call__(self, v):
        self._calls += 1
        with np.errstate(all="ignore"):
            found = OPERATORS[self._kind](self._a @ self._place.host(v), self._calls)
        return self._place.given(found)


def refine_with_anything(rng, place):
    """`refine` with corrections, operators, starts, norms and bounds of all kinds."""
    n, is_complex = int(rng.integers(1, 40)), bool(rng.random() < 0.3)
    a = gauss(rng, (n, n), is_complex) + pick(rng, (0, 1, 5)) * np.eye(n)
    if rng.random() < 0.1:
        a = with_singular_values(rng, 10.0 ** -np.linspace(0, rng.uniform(5, 16), n), is_complex)
    if rng.random() < 0.2:
        a = a * 10.0 ** rng.uniform(-300, 300)
    b = gauss(rng, pick(rng, ((n,), (n, int(rng.integers(0, 5))))), is_complex)
    size = rng.random()
    with np.errstate(all="ignore"):
        b = b * 0 if size < 0.1 else b * 10.0 ** rng.uniform(-310, 300) if size < 0.2 else b
        inverse = np.linalg.inv(a)
    if not np.isfinite(inverse).all():
        inverse = np.eye(n)
    if rng.random() < 0.05 and b.size:
        b.flat[0] = np.nan
    correct = _Corrections(place, pick(rng, tuple(_Corrections.KINDS)), inverse)
    norm = float(np.abs(a).sum(axis=1).max())
    options, kind = _refine_options(rng, b), "a matrix"
    operator = given = place.given(a)
    if rng.random() < 0.4:
        kind = pick(rng, tuple(OPERATORS))
        operator, options["norm"] = _Operator(place, kind, a), norm
        if rng.random() < 0.1:
            options["norm"] = pick(rng, (0.0, math.inf, math.nan, -1.0, None))
    arrays = [given, place.given(b)]
    if isinstance(options.get("x0"), np.ndarray):
        options["x0"] = place.given(options["x0"])
        arrays.append(options["x0"])
    before = [bits(place, v) for v in arrays]
    outcome = Outcome(lambda: refine(operator, arrays[1], correct, **options))
    found = [] if before == [bits(place, v) for v in arrays] else ["an input was modified"]
    if outcome.error is not None:
        if not isinstance(outcome.error, InputError | _OwnError):
            found.append(f"`refine` ended with {outcome}")
    else:
        found += [f"`refine` warns: {outcome}"] if outcome.warnings else []
        found += _refined_complaints(place, a, b, outcome.value, options, (kind, correct, norm))
    told = {key: str(value)[:40] for key, value in options.items()}
    case = f"n = {n}, b {b.dtype}{b.shape}, corrections: {correct.kind}, operator: {kind}, {told}"
    return [f"{sentence} ({case})" for sentence in found]


def _refine_options(rng, b):
    options = {}
    if rng.random() < 0.3:
        starts = (
            gauss(rng, b.shape),
            np.zeros(b.shape),
            np.full(b.shape, np.nan),
            1e200 * gauss(rng, b.shape),
            np.zeros(b.shape, int),
            np.zeros(len(b) + 1),
            "x",
        )
        options["x0"] = pick(rng, starts)
    if rng.random() < 0.3:
        options["max_steps"] = pick(rng, (1, 2, 5, 50))
    if rng.random() < 0.2:
        options["tol"] = pick(rng, (0.0, 1e-3, 1e-30, math.inf, 1e-16))
    if rng.random() < 0.3:
        options["plan"] = Plan(
            basis=pick(rng, (1, 2, 50)), contraction=pick(rng, (0.01, 0.5, 0.99))
        )
    return options


def _refined_complaints(place, a, b, solution, options, how):
    """Return what is wrong with an answer of `refine`; how is (kind of operator, corrections, ||A||)."""
    kind, correct, norm = how
    if solution.x.shape != b.shape:
        return [f"x has the shape {solution.x.shape}, b {b.shape}"]
    if not b.size:
        return []
    n, found = len(a), []
    x = place.host(solution.x).reshape(n, -1)
    columns = b.reshape(n, -1)
    if solution.status.ok and not np.isfinite(x).all():
        found.append(f"{solution.status.name}, but x is not finite")
    if int(solution.iterations.max()) > options.get("max_steps", MAX_STEPS):
        found.append(f"there are {solution.iterations} corrections, more than max_steps")
    if not np.isfinite(columns).all():
        wanted = solution.status is Status.NONFINITE_INPUT
        return found if wanted else [*found, f"{solution.status.name} for a b with NaN"]
    true = kind in ("a matrix", "good") and options.get("norm", norm) == norm
    if not true or not math.isfinite(solution.bound):
        return found
    bound = options.get("tol", target(x.dtype, n))
    # The caller's operator does not scale x.  If its products leave the range of FP64, the error is not
    # known.
    with np.errstate(all="ignore"):
        sizes = np.abs(x).max(axis=0), norm * np.abs(x).max(axis=0)
    if not (all(((v < 1e290) & (v > 1e-280)).all() for v in sizes) or solution.status.ok):
        return found
    rounding = rounding_of_residual(n, in_fp64=True) * (2 if x.dtype.kind == "c" else 1)
    found += error_complaints(
        a, x, columns, solution.backward_error, solution.status, bound, rounding
    )
    plain = correct.kind == "good" and not options.keys() - {"norm"}
    sizes = [np.abs(v).max() for v in (a, columns) if v.any()]
    easy = np.linalg.cond(a) < 1e10 and all(1e-100 < size < 1e100 for size in sizes)
    if plain and easy and not solution.status.ok:
        found.append(f"{solution.status.name} with the inverse of A for corrections")
    return found
