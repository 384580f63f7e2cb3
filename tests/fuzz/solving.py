"""Kinds of cases that solve: ordinary systems, ends of the range, conditions, stacks."""

import numpy as np
import scipy.linalg

from fuzz.exact import UNIT
from fuzz.generate import (
    FAMILIES,
    PRECISIONS,
    STRUCTURES,
    gauss,
    laid_out,
    matrix,
    pick,
    read_under,
    right_hand_sides,
    with_singular_values,
)
from fuzz.judge import System, Verdict, judge_solution, outcome_complaints
from fuzz.outcome import Outcome, bits, same_bits
from tcsolve import LinAlgError, Plan, Status, solve, solve_ex

__all__ = [
    "drawn_system",
    "solve_at_the_ends_of_the_range",
    "solve_near_singular",
    "solve_stack",
    "solve_system",
]

# SciPy does not document how a structure changes a 1 x 1 matrix; it divides by the element as given.
OF_REAL_DIAGONAL = ("her", "hermitian", "pos", "positive definite")
TURNED = {"upper triangular": "lower triangular", "lower triangular": "upper triangular"}


def solve_system(rng, place):
    """A system of any family, dtype, layout, structure and option; sometimes a wrong one."""
    return judged(rng, place, *drawn_system(rng))


def drawn_system(rng):
    """Return a, b, the options and the precision of a random system."""
    n = int(
        rng.integers(1, 13)
        if rng.random() < 0.6
        else rng.integers(13, pick(rng, (50, 50, 50, 200)))
    )
    is_complex = bool(rng.random() < 0.3)
    a = matrix(rng, pick(rng, tuple(FAMILIES)), n, is_complex)
    b = right_hand_sides(rng, a, pick(rng, ((n,), (n, 1), (n, int(rng.integers(0, 5))))))
    a, b = _in_some_dtype(rng, a), _in_some_dtype(rng, b)
    if rng.random() < 0.04 and n > 1:
        b = pick(rng, (np.ones(n + 1), np.ones((2, n)), np.ones((2, 3, n + 2, 1)), np.array("x")))
    if rng.random() < 0.06 and a.dtype.kind in "fc":
        spoilt = a if rng.random() < 0.6 or b.dtype.kind not in "fc" or not b.size else b
        spoilt.flat[int(rng.integers(spoilt.size))] = pick(rng, (np.nan, np.inf, -np.inf))
    options = _options(rng)
    precision = pick(rng, PRECISIONS) if rng.random() < 0.6 else "auto"
    return a, b, options, precision


def _in_some_dtype(rng, v):
    """Return the matrix in a random dtype: rounded to it, or, for integers, with other values."""
    real = v.dtype.kind != "c"
    dtype = pick(rng, ("d", "d", "d", "f", "f", "e", "g", "i") if real else ("D", "D", "F"))
    with np.errstate(all="ignore"):
        if dtype == "i":
            return np.clip(np.rint(9 * v), -1000, 1000).astype(np.int32)
        cast = v.astype(dtype)
    return cast if np.isfinite(cast).all() else v


def _options(rng):
    """Return random options that SciPy has as well."""
    options = {}
    if rng.random() < 0.4:
        options["assume_a"] = pick(rng, STRUCTURES)
    for name, chance in (("lower", 0.15), ("transposed", 0.12)):
        if rng.random() < chance:
            options[name] = True
    if rng.random() < 0.2:
        options["check_finite"] = False
    return options


