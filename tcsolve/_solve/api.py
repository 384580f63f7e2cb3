"""The public functions that factor: check, choose, factor, refine, report."""

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
from tcsolve._solve.host_stacks import solve_stack
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
        Accepted as in SciPy, without effect: the FP64 residual needs both arrays.
    check_finite : bool
        Raise ValueError if a or b holds NaN or Inf.
    assume_a : str, optional
        A structure, by SciPy's names.  It is trusted: x and its backward error are those of the matrix that
        has this structure.  By default tcsolve looks for bands and triangles in a NumPy matrix.
    transposed : bool
        Solve A^T x = b; real a only, as in SciPy.
    precision : {'auto', 'fp16', 'bf16', 'tf32', 'fp16x3', 'fp32', 'fp64'} or Plan
        The first factorization to try.  If it stalls, a more precise one follows, unless a `Plan` forbids
        it.  'auto' takes the one predicted to be fastest.
    device : {'auto', 'cpu', 'cuda'}
        Where to solve.  CuPy input stays on its device.  With NumPy input 'auto' uses a GPU if the predicted
        time, transfers included, is lower there.

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
        `assume_a` says 'positive definite', and A is not (a LinAlgError).
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


@dataclass(frozen=True)
class _Request:
    """What the caller of `solve` asks for beside a and b, checked; `estimate` as for `Factorization`."""

    lower: bool
    check_finite: bool
    structure: str | None
    transposed: bool
    precision: str | Plan
    device: str
    estimate: bool
    start: float


def _solve(a, b, lower, check_finite, assume_a, transposed, precision, device, estimate=True):
    """Return the `Solution`; without `estimate`, rcond may be a lower bound that is at least epsilon."""
    start = time.perf_counter()
    structure = check_options(assume_a, precision, device)
    request = _Request(
        lower, check_finite, structure, transposed, precision, device, estimate, start
    )
    a, b = check_array(a, "a"), check_array(b, "b")
    ops = ops_for(a, b)
    # The caller's own settings are not for what happens inside: every outcome is looked at.
    with np.errstate(all="ignore"):
        return ops.guarded(_solve_here)(ops, a, b, request)


def _solve_here(ops, a, b, request):
    """Return the `Solution` for checked arrays, x where they are."""
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
    b = b.reshape(1) if b.ndim == 0 else b  # for a stack of single elements
    if a.ndim > 2 or b.ndim > 2:
        solution = _solve_moved(_solve_stack, target, ops, a, b, request)
    elif request.structure in (None, "general") and target.device == "cuda" != ops.device:
        solution = _solve_where_it_is_fastest(ops, a, b, request)
    else:
        solution = _solve_moved(_solve_matrix, target, ops, a, b, request)
    return solution if solution.x.shape == shape else replace(solution, x=solution.x.reshape(shape))


def _is_stack_of_elements(a, b):
    """Tell whether a of one element and b are a stack of 1 x 1 systems; SciPy divides any other b by a."""
    rows = 1 if b.ndim == 0 else b.shape[0] if b.ndim == 1 else b.shape[-2]
    return rows == 1 and (a.ndim > 2 or b.ndim > 2)


def _turned(xp, a, request):
    """Return the transposed matrix, and the request for it."""
    other = {
        "upper triangular": "lower triangular",
        "lower triangular": "upper triangular",
    }
    structure = other.get(request.structure, request.structure)
    return xp.swapaxes(a, -1, -2), replace(request, lower=not request.lower, structure=structure)


def _solve_moved(solve, target, here, a, b, request):
    """Call solve where the caller wants it; return its `Solution` with x where a and b are."""
    if target is here:
        return solve(here, a, b, request)
    solve = target.guarded(solve)
    solution = solve(target, brought(target, a), brought(target, b), request)
    planned = solution.bytes_planned + a.nbytes + b.nbytes
    return replace(solution, x=brought(here, solution.x), bytes_planned=planned)


def _solve_one_element(ops, a, b, request):
    """Divide; as in SciPy a negative element is no error under 'positive definite'."""
    matrix = ops.converted(a.reshape(1, 1), _real_if(a, result_dtype(a, b)))
    matrix, apart = read_under(ops, matrix, request.structure, request.lower)
    asked = getattr(request.precision, "update", request.precision)
    precision = "fp64" if asked == "auto" else asked
    args = matrix.reshape(a.shape), b, request.check_finite, precision
    return contradicted(solve_one_element(ops, *args), apart)


def _solve_stack(ops, a, b, request):
    """Solve each matrix of a stack, under the same request."""
    if a.size == 1 and request.structure == "positive definite":
        request = replace(request, structure="hermitian")  # a negative element is no error in SciPy
    if solution := _solve_by_vendor(ops, a, b, request):
        return solution
    if request.check_finite:
        require_finite(bool(ops.xp.isfinite(a).all()), "a")
        require_finite(bool(ops.xp.isfinite(b).all()), "b")
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
        solve_one=functools.partial(
            _solve_matrix, ops, request=replace(request, device=ops.device)
        ),
    )


def _solve_matrix(ops, a, b, request):
    """Solve for one matrix, as it is read under its structure, and tell if it contradicts that."""
    structure, lower = request.structure, request.lower
    if solution := _solve_by_vendor(ops, a, b, request):
        return solution
    if structure in (None, "general"):
        return _solve_full(ops, a, b, request)
    if ops.vendor is not None:
        read, apart = read_matrix(ops, a, structure, lower, request.check_finite)
    else:
        if request.check_finite:  # in the triangle that is not read, too
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
        read, apart = read_under(ops, a, structure, lower)
    return contradicted(_solve_full(ops, read, b, request), apart)


def _solve_by_vendor(ops, a, b, request):
    """Return the `Solution` by the library's factors, where that is the fastest road on a device, or None."""
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
    """Solve for one general matrix of a stack, by its fastest road."""
    return _solve_matrix(
        ops, a, b, replace(request, structure="general", start=time.perf_counter())
    )


def _solve_full(ops, a, b, request):
    """Solve for the whole matrix a: at once by LAPACK where that may do, else by the ladder of precisions."""
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
    """Tell whether a is positive definite, or holds NaN or Inf, which is told elsewhere."""
    if ops.vendor is not None:
        (info,) = ops.host(ops.vendor.factor(a[None], "positive definite", 1).info)
        if not info[0]:
            return True
    host = as_host(a)  # of a refused matrix: its entries may be extreme
    return not np.isfinite(host).all() or is_positive_definite(host)


def _solve_where_it_is_fastest(here, a, b, request):
    """Return the `Solution` by the ladder of precisions, where the caller says or it is fastest, x here."""
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
    overwrite_a : bool
        If True, a itself is kept for the residuals, and must not change while the factors are in use.
        By default a copy is kept.
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
    with np.errstate(all="ignore"):
        return ops.guarded(lambda: Factorization(ops, a, precision, **options))()


def _real_if(a, dtype):
    """Return the dtype a is solved in: that of x, but real if a is."""
    if dtype.kind == "c" and a.dtype.kind != "c":
        return np.dtype(np.float32 if dtype.char == "F" else np.float64)
    return dtype
