"""`cho_factor` and `cho_solve`."""

import functools

import numpy as np
import scipy.linalg

from tcsolve._arrays import is_cupy
from tcsolve._backends.select import numpy_ops, ops_for
from tcsolve._checks import require_finite, result_dtype
from tcsolve._errors import InputError, LinAlgError, NotPositiveDefiniteError
from tcsolve._family.device_memory import guards_memory
from tcsolve._family.stacks import RHS, over_stacks
from tcsolve._family.systems import CholeskySystem, DenseSystem, ProductSystem, norms_of
from tcsolve._family.verification import device_operands, may_overwrite, solved
from tcsolve._solve.problem.structures import interpret, is_mirrored
from tcsolve._solve.vendor.system import read_matrix
from tcsolve._solve.verify.long_double_residual import SMALL

__all__ = ["CholeskyFactors", "cho_factor", "cho_solve"]

# SciPy's own functions; `installed` may rebind these names in scipy.linalg.
_cho_factor, _cho_solve = scipy.linalg.cho_factor, scipy.linalg.cho_solve


class CholeskyFactors(tuple):
    """The pair (c, lower) of `scipy.linalg.cho_factor`, with the matrix that `cho_solve` verifies with.

    Attributes
    ----------
    matrix : array, shape (..., n, n)
        The Hermitian matrix that the triangle of a describes.
    """

    def __new__(cls, pair, matrix):
        self = super().__new__(cls, pair)
        self.matrix, self._norm = matrix, None
        return self

    @property
    def norm(self):
        """The infinity norm of the matrix; None for a stack or a small matrix."""
        if self.matrix.ndim > 2 or len(self.matrix) <= SMALL:
            return None
        if self._norm is None:
            ops = ops_for(self.matrix) if is_cupy(self.matrix) else numpy_ops
            self._norm = norms_of(ops, self.matrix)[0]
        return self._norm

    def __reduce__(self):
        return CholeskyFactors, (tuple(self), self.matrix)


@guards_memory
def cho_factor(a, lower=False, overwrite_a=False, check_finite=True):
    """Factor a positive definite matrix, to solve with `cho_solve`.

    This function replaces `scipy.linalg.cho_factor`.

    Parameters
    ----------
    a : array_like, shape (..., n, n)
        The matrix, or a stack of matrices; NumPy or CuPy.
    lower : bool
        True: read the lower triangle, and return the factor in it.  False: the upper one.
    overwrite_a : bool
        Allow writing the factor to the memory of a.  `cho_solve` uses a copy of a in any case.
    check_finite : bool
        Raise a ValueError if a holds NaN or Inf.

    Returns
    -------
    (c, lower) : CholeskyFactors
        A tuple as SciPy's, which also keeps the matrix.  The other triangle of c is not defined.

    Raises
    ------
    LinAlgError
        The matrix is not positive definite.
    ValueError
        a is not square, holds NaN or Inf, or is an empty stack.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import cho_factor, cho_solve
    >>> factors = cho_factor(np.array([[2.0, 1], [1, 3]]))
    >>> cho_solve(factors, [3.0, 4]).round(12).tolist()
    [1.0, 1.0]
    """
    if is_cupy(a):
        return _factor_on_device(a, lower, check_finite)
    given = np.asarray(a)
    is_square = given.ndim >= 2 and given.shape[-2] == given.shape[-1]
    matrix = _described(given, lower) if is_square else None
    overwrite_a = given.ndim == 2 and may_overwrite(overwrite_a, a)
    pair = _cho_factor(a, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite)
    if matrix is None:
        return pair
    return CholeskyFactors(pair, matrix.astype(pair[0].dtype, copy=False))


def _described(a, lower):
    """Return a copy of the Hermitian matrices that one triangle of a describes."""
    square = a.ndim == 2 and a.shape[0] == a.shape[1] and a.dtype.char in "fdFD"
    if square and is_mirrored(a, conjugate=True):  # nearly always
        return a.copy(order="K")
    return interpret(np, a, "positive definite", lower)