def solve_at_the_ends_of_the_range(rng, place):
    """A system whose rows, columns, entries or right-hand sides may reach the ends of FP64."""
    n, is_complex = int(rng.integers(2, 25)), rng.random() < 0.2
    a = gauss(rng, (n, n), is_complex)
    uniform = rng.uniform
    with np.errstate(all="ignore"):
        scales = (
            lambda: 10.0 ** uniform(0, 90, (n, 1)),
            lambda: 10.0 ** uniform(-45, 45, (n, 1)) * 10.0 ** uniform(-45, 45, n),
            lambda: 10.0 ** uniform(-200, 200, (n, 1)),
            lambda: 10.0 ** uniform(-150, 150, n),
            lambda: 10.0 ** pick(rng, (-320, -305, -295, -150, -89, 89, 150, 295, 306)),
            lambda: (
                10.0 ** uniform(-300, -200, (n, 1))
                * np.where(np.arange(n) == n // 2, 1e290, 1)[:, None]
            ),
        )
        if rng.random() < 0.15:
            s = 10.0 ** -np.linspace(0, uniform(3, 9), n)
            a = with_singular_values(rng, s, is_complex) * 10.0 ** uniform(-92, 92)
        else:
            a = a * pick(rng, scales)()
        b = gauss(rng, (n, int(rng.integers(1, 4))), is_complex)
        sides = (
            lambda: b,
            lambda: b * 10.0 ** uniform(-320, 300),
            lambda: b * 10.0 ** uniform(-150, 150, (n, 1)),
            lambda: np.where(np.arange(n)[:, None] == n // 3, b, 0),
            lambda: a @ b,
            lambda: np.where(rng.random(b.shape) < 0.7, 0, b),
        )
        b = pick(rng, sides)()
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    return judged(rng, place, a, b, {"assume_a": "gen"}, pick(rng, PRECISIONS))


def solve_near_singular(rng, place):
    """A matrix whose condition number is mostly near 1 / eps, for every precision and some plans."""
    dtype, is_complex = pick(rng, ("d", "d", "d", "f")), rng.random() < 0.2
    n = int(rng.integers(2, 25) if rng.random() < 0.8 else rng.integers(25, 120))
    digits = (14.5, 19, 9) if dtype == "d" else (6, 9.5, 3)
    cond = 10.0 ** rng.uniform(*(digits[:2] if rng.random() < 0.75 else (digits[2], digits[0])))
    a = pick(rng, _NEAR_SINGULAR)(rng, n, 1 / cond, is_complex)
    for shape in ((n, 1), (n,)):
        a = a * 10.0 ** rng.uniform(-4, 4, shape) if rng.random() < 0.2 else a
    if dtype == "d" and rng.random() < 0.2:
        a = a * 10.0 ** rng.uniform(-200, 200)
    a = a.astype(np.result_type(dtype, np.complex64) if is_complex else dtype)
    b = a @ np.ones((n, 1)) if rng.random() < 0.5 else gauss(rng, (n, 1), is_complex)
    update, kind = pick(rng, PRECISIONS[1:]), rng.random()
    precision = update if kind < 0.6 else "auto"
    if kind > 0.8:
        precision = Plan(
            update, **pick(rng, ({"scale": False}, {"fallback": False}, {"max_steps": 40}))
        )
    return judged(rng, place, a, b.astype(a.dtype), {"assume_a": "gen"}, precision)


def _nearly_parallel_rows(rng, n, small, is_complex):
    a = gauss(rng, (n, n), is_complex)
    a[-1] = a[0] * (1 + small * rng.standard_normal(n))
    return a


def _nearly_dependent_column(rng, n, small, is_complex):
    a = gauss(rng, (n, n), is_complex)
    a[:, -1] = a[:, :-1] @ gauss(rng, n - 1, is_complex) + small * gauss(rng, n, is_complex)
    return a


def _singular_block(rng, n, small, is_complex):
    a = 1e-3 * gauss(rng, (n, n), is_complex) + n * np.eye(n)
    a[:2, 2:], a[:2, :2] = 0, [[1, 1], [1, 1 + small]]
    return a


def _deficient_block(rng, n, small, is_complex):
    a, k = gauss(rng, (n, n), is_complex), n // 2
    a[:k, :k] = np.outer(gauss(rng, k), gauss(rng, k))
    a[:k, k:] = small * (k > 1)
    return a


# (rng, n, 1 / condition, is_complex) -> (n, n)
_NEAR_SINGULAR = (
    lambda rng, n, small, c: with_singular_values(rng, np.where(np.arange(n) < n - 1, 1, small), c),
    lambda rng, n, small, c: with_singular_values(rng, np.where(np.arange(n) < 1, 1, small), c),
    lambda rng, n, small, c: with_singular_values(rng, small ** (np.arange(n) / (n - 1)), c),
    lambda rng, n, small, c: (
        np.outer(gauss(rng, n, c), gauss(rng, n, c)) + small * gauss(rng, (n, n), c)
    ),
    lambda rng, n, small, c: matrix(rng, "singular integers", n, c),
    _nearly_parallel_rows,
    _nearly_dependent_column,
    _singular_block,
    _deficient_block,
)


def solve_stack(rng, place):
    """A stack of systems, perhaps against one right-hand side or one matrix; some slices are singular."""
    n, is_complex = int(rng.integers(1, 7)), bool(rng.random() < 0.3)
    batch = pick(rng, ((1,), (2,), (3,), (5,), (2, 1), (2, 3), (0,)))
    families = ("gauss", "known condition", "hermitian", "triangle", "tiny", "huge", "graded")
    family = pick(rng, families)
    count = int(np.prod(batch))
    a = np.array([matrix(rng, family, n, is_complex) for _ in range(count)]).reshape(*batch, n, n)
    if rng.random() < 0.15 and count:
        a.reshape(-1, n, n)[int(rng.integers(count))] = 0
    a = a.astype(complex if is_complex else float)
    shapes = ((n,), (n, 2), (*batch, n, 1), (*batch, n, int(rng.integers(0, 4))), (3, 1, n, 1))
    b = right_hand_sides(rng, a, pick(rng, shapes))
    if rng.random() < 0.1:
        a = a.reshape(-1, n, n)[0] if count else a
    if rng.random() < 0.2:
        a, b = (_in_some_dtype(rng, v) for v in (a, b))
    return judged(rng, place, a, b, _options(rng), pick(rng, ("auto", "auto", "fp16x3")))


# ---- the run and the judge of a solve -----------------------------------------------------------


def judged(rng, place, a, b, options, precision):
    """Solve by `solve`, twice by `solve_ex`, and by SciPy; return what is wrong, None if it is not judged."""
    if b.dtype.kind != "U" and not place.takes(a, b) or b.dtype.kind == "U" and not place.on_host:
        return None
    given_a = laid_out(rng, place, a)
    given_b = b if b.dtype.kind == "U" else laid_out(rng, place, b)
    before = bits(place, given_a), bits(place, given_b)
    theirs = Outcome(lambda: scipy.linalg.solve(a, b, **options))
    if _refusal(theirs) in (ValueError, NotImplementedError) and options.get("transposed"):
        theirs = Outcome(lambda: _solved_transposed(a, b, options))
    # SciPy refuses some shapes of b for a 1 x 1 matrix, and some empty systems.
    excused = a.shape[-1:] == (1,) or 0 in (*a.shape, *b.shape)
    plain, ours, again = (
        Outcome(lambda call=call: call(given_a, given_b, precision=precision, **options))
        for call in (solve, solve_ex, solve_ex)
    )
    found = []
    if (bits(place, given_a), bits(place, given_b)) != before:
        found.append("an input was modified")
    if _must_be_refused(a, b, options):  # in some systems SciPy tests neither A nor b
        theirs = ours if _refusal(ours) else Outcome(_refuse)
    if ours.error is not None or (_refusal(theirs) and not excused):
        found += _refusal_complaints(plain, ours, theirs)
    else:
        found += _answer_complaints(place, a, b, options, precision, plain, ours, again, theirs)
    if not found:
        return []
    case = f"a {a.dtype}{a.shape}, b {b.dtype}{b.shape}, {precision}, {options}"
    told = "" if ours.value is None else f"; {ours.value}"
    return [f"{sentence} ({case}{told})" for sentence in found]


def _must_be_refused(a, b, options):
    """Tell whether A is complex and transposed, or check_finite finds a NaN or Inf."""
    if options.get("transposed") and a.dtype.kind == "c":
        return True
    if not options.get("check_finite", True) or b.dtype.kind == "U":
        return False
    return not (np.isfinite(a).all() and np.isfinite(b).all())


def _refuse():
    raise ValueError("the arguments are those that the documentation refuses")


def _solved_transposed(a, b, options):
    """Return SciPy's x with A^T x = b for a real A, also where it refuses a complex b, or a stack."""
    if a.dtype.kind == "c" or a.ndim < 2:
        raise NotImplementedError
    turned = {"lower": not options.get("lower", False)}
    if structure := options.get("assume_a"):
        turned["assume_a"] = TURNED.get(structure, structure)
    if "check_finite" in options:
        turned["check_finite"] = options["check_finite"]
    return scipy.linalg.solve(np.swapaxes(a, -1, -2), b, **turned)


def _refusal(outcome):
    """Return the kind of exception by which arguments were refused, or None."""
    if outcome.error is None or isinstance(outcome.error, LinAlgError):
        return None
    kinds = (ValueError, NotImplementedError)
    return next((kind for kind in kinds if isinstance(outcome.error, kind)), type(outcome.error))


def _refusal_complaints(plain, ours, theirs):
    """Return what is wrong with arguments that were refused, or should have been."""
    found = []
    if _refusal(plain) is not _refusal(ours):
        found.append(f"`solve` ends with {plain}, `solve_ex` with {ours}")
    both = {_refusal(ours), _refusal(theirs)}
    if len(both) > 1 and both != {ValueError, NotImplementedError}:  # there may be two reasons
        found.append(
            f"the arguments are not refused as SciPy does, which ends with {theirs}: {ours}"
        )
    return found


def _answer_complaints(place, a, b, options, precision, plain, ours, again, theirs):
    solution, found = ours.value, outcome_complaints(ours.value, plain)
    if ours.warnings:
        found.append(f"`solve_ex` warns: {ours}")
    if again.error is not None or not same_bits(place, solution.x, again.value.x):
        found.append("two runs give different bits")
    elif plain.error is None and not same_bits(place, plain.value, solution.x):
        found.append("`solve` and `solve_ex` give different bits")
    x = place.host(solution.x)
    if theirs.error is None:
        like = theirs.value
        if (x.shape, x.dtype) != (like.shape, like.dtype):
            return [*found, f"x is {x.dtype}{x.shape}, SciPy's is {like.dtype}{like.shape}"]
    if x.dtype.char not in UNIT:
        return [*found, f"x is {x.dtype}, which no answer should be"]
    if not x.size:
        return found
    system = _as_read(a, b, options, x.dtype, getattr(precision, "fallback", True))
    if system is None:
        return found
    if not (np.isfinite(system.a).all() and np.isfinite(system.b).all()):
        if solution.status is not Status.NONFINITE_INPUT and _is_not_finite(system, a, b):
            found.append(f"{solution.status.name}, though a or b is not finite")
        return found
    shape = system.b.shape
    their_x = theirs.value.reshape(shape) if theirs.error is None else None
    doubt = isinstance(theirs.error, LinAlgError) or bool(theirs.warnings)
    return found + judge_solution(system, solution, x.reshape(shape), Verdict(their_x, doubt))


def _is_not_finite(system, a, b):
    """Tell whether a or b is not finite, or A is not finite after it is rounded to the answer's precision."""
    return not (np.isfinite(a).all() and np.isfinite(b).all()) or not np.isfinite(system.a).all()


def _as_read(a, b, options, dtype, fallback):
    """Return the `System` that was solved; None for some 1 x 1 systems.

    In those systems, b has another shape than x, or the structure makes the diagonal real.
    """
    lower, structure = options.get("lower", False), options.get("assume_a")
    a = np.atleast_2d(a)
    if options.get("transposed"):
        a, lower, structure = np.swapaxes(a, -1, -2), not lower, TURNED.get(structure, structure)
    n, vector = a.shape[-1], b.ndim < 2
    if n == 1 and (b.ndim != 1 and (b.ndim == 0 or b.shape[-2] != 1) or b.size != 1 and vector):
        return None
    if n == 1 and a.dtype.kind == "c" and structure in OF_REAL_DIAGONAL:
        return None
    a = read_under(a, structure, lower)
    of_a = dtype if a.dtype.kind == "c" or dtype.kind != "c" else np.dtype(dtype.char.lower())
    with np.errstate(all="ignore"):
        a, b = a.astype(of_a), b.astype(dtype)
    b = b[:, None] if vector else b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = int(np.prod(batch))
    return System(
        np.broadcast_to(a, (*batch, n, n)).reshape(count, n, n),
        np.broadcast_to(b, (*batch, n, b.shape[-1])).reshape(count, n, -1),
        dtype,
        fallback,
    )
