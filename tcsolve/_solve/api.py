"""The public functions `solve`, `solve_ex` and `factor`."""

import numpy as np

from tcsolve._backends.transfer import brought
from tcsolve._checks import result_dtype
from tcsolve._outcome import raise_or_warn
from tcsolve._solve.choice.placement import require_room_there, target_ops
from tcsolve._solve.factored.factorization import Factorization
from tcsolve._solve.factored.stack_factorization import StackFactorization
from tcsolve._solve.host.plain_system import plain_system
from tcsolve._solve.host.stacks import plain_answer
from tcsolve._solve.problem.overwriting import is_lent, solution_in
from tcsolve._solve.problem.request import check_factor, check_solve
from tcsolve._solve.routes import solve_request
from tcsolve._solve.vendor.plain import plain_answer_there
from tcsolve._steps import guarded

__all__ = ["factor", "solve", "solve_ex"]


def solve(
    a,
    b,
    lower=False,
    overwrite_a=False,
    overwrite_b=False,
    check_finite=True,
    assume_a=None,
    transposed=False,
    *,
    precision="auto",
    device="auto",
    residual="fp64",
):
    """Solve A x = b to FP64 accuracy by the factorization that is predicted to be fastest.

    This function replaces `scipy.linalg.solve`.  It has the same arguments, shapes, dtypes, errors and
    warnings, and a few of its own.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        A NumPy or CuPy array, or anything that `numpy.asarray` accepts.  float32, complex64, float16 and
        bfloat16 systems are solved to FP32 accuracy, all others to FP64 accuracy.
    b : array_like, shape (n,), or (..., n, nrhs)
        The right-hand sides.  A 1-D b is the same vector for every matrix of a stack.
    lower : bool
        True: 'symmetric', 'hermitian' and 'positive definite' read the lower triangle.  False: they read
        the upper triangle.
    overwrite_a : bool
        Allow the factors of a column-major NumPy matrix to be computed in its memory, as in SciPy.  This
        saves nothing, because the residual needs a copy of a.
    overwrite_b : bool
        Allow writing x to the memory of b, if b is a column-major NumPy array with the shape and dtype
        of x.
    check_finite : bool
        True: raise an InputError if a or b holds NaN or Inf.  False: x has NaN where they affect it.
    assume_a : str, optional
        The structure of A, by its name in SciPy.  Only the entries that this structure reads are used, and x
        is verified for the matrix that they describe; if other entries contradict it, an AccuracyWarning
        says so.  With default arguments, tcsolve looks for bands and triangles in a
        NumPy matrix.
    transposed : bool
        Solve A^T x = b.  Only for a real a, as in SciPy.
    precision : {'auto', 'fp16', 'bf16', 'tf32', 'fp16x3', 'fp32', 'fp64'}, emulated arithmetic, or Plan
        The first factorization to try.  If refinement with it stalls, a more precise factorization follows,
        unless a `Plan` forbids it.  'auto' selects the one that is predicted to be fastest.  Emulated
        arithmetics, such as 'fp16@h200', have the names that `Plan` explains.
    device : {'auto', 'cpu', 'cuda'}
        The device to solve on.  With 'auto', CuPy arrays stay on their device, and stacks of NumPy arrays on
        the host.  A single NumPy system is solved on a GPU if the predicted time, transfers included, is
        shorter there.  Bands and triangles stay on the host if `assume_a` is None or names them.  To start
        the GPU takes about a second.  A process that has not imported CuPy starts it only when its solves
        would have saved this much time there.
    residual : {'fp64', 'double-double'}
        'double-double': after the backward error meets the bound, x is refined with residuals of twice the
        digits until the error of x itself is of the order of 2**-53.  An FP32 answer is then rounded, so its
        error is about 2**-24.  This refinement takes a few times longer.  It succeeds up to a condition
        number of about 1e15, and sometimes beyond.  If it does not succeed, an AccuracyWarning says so.

    Returns
    -------
    x : array, shape (..., n) or (..., n, nrhs)
        The solution; NumPy or CuPy, as the arguments.

    Raises
    ------
    InputError
        An argument has the wrong shape, dtype or value.  This is a ValueError.
    SingularError
        A pivot is exactly zero in FP64.  This is a LinAlgError.
    NotPositiveDefiniteError
        `assume_a` is 'positive definite', but the Cholesky factorization breaks down.  This is a
        LinAlgError.
    DeviceError
        The requested device is missing or cannot be used now.
    DeviceMemoryError
        The device has too little free memory.
    NotImplementedError
        `transposed` is True and a is complex, as in SciPy.

    Warns
    -----
    LinAlgWarning
        rcond is below machine epsilon, or not known.
    AccuracyWarning
        The backward error misses the bound, x leaves the range of its dtype, A contradicts `assume_a`, or x
        is not as accurate as a double-double residual promises.  SciPy does not check this.

    See Also
    --------
    solve_ex : the same, with a report.
    factor : one matrix, many right-hand sides.

    Notes
    -----
    An answer is accepted if ``||b - A x|| <= u sqrt(n) ||A|| ||x||`` in infinity norms for every right-hand
    side, with u = 2**-53 (2**-24 for FP32).  n counts as at least 4 (complex: 8).  The
    residual is computed in FP64 [1]_ [2]_.  For FP64 answers with up to 32 unknowns it is as accurate as in
    long double, because there the rounding of an FP64 residual matters.

    References
    ----------
    .. [1] E. Carson, N. J. Higham, SIAM J. Sci. Comput. 40 (2018), A817-A847.
    .. [2] A. Haidar et al., Proc. R. Soc. A 476 (2020), 20200110.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import solve
    >>> a = np.array([[3.0, 2, 0], [1, -1, 0], [0, 5, 1]])
    >>> b = np.array([2.0, 4, -1])
    >>> np.allclose(a @ solve(a, b), b)
    True
    """
    estimate = False
    options = lower, transposed, check_finite, precision, device, estimate, residual
    is_usual = _is_usual(transposed, precision) and not (overwrite_a or overwrite_b)
    if is_usual and residual == "fp64":
        x = _plain_answer(a, b, assume_a, options)
        if x is not None:
            return x
    solution = _solved(a, b, assume_a, options, overwrite_a, overwrite_b)
    raise_or_warn(solution)
    return solution.x


