"""The public function `refine`: refinement with the caller's operator and approximate inverse."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcsolve._arguments import require_count, require_number
from tcsolve._arithmetic.matrix_parts import column_tops
from tcsolve._backends.select import ops_for
from tcsolve._checks import check_array, result_dtype
from tcsolve._errors import InputError
from tcsolve._lu.scaling import exponent_of, ldexp
from tcsolve._plan import Plan
from tcsolve._refine import stopping
from tcsolve._refine.loop import refine_columns
from tcsolve._refine.operator import Operator, measure
from tcsolve._solution import HistoryPoint, Solution, Status
from tcsolve._solve.problem.columns import ended
from tcsolve._solve.verify.backward_error import SAFE, backward_errors
from tcsolve._steps import guarded, note

__all__ = ["refine"]


def refine(a, b, correct, *, x0=None, norm=None, plan=None, tol=None, max_steps=100):
    """Refine x for any operator with any approximate inverse of it.

    Parameters
    ----------
    a : array (n, n), or callable (n, k) -> (n, k)
        The matrix A, or a function that multiplies by A in FP64.  With a function, `norm` is needed.
    b : array, shape (n,) or (n, k)
        Right-hand sides, NumPy or CuPy.
    correct : callable, (n, k) -> (n, k)
        Applies an approximate inverse of A to residuals: a factorization in any precision, a preconditioner,
        or another program.  The residuals are not scaled, so a solver in a format with a small range must
        scale them itself.  `correct` receives copies of the residuals, and its result is copied to FP64.
    x0 : array, shape of b, optional
        The first x; by default ``correct(b)``.
    norm : float, optional
        Infinity norm of A; by default it is computed from the array a.
    plan : Plan, optional
        Only its `contraction`, `basis`, `method` and `inner_tol` are used.
    tol : float, optional
        Bound on ``||b - A x|| / (||A|| ||x||)``; by default 2**-53 sqrt(n); n < 4 counts as 4 (complex:
        n < 8 as 8).
    max_steps : int
        Largest number of corrections of a right-hand side.

    Returns
    -------
    Solution
        Its x has the shape of b, in FP64 or complex128, also for arguments in FP32.  Its status is CONVERGED,
        STALLED or NONFINITE_INPUT, and its rcond is NaN.

    Raises
    ------
    InputError
        A shape or a number is wrong.  Or x0, a correction or a product is complex, but a and b are real.  Or
        a is a function, but `norm` is missing or the function does not return FP64.
    DeviceError
        The device of b cannot be used now.
    DeviceMemoryError
        The device has too little memory.

    Notes
    -----
    Classical refinement continues while it contracts [1]_.  If it does not, FGMRES follows, with `correct` as
    the preconditioner.  `correct` may change from call to call, but not if the plan has method 'gmres': then
    it is applied to products with A too.  With method 'cg', A and `correct` must be Hermitian positive
    definite, and `correct` may change by rounding errors only.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import refine
    >>> a = np.diag([1.0, 2.0, 3.0]) + 0.1
    >>> solution = refine(a, np.ones(3), lambda r: r / np.diag(a)[:, None])
    >>> solution.status.name
    'CONVERGED'
    """
    options = {"x0": x0, "norm": norm, "plan": plan, "tol": tol, "max_steps": max_steps}
    task = _checked(a, b, **options)
    ops = _place(task.b)
    # again=False: after an error, the functions of the caller are not called a second time.
    return guarded(ops, _refine, again=False)(ops, task, correct)


@dataclass(frozen=True)
class _Task:
    """The checked arguments of `refine`; `wide` is the dtype of x."""

    a: Any
    b: Any
    x0: Any
    norm: float | None
    plan: Plan
    bound: float
    max_steps: int
    wide: np.dtype


def _checked(a, b, *, x0, norm, plan, tol, max_steps):
    """Return the `_Task`, or raise an InputError."""
    note("check")
    b = check_array(b, "b")
    if b.ndim not in (1, 2) or b.shape[0] == 0:
        raise InputError(f"refine: b has shape {b.shape}; (n,) or (n, k) with n > 0 is needed")
    if not (plan is None or isinstance(plan, Plan)):
        raise InputError(f"refine: plan is {plan!r}; a Plan, or None, is needed")
    max_steps = require_count("refine: max_steps", max_steps)
    wide = np.result_type(result_dtype(b, b), np.float64)
    norm = norm if norm is None else require_number("refine: norm", norm)
    if not callable(a):
        a = _matrix(a, b)
        wide = np.result_type(wide, result_dtype(a, a))
    elif norm is None:
        raise InputError("refine: a is a function, so norm (the infinity norm of A) is needed")
    x0 = x0 if x0 is None else _start(x0, b, wide)
    bound = stopping.target(wide, len(b)) if tol is None else require_number("refine: tol", tol)
    return _Task(a, b, x0, norm, plan or Plan(), bound, max_steps, wide)


def _place(b):
    """Return the `Ops` of b; the caller's functions must return arrays on the same device."""
    note("place")
    return ops_for(b)