def _factor_on_device(a, lower, check_finite):
    from cupy.linalg import cholesky
    from cupyx import errstate

    ops = ops_for(a)
    if a.ndim < 2 or a.shape[-2] != a.shape[-1]:
        raise InputError(f"cho_factor: a has shape {a.shape}; square matrices are needed")
    if a.ndim == 2 and a.size:
        a = ops.converted(a, result_dtype(a, a))
        matrix, _ = read_matrix(ops, a, "positive definite", lower, check_finite)
    else:
        if check_finite:
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
        matrix = interpret(ops.xp, a, "positive definite", lower)
        matrix = ops.converted(matrix, result_dtype(a, a))
    try:
        with errstate(linalg="raise"):  # by default CuPy checks nothing
            c = cholesky(matrix)
    except LinAlgError as error:
        raise NotPositiveDefiniteError(
            f"a leading minor of the array is not positive definite ({error}); use lu_factor for this matrix"
        ) from None
    c = c if lower else ops.xp.swapaxes(c, -1, -2).conj()
    return CholeskyFactors((c, bool(lower)), matrix)


@guards_memory
def cho_solve(c_and_lower, b, overwrite_b=False, check_finite=True):
    """Solve A x = b with the result of `cho_factor`, and verify x.

    This function replaces `scipy.linalg.cho_solve`.

    Parameters
    ----------
    c_and_lower : (array, bool)
        The result of `cho_factor`, or of SciPy's.
    b : array_like, shape (n,) or (..., n, k)
        The right-hand sides.
    overwrite_b : bool
        Allow writing x to the memory of b.
    check_finite : bool
        Raise a ValueError if c or b holds NaN or Inf.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)

    Raises
    ------
    ValueError
        The shapes do not fit, a stack is empty, or c or b holds NaN or Inf.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    AccuracyWarning
        The backward error of x is above ``u sqrt(n)``, see `Solution`.

    Notes
    -----
    The backward error is measured with the matrix that `cho_factor` kept.  SciPy's tuple has no matrix; then
    it is measured with the product of the factors, relative to ``|| |L| |L^H| |x| ||``.

    Examples
    --------
    >>> import scipy.linalg
    >>> from tcsolve import cho_solve
    >>> cho_solve(scipy.linalg.cho_factor([[4.0, 0], [0, 1]]), [4.0, 2]).tolist()
    [1.0, 2.0]
    """
    c, lower = c_and_lower
    matrix = getattr(c_and_lower, "matrix", None)
    arrays = [(c, 2), (lower, 0), (b, RHS)] + ([] if matrix is None else [(matrix, 2)])
    is_stack = any(np.ndim(x) > core for x, core in ((c, 2), (b, 2)))
    lent = not is_stack and may_overwrite(overwrite_b, b, c, matrix)
    how = {"overwrite_b": lent, "check_finite": check_finite}
    if matrix is not None:
        how["norm"] = c_and_lower.norm
    return over_stacks(functools.partial(_solve_one, **how), *arrays, name="cho_solve")


def _solve_one(c, lower, b, matrix=None, *, overwrite_b, check_finite, norm=None):
    on_device, lower = is_cupy(c), bool(lower)
    solve = functools.partial(_solve_on_device if on_device else _cho_solve, (c, lower))

    def system():
        ops = ops_for(c) if on_device else numpy_ops
        if matrix is not None:
            return DenseSystem.of(ops, matrix, norm)
        if not on_device and len(c) > SMALL:
            return CholeskySystem.of(c, lower)
        triangle = (ops.xp.tril if lower else ops.xp.triu)(ops.xp.asarray(c))
        adjoint = triangle.conj().T
        return ProductSystem.of(ops, [triangle, adjoint] if lower else [adjoint, triangle])

    how = {"overwrite_b": overwrite_b, "check_finite": check_finite}
    return solved(solve, system, b, "cho_solve", **how)


def _solve_on_device(c_and_lower, b, overwrite_b=False, check_finite=True):
    from cupyx.scipy.linalg import solve_triangular

    c, lower = c_and_lower
    c, b = device_operands(c, b, {"c": c, "b": b} if check_finite else {})
    if not b.size:
        return b
    for trans in ("N", "C") if lower else ("C", "N"):
        b = solve_triangular(c, b, trans=trans, lower=lower)
    return b