def _solved(a, b, assume_a, options, overwrite_a, overwrite_b):
    """Return the `Solution`; the options are those of `check_solve`."""
    request = check_solve(a, b, assume_a, options)
    if is_lent(overwrite_a, a, b):
        request = (*request[:-1], request[-1]._replace(lent=True))
    solution = solve_request(*request)
    return solution_in(b, solution) if is_lent(overwrite_b, b, a) else solution


def _is_usual(transposed, precision):
    """Tell whether the caller leaves the method to tcsolve, and A is not transposed."""
    return type(precision) is str and precision == "auto" and not transposed


def _plain_answer(a, b, assume_a, options):
    """Return x if `plain_system`, `plain_answer` or `plain_answer_there` finds it, else None."""
    lower, _, check_finite, _, device, *_ = options
    if type(device) is not str or not (assume_a is None or type(assume_a) is str):
        return None
    if type(a) is np.ndarray:
        if device not in ("auto", "cpu"):
            return None
        if a.ndim == 2:
            return plain_system(a, b, assume_a, device)
        return plain_answer(a, b) if assume_a in (None, "gen", "general") else None
    if device not in ("auto", "cuda"):
        return None
    return plain_answer_there(a, b, assume_a, lower, check_finite)


def solve_ex(
    a,
    b,
    lower=False,
    overwrite_a=False,
    overwrite_b=False,
    check_finite=True,
    assume_a=None,
    transposed=False,
    *,
    precision="auto",
    device="auto",
    residual="fp64",
):
    """Solve A x = b and return the `Solution`: x with its status and its errors.

    Takes the arguments of `solve`.  Wrong arguments raise the same errors.  Numerical failures raise no error
    and give no warning; they are reported in `Solution.status`.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        The matrix, or a stack of matrices.
    b : array_like, shape (n,), or (..., n, nrhs)
        The right-hand sides.
    lower, overwrite_a, overwrite_b, check_finite, assume_a, transposed, precision, device, residual
        As in `solve`.

    Returns
    -------
    Solution
        The answer x, its status, its backward error, rcond, and how it was computed.

    Raises
    ------
    InputError, DeviceError, DeviceMemoryError, NotImplementedError
        As in `solve`.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import solve_ex
    >>> rng = np.random.default_rng(0)
    >>> solution = solve_ex(rng.standard_normal((50, 50)), np.ones(50))
    >>> solution.status.name, bool(solution.backward_error[0] <= solution.bound)
    ('CONVERGED', True)
    """
    estimate = True
    options = lower, transposed, check_finite, precision, device, estimate, residual
    return _solved(a, b, assume_a, options, overwrite_a, overwrite_b)


