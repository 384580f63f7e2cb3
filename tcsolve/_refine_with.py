"""Refinement with the caller's own operator and corrections."""

import time

import numpy as np

from tcsolve import _stop
from tcsolve._check import check_array, result_dtype
from tcsolve._dispatch import ops_for
from tcsolve._errors import InputError
from tcsolve._plan import Plan
from tcsolve._refine import Operator, measure, refine_columns
from tcsolve._solution import Solution, Status

__all__ = ["refine"]


def refine(a, b, correct, *, x0=None, norm=None, plan=None, tol=None, max_steps=100):
    """Refine x for any operator with any approximate inverse the caller has.

    Parameters
    ----------
    a : array (n, n), or callable (n, k) -> (n, k)
        The operator, or a function that applies it in FP64 (for a callable, `norm` is needed).
    b : array, shape (n,) or (n, k)
        Right-hand sides, NumPy or CuPy.
    correct : callable, (n, k) -> (n, k)
        Approximately A^-1 applied to residuals; a factorization in any precision, a preconditioner,
        another code.
    x0 : array, shape of b, optional
        Start; by default ``correct(b)``.
    norm : float, optional
        Infinity norm of a; computed if a is an array.
    plan : Plan, optional
        Its `contraction` and `basis` steer the loop.
    tol : float, optional
        Bound on ``||b - A x|| / (||A|| ||x||)``; by default 2**-53 sqrt(n).
    max_steps : int
        Corrections a right-hand side may cost.

    Returns
    -------
    Solution
        With status CONVERGED or STALLED (or NONFINITE_INPUT) and rcond NaN.

    Raises
    ------
    InputError
        A shape does not fit, norm is negative, or a is a function and norm is missing.

    Notes
    -----
    Classical refinement while it contracts, by Anderson acceleration where it does so slowly [2]_, then
    FGMRES preconditioned by `correct`, which may differ from call to call [1]_.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
    .. [2] H. F. Walker, P. Ni, SIAM J. Numer. Anal. 49 (2011), 1715-1735.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import refine
    >>> a = np.diag([1.0, 2.0, 3.0]) + 0.1
    >>> solution = refine(a, np.ones(3), lambda r: r / np.diag(a)[:, None])
    >>> solution.status.name
    'CONVERGED'
    """
    b = check_array(b, "b")
    ops = ops_for(b)
    if b.ndim not in (1, 2) or b.shape[0] == 0:
        raise InputError(f"refine: b has shape {b.shape}; (n,) or (n, k) with n > 0 is needed")
    n = b.shape[0]
    wide = np.result_type(result_dtype(b, b), np.float64)
    if callable(a):
        if norm is None:
            raise InputError("refine: a is a function, so norm (the infinity norm of A) is needed")
        operator = Operator(a, float(norm))
    else:
        a = check_array(a, "a")
        ops_for(a, b)
        if a.shape != (n, n):
            raise InputError(f"refine: a has shape {a.shape}, b has {n} rows; a must be ({n}, {n})")
        a = ops.converted(a, result_dtype(a, a))
        wide = np.result_type(wide, a.dtype)
        norm = float(ops.host(ops.stats(a).row_sum.max())[0]) if norm is None else norm
        operator = Operator.of(ops, a, float(norm))
    if norm < 0:
        raise InputError(
            f"refine: norm is {norm}; the infinity norm of A is needed, which is not negative"
        )
    columns = ops.converted(b.reshape(n, -1), wide)
    start = None
    if x0 is not None:
        start = check_array(x0, "x0")
        if start.shape != b.shape:
            raise InputError(f"refine: x0 has shape {start.shape}; that of b, {b.shape}, is needed")
        start = ops.xp.array(ops.converted(start.reshape(n, -1), wide))  # perhaps it is returned
    bound = _stop.target(wide, n) if tol is None else float(tol)
    mark = time.perf_counter()
    state = refine_columns(
        ops,
        operator,
        columns,
        _on_copies(correct),
        plan or Plan(),
        bound,
        x0=start,
        max_steps=max_steps,
    )
    status = Status.CONVERGED if state.all_converged else Status.STALLED
    if not bool(ops.xp.isfinite(columns).all()) or not np.isfinite(norm):
        status = Status.NONFINITE_INPUT
    took = time.perf_counter() - mark
    return Solution(
        x=state.x.reshape(b.shape),
        status=status,
        precision="user",
        rungs=("user",),
        iterations=state.steps,
        backward_error=measure(ops, operator, state.x, columns)[1],
        bound=bound,
        rcond=float("nan"),
        history=tuple(("user", error) for error in state.history),
        seconds={"refine": took, "total": took},
        device=ops.device,
    )


def _on_copies(correct):
    """Return the caller's `correct`, free to overwrite what it gets, and held to its shape."""

    def corrected(r):
        d = correct(r.copy())
        if getattr(d, "shape", None) != r.shape:
            got = getattr(d, "shape", type(d).__name__)
            raise InputError(
                f"refine: correct returned {got} for {r.shape}; the same shape is needed"
            )
        return d

    return corrected
