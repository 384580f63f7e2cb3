"""The public functions `solve`, `solve_ex` and `factor`."""

import functools
import time
from dataclasses import dataclass, replace

import numpy as np

from tcsolve._arguments import require_count
from tcsolve._arrays import as_host
from tcsolve._backends.select import ops_for, ops_on
from tcsolve._checks import check_array, check_options, check_shapes, require_finite, result_dtype
from tcsolve._errors import InputError
from tcsolve._plan import Plan
from tcsolve._solution import Status, contradicted, raise_or_warn
from tcsolve._solve.direct import (
    factorization_for,
    failed,
    solve_directly,
    solve_empty,
    solve_one_element,
)
from tcsolve._solve.factorization import Factorization
from tcsolve._solve.host_stacks import plain_answer, solve_stack
from tcsolve._solve.lapack_factors import is_positive_definite
from tcsolve._solve.placement import brought, require_room_there, target_ops
from tcsolve._solve.structures import read_under
from tcsolve._solve.vendor.solve import goes_to_vendor, solve_by_vendor
from tcsolve._solve.vendor.system import read_matrix

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
    """Solve A x = b to FP64 accuracy by the factorization that is predicted to be fastest.

    This function replaces `scipy.linalg.solve`.  It has the same arguments, shapes, dtypes, errors and
    warnings.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        A NumPy or CuPy array, or anything that `numpy.asarray` accepts.  float32 and complex64 systems are
        solved to FP32 accuracy, all others to FP64 accuracy.
    b : array_like, shape (n,), or (..., n, nrhs)
        The right-hand sides.  A 1-D b is the same vector for every matrix of a stack.
    lower : bool
        True: 'symmetric', 'hermitian' and 'positive definite' read the lower triangle.  False: they read
        the upper triangle.
    overwrite_a, overwrite_b : bool
        Accepted as in SciPy, but without effect, because the FP64 residual needs both arrays.
    check_finite : bool
        Raise an InputError if a or b holds NaN or Inf.
    assume_a : str, optional
        The structure of A, by its name in SciPy.  It is trusted: the system is solved, and verified, for the
        matrix that has this structure.  By default tcsolve looks for bands and triangles in a NumPy matrix.
    transposed : bool
        Solve A^T x = b.  Only for a real a, as in SciPy.
    precision : {'auto', 'fp16', 'bf16', 'tf32', 'fp16x3', 'fp32', 'fp64'} or Plan
        The first factorization to try.  If refinement with it stalls, a more precise factorization follows,
        unless a `Plan` forbids it.  'auto' selects the one that is predicted to be fastest.
    device : {'auto', 'cpu', 'cuda'}
        The device to solve on.  With 'auto', CuPy arrays stay on their device.  NumPy arrays are solved on a
        GPU if the predicted time, transfers included, is shorter there.

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
        The backward error misses the bound, x leaves the range of its dtype, or A contradicts `assume_a`.
        SciPy does not check this.

    See Also
    --------
    solve_ex : the same, with a report.
    factor : one matrix, many right-hand sides.

    Notes
    -----
    An answer is accepted if ``||b - A x|| <= u sqrt(n) ||A|| ||x||`` in infinity norms for every right-hand
    side, with u = 2**-53 (2**-24 for FP32).  The residual is computed in FP64 [1]_ [2]_.  For up to 32
    unknowns it is as exact as in long double, because there the rounding of an FP64 residual matters.

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
    if _is_usual(assume_a, transposed, precision, device) and (x := plain_answer(a, b)) is not None:
        return x
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


def _is_usual(assume_a, transposed, precision, device):
    """Tell whether a stack on the host may be solved for a general A by the method of tcsolve's choice."""
    strings = type(precision) is type(device) is str
    usual = strings and precision == "auto" and device in ("auto", "cpu") and not transposed
    return usual and (assume_a is None or type(assume_a) is str and assume_a in ("gen", "general"))


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
    """Solve A x = b and return the `Solution`: x with its status and its errors.

    Takes the arguments of `solve`.  Wrong arguments raise the same errors.  Numerical failures raise no error
    and give no warning; they are reported in `Solution.status`.

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
    return _solve(a, b, lower, check_finite, assume_a, transposed, precision, device)


@dataclass(frozen=True)
class _Request:
    """The checked arguments of `solve` except a and b; `estimate` is as for `Ladder`."""

    lower: bool
    check_finite: bool
    structure: str | None
    transposed: bool
    precision: str | Plan
    device: str
    estimate: bool
    start: float


def _solve(a, b, lower, check_finite, assume_a, transposed, precision, device, estimate=True):
    """Return the `Solution`.

    Without `estimate`, rcond may be a lower bound instead of an estimate, if the bound is at least machine
    epsilon.
    """
    start = time.perf_counter()
    structure = check_options(assume_a, precision, device)
    request = _Request(
        lower, check_finite, structure, transposed, precision, device, estimate, start
    )
    a, b = check_array(a, "a"), check_array(b, "b")
    ops = ops_for(a, b)
    # Every result is checked, so the floating-point settings of the caller must not raise or warn inside.
    with np.errstate(all="ignore"):
        return ops.guarded(_solve_here)(ops, a, b, request)


def _solve_here(ops, a, b, request):
    """Return the `Solution` for checked arrays; x is on the device of a and b."""
    if a.ndim < 2:
        a = a.reshape(1, -1)
    if request.transposed and a.dtype.kind == "c":
        raise NotImplementedError(
            "transposed=True needs a real matrix, as in SciPy: pass a.T (or a.conj().T) instead"
        )
    target = ops if request.device == "auto" else ops_on(request.device)
    if a.size == 1 and not _is_stack_of_elements(a, b):
        return _solve_moved(_solve_one_element, target, ops, a, b, request)
    shape, vector = check_shapes(a, b)
    dtype = result_dtype(a, b)
    if request.transposed:
        a, request = _turned(ops.xp, a, request)
    if 0 in shape or 0 in a.shape:
        if request.check_finite:
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
            require_finite(bool(ops.xp.isfinite(b).all()), "b")
        return solve_empty(ops, shape, dtype, vector)
    a, b = ops.converted(a, _real_if(a, dtype)), ops.converted(b, _real_if(b, dtype))
    b = b.reshape(1) if b.ndim == 0 else b  # a scalar b is allowed for a stack of 1 x 1 systems
    if a.ndim > 2 or b.ndim > 2:
        solution = _solve_moved(_solve_stack, target, ops, a, b, request)
    elif request.structure in (None, "general") and target.device == "cuda" != ops.device:
        solution = _solve_where_it_is_fastest(ops, a, b, request)
    else:
        solution = _solve_moved(_solve_matrix, target, ops, a, b, request)
    return solution if solution.x.shape == shape else replace(solution, x=solution.x.reshape(shape))


def _is_stack_of_elements(a, b):
    """Tell whether a and b are a stack of 1 x 1 systems; if not, SciPy divides b by the one element of a."""
    rows = 1 if b.ndim == 0 else b.shape[0] if b.ndim == 1 else b.shape[-2]
    return rows == 1 and (a.ndim > 2 or b.ndim > 2)


def _turned(xp, a, request):
    """Return the transposed matrix, and the request with its structure and triangle."""
    other = {
        "upper triangular": "lower triangular",
        "lower triangular": "upper triangular",
    }
    structure = other.get(request.structure, request.structure)
    return xp.swapaxes(a, -1, -2), replace(request, lower=not request.lower, structure=structure)


def _solve_moved(solve, target, here, a, b, request):
    """Call `solve` on the device `target`; return its `Solution` with x on the device `here`."""
    if target is here:
        return solve(here, a, b, request)
    solve = target.guarded(solve)
    solution = solve(target, brought(target, a), brought(target, b), request)
    planned = solution.bytes_planned + a.nbytes + b.nbytes
    return replace(solution, x=brought(here, solution.x), bytes_planned=planned)


def _solve_one_element(ops, a, b, request):
    """Divide b by the one element of a.

    A negative element is no error for 'positive definite', as in SciPy.
    """
    matrix = ops.converted(a.reshape(1, 1), _real_if(a, result_dtype(a, b)))
    matrix, apart = read_under(ops, matrix, request.structure, request.lower)
    asked = getattr(request.precision, "update", request.precision)
    precision = "fp64" if asked == "auto" else asked
    args = matrix.reshape(a.shape), b, request.check_finite, precision
    return contradicted(solve_one_element(ops, *args), apart)


def _solve_stack(ops, a, b, request):
    """Solve each system of a stack with the same request."""
    if a.size == 1 and request.structure == "positive definite":
        request = replace(request, structure="hermitian")  # a negative element is no error in SciPy
    if solution := _solve_by_vendor(ops, a, b, request):
        return solution

    def check():
        if request.check_finite:
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
            require_finite(bool(ops.xp.isfinite(b).all()), "b")

    def solve_one(matrix, columns):
        return _solve_matrix(ops, matrix, columns, replace(request, device=ops.device))

    shape, dtype = check_shapes(a, b)[0], result_dtype(a, b)
    return solve_stack(
        ops,
        a,
        b,
        shape,
        dtype,
        request.structure,
        request.lower,
        at_once=ops.device == "cpu" and request.precision == "auto",
        estimate=request.estimate,
        require_finite=check,
        solve_one=solve_one,
    )


def _solve_matrix(ops, a, b, request):
    """Solve with the matrix that the structure describes; the status tells if A contradicts the structure."""
    structure, lower = request.structure, request.lower
    if solution := _solve_by_vendor(ops, a, b, request):
        return solution
    if structure in (None, "general"):
        return _solve_full(ops, a, b, request)
    if ops.vendor is not None:
        read, apart = read_matrix(ops, a, structure, lower, request.check_finite)
    else:
        if request.check_finite:  # also in the triangle that is not read, as in SciPy
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
        read, apart = read_under(ops, a, structure, lower)
    return contradicted(_solve_full(ops, read, b, request), apart)


def _solve_by_vendor(ops, a, b, request):
    """Return the `Solution` by cuBLAS or cuSOLVER factors, if these are fastest on this device, else None."""
    structure, precision = request.structure, request.precision
    if not goes_to_vendor(ops, a, b, structure, precision):
        return None
    return solve_by_vendor(
        ops,
        a,
        b,
        structure,
        request.lower,
        functools.partial(_solve_alone, ops, request=request),
        shape=check_shapes(a, b)[0],
        dtype=result_dtype(a, b),
        check_finite=request.check_finite,
        estimate=request.estimate,
    )


def _solve_alone(ops, a, b, request):
    """Solve one general system of a stack by the method that is fastest for it."""
    return _solve_matrix(
        ops, a, b, replace(request, structure="general", start=time.perf_counter())
    )


def _solve_full(ops, a, b, request):
    """Solve with the full matrix a: directly by LAPACK if that is fastest, else by the ladder."""
    structure, precision = request.structure, request.precision
    dtype, on_host = result_dtype(a, b), ops.device == "cpu"
    special = structure not in (None, "general")
    if on_host and (precision == "auto" or special and precision == "fp64"):
        factorization = factorization_for(a, structure)
        if factorization:
            solution = solve_directly(a, b, factorization, dtype, request.start)
            if solution:
                if request.check_finite and not solution.status.ok:
                    require_finite(bool(np.isfinite(b).all()), "b")
                return solution
    if structure == "positive definite" and not _may_be_definite(ops, a):
        if request.check_finite:
            require_finite(bool(ops.xp.isfinite(b).all()), "b")
        seconds = time.perf_counter() - request.start
        found = failed(Status.NOT_POSITIVE_DEFINITE, as_host(b), dtype, seconds)
        return replace(found, x=ops.array(found.x), device=ops.device)
    return _solve_where_it_is_fastest(ops, a, b, request)


def _may_be_definite(ops, a):
    """Tell whether a is positive definite; True if it holds NaN or Inf, which a later check finds."""
    if ops.vendor is not None:
        (info,) = ops.host(ops.vendor.factor(a[None], "positive definite", 1).info)
        if not info[0]:
            return True
    # The factorization on the device failed, but perhaps because of extreme entries; scale on the host.
    host = as_host(a)
    return not np.isfinite(host).all() or is_positive_definite(host)


def _solve_where_it_is_fastest(here, a, b, request):
    """Return the `Solution` by the ladder on the requested or the fastest device; x is on `here`."""
    mark, moved_bytes = time.perf_counter(), 0
    seconds = {"check": mark - request.start}
    nrhs, precision = 1 if b.ndim == 1 else b.shape[-1], request.precision
    target = target_ops(here, a, nrhs, precision, request.device)
    if target is not here:
        moved_bytes = a.nbytes + b.nbytes
        require_room_there(target, a, nrhs, precision, moved_bytes)
        a, b = brought(target, a), brought(target, b)
        seconds["transfer"] = time.perf_counter() - mark
    options = {
        "nrhs": nrhs,
        "check_finite": request.check_finite,
        "estimate": request.estimate,
        "seconds": seconds,
        "moved_bytes": moved_bytes,
    }
    factors = _factorization(target, a, precision, **options)
    solution = factors.solve_ex(b, check_finite=request.check_finite)
    return solution if target is here else replace(solution, x=brought(here, solution.x))


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
        The matrix, n > 0, as in `solve`.
    overwrite_a : bool
        If True, the residuals use the array a itself, so it must not change while the factors are in use.
        By default a copy is made.
    check_finite : bool
        Raise an InputError if a holds NaN or Inf.
    assume_a : {None, 'general', 'gen'}
        `factor` supports no other structure.
    precision, device
        As in `solve`.
    nrhs : int
        Expected number of right-hand sides of a solve; it affects the choice of the precision.

    Returns
    -------
    Factorization
        It has ``solve(b)``, ``solve_ex(b)``, ``rcond()``, ``slogdet()`` and ``nbytes``.

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
    with np.errstate(all="ignore"):
        return ops.guarded(lambda: Factorization(ops, a, precision, **options))()


def _real_if(a, dtype):
    """Return `dtype`, the dtype of x, or the real dtype of the same precision if a is real."""
    if dtype.kind == "c" and a.dtype.kind != "c":
        return np.dtype(np.float32 if dtype.char == "F" else np.float64)
    return dtype