def factor(
    a,
    overwrite_a=False,
    check_finite=True,
    assume_a=None,
    *,
    precision="auto",
    device="auto",
    nrhs=1,
):
    """Factor A once, to solve for many right-hand sides.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        A matrix or a stack of matrices, of a type that `solve` accepts.  Unlike in `solve`, n must not be 0.
    overwrite_a : bool
        If True, the residuals use the array a itself, unless it must be converted or copied to another
        device.  So it must not change while the factors are in use.  By default a copy is made.
    check_finite : bool
        Raise an InputError if a holds NaN or Inf.
    assume_a : {None, 'general', 'gen'}
        `factor` supports no other structure.
    precision, device
        As in `solve` for assume_a='general'.  With 'auto', a stack is factored in FP64 on its device.  With
        another precision than 'auto' and 'fp64', the matrices of a stack are factored one by one, which takes
        longer.
    nrhs : int
        Expected number of right-hand sides of a solve; it affects the choice of the precision and of the
        device.

    Returns
    -------
    Factorization or StackFactorization
        It has ``solve(b)``, ``solve_ex(b)``, ``rcond()``, ``slogdet()`` and ``nbytes``.  For a stack,
        ``rcond()`` returns an array with one number for each matrix, and ``slogdet()`` returns two such
        arrays.

    Raises
    ------
    InputError
        An argument has the wrong shape, dtype or value.
    DeviceError
        The requested device is missing or cannot be used now.
    DeviceMemoryError
        The device has too little free memory.

    Notes
    -----
    A singular matrix raises no error here.  ``solve_ex`` then returns the status SINGULAR, and ``solve``
    raises a SingularError.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import factor
    >>> f = factor(np.array([[2.0, 1], [1, 3]]))
    >>> f.solve(np.array([3.0, 4])).round(12).tolist()
    [1.0, 1.0]

    A stack of two matrices, and one vector for both:

    >>> f = factor(np.array([[[2.0, 1], [1, 3]], [[4, 0], [0, 1]]]))
    >>> f.solve(np.array([3.0, 4])).round(12).tolist()
    [[1.0, 1.0], [0.75, 4.0]]
    >>> f.slogdet()[0].tolist()
    [1.0, 1.0]
    """
    here, a, nrhs = check_factor(a, assume_a, precision, device, nrhs)
    target = target_ops(here, a, nrhs, precision, device)
    on_device = here if here.device == "cuda" else target

    def factor_there(given):
        a = given.astype(result_dtype(given, given), copy=not overwrite_a)
        if target is not here:
            if a.ndim == 2:
                require_room_there(target, a, nrhs, precision, a.nbytes)
            a = brought(target, a)
        options = {"nrhs": nrhs, "check_finite": check_finite}
        options["moved_bytes"] = 0 if a is given else a.nbytes
        with np.errstate(all="ignore"):
            if a.ndim > 2:
                return StackFactorization.of(target, a, precision, **options)
            return Factorization.of(target, a, precision, **options)

    return guarded(on_device, factor_there)(a)