def _refine(ops, task, correct):
    """Return the `Solution` for checked arguments."""
    operator = _operator(ops, task)
    columns, start = ops.converted(task.b.reshape(len(task.b), -1), task.wide), None
    if task.x0 is not None:
        start = ops.xp.array(ops.converted(task.x0.reshape(columns.shape), task.wide))
    mark = time.perf_counter()
    correct = _held(correct, "correct", task.wide, ops)
    how = {"x0": start, "max_steps": task.max_steps}
    finite = bool(ops.xp.isfinite(columns).all()) and _is_finite(ops, operator)
    system = operator, columns, correct
    if finite and operator.norm == np.inf:
        system = _smaller(ops, *system)
    state = refine_columns(ops, *system, task.plan, task.bound, **how)
    status = Status.CONVERGED if state.all_converged else Status.STALLED
    if not finite:
        status = Status.NONFINITE_INPUT
    with np.errstate(all="ignore"):  # x may be not finite
        error = _final_error(ops, operator, state.x, columns, task.norm)
    # An x near the end of the range of FP64 may miss the bound although the loop has converged.
    if status is Status.CONVERGED and not (error <= task.bound).all():
        status = Status.STALLED
    took = time.perf_counter() - mark
    return Solution(
        x=state.x.reshape(task.b.shape),
        status=status,
        precision="user",
        rungs=("user",),
        iterations=state.steps,
        backward_error=error,
        bound=task.bound,
        rcond=float("nan"),
        history=ended(
            [HistoryPoint("user", *point) for point in state.history], "user", state.steps, error
        ),
        seconds={"refine": took, "total": took},
        device=ops.device,
    )


def _operator(ops, task):
    """Return the `Operator` for the caller's matrix or function."""
    if callable(task.a):
        return Operator(_held(task.a, "a", task.wide, ops), task.norm)
    a, norm = ops.converted(task.a, result_dtype(task.a, task.a)), task.norm
    return Operator.of(
        ops, a, float(ops.host(ops.row_stats(a).total.max())[0]) if norm is None else norm
    )


def _is_finite(ops, operator):
    """Tell whether all entries of A are finite, also if a sum of them overflows."""
    if np.isfinite(operator.norm) or operator.matrix is None:
        return bool(np.isfinite(operator.norm))
    return bool(ops.xp.isfinite(operator.matrix).all())


def _smaller(ops, operator, b, correct):
    """Return the system with A and b divided by a power of two, so that sums over a row do not overflow."""
    xp, shift = ops.xp, len(b).bit_length() + 1
    a = ldexp(
        xp, ops.converted(operator.matrix, np.result_type(operator.matrix, np.float64)), -shift
    )
    norm = float(ops.host(ops.row_stats(a).total.max())[0])
    return Operator.of(ops, a, norm), ldexp(xp, b, -shift), lambda r: correct(ldexp(xp, r, shift))


def _final_error(ops, operator, x, b, norm):
    """Return the errors of x, also where products or residuals would leave the range of FP64."""
    error = measure(ops, operator, x, b)[1]
    (size,) = ops.host(column_tops(ops, x))
    ordinary = np.isfinite(error) & (size > 1 / SAFE) & (size < SAFE)
    ordinary &= 1 / SAFE < operator.norm < SAFE
    if ordinary.all():
        return error
    if operator.matrix is None or norm is not None:
        careful = _scaled_error(ops, operator, x, b)
    else:
        careful = backward_errors(ops, operator.matrix, x, b, operator.norm)
    return np.where(ordinary, error, careful)


def _scaled_error(ops, operator, x, b):
    """Return the errors of x from products with x 2**shift, for a shift of each column.

    The largest entries of x 2**shift and of A x 2**shift are near ||A||**-1/2 and ||A||**1/2.
    """
    xp, half = ops.xp, int(np.frexp(operator.norm)[1]) // 2
    of_x = xp.where((x == 0).all(axis=0), exponent_of(xp, b, 0) - 2 * half, exponent_of(xp, x, 0))
    x, b = (ldexp(xp, v, -of_x - half) for v in (x, b))
    size, rest = ops.host(column_tops(ops, x), column_tops(ops, b - operator.product(x)))
    # The quotient rest / norm might overflow although the error does not.
    root = np.sqrt(operator.norm)
    error = np.where(rest == 0, 0.0, rest / root / size / root)
    return np.where(np.isfinite(size), error, np.nan)


def _matrix(a, b):
    """Return the checked matrix a."""
    a, n = check_array(a, "a"), len(b)
    ops_for(a, b)
    if a.shape != (n, n):
        raise InputError(f"refine: a has shape {a.shape}, b has {n} rows; a must be ({n}, {n})")
    return a


def _start(x0, b, dtype):
    """Return the checked x0."""
    x0 = check_array(x0, "x0")
    ops_for(x0, b)
    if x0.shape != b.shape:
        raise InputError(f"refine: x0 has shape {x0.shape}; that of b, {b.shape}, is needed")
    _require_real("x0 is", x0, dtype)
    return x0


def _held(function, name, dtype, ops):
    """Return a function that calls the caller's function of columns, and checks and copies its result.

    The caller's function gets a copy.  So it may overwrite its argument, and may return the same memory each
    time.
    """

    def call(v):
        found = function(v.copy())
        if getattr(found, "shape", None) != v.shape:
            got = getattr(found, "shape", type(found).__name__)
            raise InputError(
                f"refine: {name} returned {got} for {v.shape}; the same shape is needed"
            )
        found = check_array(found, f"{name}(v)")
        ops_for(found, v)
        _require_real(f"{name} returned", found, dtype)
        if name == "a" and found.dtype.char not in "dD":
            raise InputError(
                f"refine: a returned {found.dtype} for {v.dtype}; it must multiply in FP64"
            )
        return ops.xp.array(ops.converted(found, dtype))

    return call


def _require_real(what, x, dtype):
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise InputError(
            f"refine: {what} {x.dtype}, but a and b are real; make b complex for a complex x"
        )
