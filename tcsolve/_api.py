"""The public functions that factor: check, choose, factor, refine, report."""

import time
from dataclasses import replace

import numpy as np

from tcsolve._check import (
    check_array,
    check_options,
    check_shapes,
    require_finite,
    result_dtype,
)
from tcsolve._direct import is_ordinary, solve_directly, solve_empty, solve_one_element
from tcsolve._dispatch import ops_for
from tcsolve._errors import InputError
from tcsolve._factorization import Factorization
from tcsolve._numbers import require_count
from tcsolve._placement import brought, require_room_there, target_ops
from tcsolve._solution import raise_or_warn
from tcsolve._structure import goes_to_scipy, interpret, solve_by_scipy
from tcsolve._vendor_solve import goes_to_vendor, solve_by_vendor

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
):
    """Solve A x = b to FP64 accuracy through the fastest factorization that gives it.

    Takes the place of `scipy.linalg.solve`: same arguments, shapes, dtypes, errors and warnings.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        NumPy or CuPy array, or anything `numpy.asarray` takes.  float32 and complex64 are solved to
        FP32 accuracy; integers are solved in FP64.
    b : array_like, shape (n,), or (..., n, nrhs)
        1-D b is one vector for every matrix of a stack.
    lower : bool
        Which triangle 'symmetric', 'hermitian' and 'positive definite' read.
    overwrite_a, overwrite_b : bool
        Permissions, as in SciPy.  Not used at present: the FP64 residual needs both.
    check_finite : bool
        Raise ValueError if a or b holds NaN or Inf.
    assume_a : str, optional
        A structure by SciPy's names, trusted without a check: the answer, and its backward error, are those
        of the matrix that is read under it.  By default the structure of a NumPy
        matrix is looked for.
    transposed : bool
        Solve A^T x = b; real a only, as in SciPy.
    precision : {'auto', 'fp16', 'bf16', 'tf32', 'fp16x3', 'fp32', 'fp64'} or Plan
        The first factorization to try; one that stalls is followed by a more precise one, unless a
        `Plan` forbids it.  'auto' takes the one predicted to be fastest.
    device : {'auto', 'cpu', 'cuda'}
        CuPy input is solved on its device.  With NumPy input 'auto' goes to a GPU where the predicted
        time, transfers included, is lower.

    Returns
    -------
    x : array, shape (..., n) or (..., n, nrhs)
        In the array type of the caller.

    Raises
    ------
    InputError
        Wrong shape, dtype or value (a ValueError).
    SingularError
        A is exactly singular (a LinAlgError).
    NotPositiveDefiniteError
        A is not what `assume_a` says, 'positive definite' (a LinAlgError).
    DeviceError, DeviceMemoryError
        The device is missing, or the solve would not fit.

    Warns
    -----
    LinAlgWarning
        rcond is below machine epsilon.
    AccuracyWarning
        The backward error misses the bound; SciPy does not look.

    See Also
    --------
    solve_ex : the same with a report.
    factor : one matrix, many right-hand sides.

    Notes
    -----
    An answer is accepted when ``||b - A x|| <= u sqrt(n) ||A|| ||x||`` in infinity norms, u = 2**-53 (2**-24
    for FP32), for every right-hand side, with the residual computed in FP64 [1]_ [2]_, or, where its rounding
    would count, with up to 32 unknowns, in long double.

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
    solution = _solve(
        a,
        b,
        lower,
        check_finite,
        assume_a,
        transposed,
        precision,
        device,
        estimate=False,
    )
    raise_or_warn(solution)
    return solution.x


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
):
    """Solve A x = b and return the `Solution` with the evidence for it.

    Takes the arguments of `solve`.  Mistakes of the caller raise as there; numerical failures are
    `Solution.status`.

    Returns
    -------
    Solution

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import solve_ex
    >>> rng = np.random.default_rng(0)
    >>> solution = solve_ex(rng.standard_normal((50, 50)), np.ones(50))
    >>> solution.status.name, bool(solution.backward_error[0] <= solution.bound)
    ('CONVERGED', True)
    """
    return _solve(a, b, lower, check_finite, assume_a, transposed, precision, device)


def _solve(a, b, lower, check_finite, assume_a, transposed, precision, device, estimate=True):
    """Return the `Solution`; without `estimate`, rcond may be a lower bound that is at least epsilon."""
    start = time.perf_counter()
    structure = check_options(assume_a, precision, device)
    a, b = check_array(a, "a"), check_array(b, "b")
    ops = ops_for(a, b)
    solve_here = ops.guarded(_solve_here)
    return solve_here(
        ops, a, b, lower, check_finite, structure, transposed, precision, device, estimate, start
    )


def _solve_here(
    ops, a, b, lower, check_finite, structure, transposed, precision, device, estimate, start
):
    """Return the `Solution` of checked arguments: directly, by SciPy, or by the ladder of precisions."""
    if a.ndim < 2:
        a = a.reshape(1, -1)
    if transposed and a.dtype.kind == "c":
        raise NotImplementedError(
            "transposed=True needs a real matrix, as in SciPy: pass a.T (or a.conj().T) instead"
        )
    if a.size == 1:
        return solve_one_element(ops, a, b, check_finite)
    shape, vector = check_shapes(a, b)
    dtype = result_dtype(a, b)
    if transposed:
        a, lower, structure = _turned(ops.xp, a, lower, structure)
    if 0 in shape or 0 in a.shape:
        if check_finite:
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
        return solve_empty(ops, shape, dtype, vector)
    a = ops.converted(a, _real_if(a, dtype))
    b = b.reshape(1) if b.ndim == 0 else b  # for a stack of single elements
    if goes_to_vendor(ops, a, b, structure, precision, device):

        def alone(a, b):
            now, general = time.perf_counter(), (False, precision, device, estimate)
            return _solve_here(ops, a, b, lower, check_finite, "general", *general, now)

        options = {"shape": shape, "dtype": dtype, "check_finite": check_finite}
        args = (ops, a, b, structure, lower, alone)
        if (solution := solve_by_vendor(*args, **options, estimate=estimate)) is not None:
            return solution
    if goes_to_scipy(a, b, structure, precision, device):
        return solve_by_scipy(a, b, structure, lower, check_finite, shape, dtype)
    if structure not in (None, "general"):
        if check_finite:  # in the triangle that is not read, too
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
        a = interpret(ops.xp, a, structure, lower)
    if is_ordinary(ops, a, b, precision, device) and (solution := solve_directly(a, b, start)):
        return solution
    target = target_ops(ops, a, 1 if b.ndim == 1 else b.shape[-1], precision, device)
    return _solve_there(target, ops, a, b, shape, check_finite, precision, estimate, start)


def _turned(xp, a, lower, structure):
    """Return a, lower and structure of the transposed matrix."""
    other = {
        "upper triangular": "lower triangular",
        "lower triangular": "upper triangular",
    }
    return xp.swapaxes(a, -1, -2), not lower, other.get(structure, structure)


def _solve_there(target, here, a, b, shape, check_finite, precision, estimate, start):
    """Return the `Solution` by the ladder of precisions where `target` works, x where the arrays were."""
    seconds, moved_bytes = {"check": time.perf_counter() - start}, 0
    nrhs = 1 if b.ndim == 1 else b.shape[-1]
    if target is not here:
        mark, moved_bytes = time.perf_counter(), a.nbytes + b.nbytes
        require_room_there(target, a, nrhs, precision, moved_bytes)
        a, b = brought(target, a), brought(target, b)
        seconds["transfer"] = time.perf_counter() - mark
    options = {"nrhs": nrhs, "check_finite": check_finite, "estimate": estimate}
    factors = _factorization(
        target, a, precision, seconds=seconds, moved_bytes=moved_bytes, **options
    )
    solution = factors.solve_ex(b, check_finite=check_finite)
    x = solution.x if target is here else brought(here, solution.x)
    if x is solution.x and x.shape == shape:
        return solution
    return replace(solution, x=x.reshape(shape))


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
    a : array_like, shape (n, n)
    overwrite_a : bool
        If True, a itself is kept for the residuals and must not change while the factors are in use;
        by default a copy is.
    check_finite : bool
        Raise InputError if a holds NaN or Inf.
    assume_a : {None, 'general', 'gen'}
        Other structures have no factorization of their own yet.
    precision, device
        As in `solve`.
    nrhs : int
        How many right-hand sides are expected, for the choice of the precision.

    Returns
    -------
    Factorization
        With ``solve(b)``, ``solve_ex(b)``, ``rcond()``, ``slogdet()`` and ``nbytes``.

    Raises
    ------
    InputError
        Wrong shape, dtype or value.

    Notes
    -----
    A singular matrix does not raise here but in ``solve``, with the status SINGULAR.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import factor
    >>> f = factor(np.array([[2.0, 1], [1, 3]]))
    >>> f.solve(np.array([3.0, 4])).round(12).tolist()
    [1.0, 1.0]
    """
    structure = check_options(assume_a, precision, device)
    nrhs = require_count("factor: nrhs", nrhs)
    if structure not in (None, "general"):
        raise InputError(
            f"factor: assume_a is {assume_a!r}; only 'general' matrices can be factored, "
            "use solve for the others"
        )
    a = check_array(a, "a")
    if a.ndim != 2 or a.shape[0] != a.shape[1] or a.shape[0] == 0:
        raise InputError(
            f"factor: a has shape {a.shape}; one square matrix (n, n), n > 0, is needed"
        )
    ops = ops_for(a)
    given, a = a, ops.guarded(a.astype)(result_dtype(a, a), copy=not overwrite_a)
    target = target_ops(ops, a, nrhs, precision, device)
    if target is not ops:
        require_room_there(target, a, nrhs, precision, a.nbytes)
        a = brought(target, a)
    moved_bytes = 0 if a is given else a.nbytes
    factors = _factorization(
        target, a, precision, nrhs=nrhs, check_finite=check_finite, moved_bytes=moved_bytes
    )
    factors.wait()
    return factors


def _factorization(ops, a, precision, **options):
    return ops.guarded(lambda: Factorization(ops, a, precision, **options))()


def _real_if(a, dtype):
    """Return the dtype a is solved in: that of x, but real if a is."""
    if dtype.kind == "c" and a.dtype.kind != "c":
        return np.dtype(np.float32 if dtype.char == "F" else np.float64)
    return dtype
