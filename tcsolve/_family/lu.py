"""`lu_factor` and `lu_solve`."""

import functools

import numpy as np
import scipy.linalg

from tcsolve._arrays import is_cupy
from tcsolve._backends.select import numpy_ops, ops_for
from tcsolve._checks import check_trans, require_finite, result_dtype
from tcsolve._family.device_memory import guards_memory
from tcsolve._family.stacks import RHS, over_stacks
from tcsolve._family.systems import DenseSystem, LUSystem, ProductSystem, norms_of, transposed
from tcsolve._family.verification import device_operands, may_overwrite, solved
from tcsolve._solve.api import factor
from tcsolve._solve.choice.cost_model import first_update, rates_for
from tcsolve._solve.factored.factorization import has_zero_pivot
from tcsolve._solve.verify.long_double_residual import SMALL

__all__ = ["LUFactors", "lu_factor", "lu_solve"]

# SciPy's own functions; `installed` may rebind these names in scipy.linalg.
_lu_factor, _lu_solve = scipy.linalg.lu_factor, scipy.linalg.lu_solve


class LUFactors(tuple):
    """The pair (lu, piv) of `scipy.linalg.lu_factor`, with what a verified solve needs.

    Attributes
    ----------
    matrix : array, shape (..., n, n), or None
        A copy of the matrix; None if the matrix is not square.
    factorization : Factorization or None
        The factors that `lu_solve` uses.  If there are such factors, lu and piv are computed only when they
        are first read, in the precision of the matrix.
    """

    def __new__(cls, pair, matrix, factorization=None):
        self = super().__new__(cls, pair or (None, None))
        self.matrix, self.factorization, self._pair = matrix, factorization, pair and tuple(pair)
        self._norms = None
        return self

    def norm(self, trans):
        """Return the infinity norm of the matrix, or of its transpose; None for a stack or a small matrix."""
        if self.matrix is None or self.matrix.ndim > 2 or len(self.matrix) <= SMALL:
            return None
        if self._norms is None:
            ops = ops_for(self.matrix) if is_cupy(self.matrix) else numpy_ops
            self._norms = norms_of(ops, self.matrix)
        return self._norms[min(trans, 1)]

    def _found(self):
        if self._pair is None:
            self._pair = tuple(_pair_of(self.matrix))
        return self._pair

    def __iter__(self):
        return iter(self._found())

    def __getitem__(self, index):
        return self._found()[index]

    def __repr__(self):
        return repr(self._found())

    def __add__(self, other):
        return self._found() + other

    def __radd__(self, other):
        return other + self._found()

    def __mul__(self, number):
        return self._found() * number

    __rmul__ = __mul__

    def __contains__(self, item):
        return item in self._found()

    def __eq__(self, other):
        return self._found() == (other._found() if isinstance(other, LUFactors) else other)

    def __ne__(self, other):
        return not self == other

    def count(self, item):
        return self._found().count(item)

    def index(self, item, *limits):
        return self._found().index(item, *limits)

    def __reduce__(self):
        return LUFactors, (self._pair, self.matrix, self.factorization)


@guards_memory
def lu_factor(a, overwrite_a=False, check_finite=True):
    """Factor a matrix into P L U, to solve with `lu_solve`.

    This function replaces `scipy.linalg.lu_factor`.

    Parameters
    ----------
    a : array_like, shape (..., m, n)
        The matrix, or a stack of matrices; NumPy or CuPy.
    overwrite_a : bool
        Allow writing the factors to the memory of a.  `lu_solve` uses a copy of a in any case.
    check_finite : bool
        Raise a ValueError if a holds NaN or Inf.

    Returns
    -------
    (lu, piv) : LUFactors
        A tuple as SciPy's: L and U in one array (..., m, n), and the 0-based row swaps (..., min(m, n)).  It
        also keeps a copy of a square A, which `lu_solve` verifies with.

    Raises
    ------
    ValueError
        a holds NaN or Inf, or is an empty stack.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    LinAlgWarning
        A pivot is exactly zero.  For CuPy arrays, CuPy gives a RuntimeWarning instead.

    Notes
    -----
    A single square matrix in FP32 or FP64 is factored by `tcsolve.factor` if it is on a GPU, or if a
    precision below its own is predicted to be fastest.  `lu_solve` refines with these factors.  Then lu and
    piv are computed, in the precision of A, only when the tuple is unpacked or indexed.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import lu_factor, lu_solve
    >>> factors = lu_factor(np.array([[2.0, 1], [1, 3]]))
    >>> lu_solve(factors, [3.0, 4]).round(12).tolist()
    [1.0, 1.0]
    """
    if not is_cupy(a):
        a = np.asarray_chkfinite(a) if check_finite else np.asarray(a)
    if _is_worth(a):
        matrix = a.copy()
        found = factor(matrix, overwrite_a=True, check_finite=check_finite)
        if not has_zero_pivot(found):
            return LUFactors(None, matrix, found)
    is_square = a.ndim >= 2 and a.shape[-1] == a.shape[-2]
    matrix = a.copy() if is_square else None
    lent = may_overwrite(overwrite_a, a)
    pair = _pair_of(a, overwrite_a=lent, check_finite=check_finite)
    if matrix is not None:
        matrix = matrix.astype(pair[0].dtype, copy=False)
    return LUFactors(pair, matrix)


def _is_worth(a):
    """Tell whether `factor` is used: on a GPU, or if a lower precision is predicted to be faster."""
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not a.size or a.dtype.char not in "fdFD":
        return False
    ops, own = ops_for(a), "fp64" if a.dtype.char in "dD" else "fp32"
    return ops.device == "cuda" or first_update(a, 1, "auto", rates_for(ops)) != own


@guards_memory
def _pair_of(a, overwrite_a=False, check_finite=False):
    """Return (lu, piv) by SciPy or CuPy."""
    if not is_cupy(a):
        return _lu_factor(a, overwrite_a=overwrite_a and a.ndim == 2, check_finite=check_finite)
    from cupyx.scipy.linalg import lu_factor as on_device

    if check_finite:
        require_finite(bool(ops_for(a).xp.isfinite(a).all()), "a")
    a = ops_for(a).converted(a, result_dtype(a, a))
    one = functools.partial(on_device, check_finite=False)
    return over_stacks(one, (a, 2), name="lu_factor")


@guards_memory
def lu_solve(lu_and_piv, b, trans=0, overwrite_b=False, check_finite=True):
    """Solve A x = b, A^T x = b or A^H x = b with the result of `lu_factor`, and verify x.

    This function replaces `scipy.linalg.lu_solve`.

    Parameters
    ----------
    lu_and_piv : (array, array)
        The result of `lu_factor`, or of SciPy's or CuPy's.
    b : array_like, shape (n,) or (..., n, k)
        The right-hand sides.
    trans : {0, 1, 2, 'N', 'T', 'C'}
        0 or 'N': A x = b.  1 or 'T': A^T x = b.  2 or 'C': A^H x = b.
    overwrite_b : bool
        Allow writing x to the memory of b.
    check_finite : bool
        Raise a ValueError if b holds NaN or Inf.

    Returns
    -------
    x : array, shape (..., n) or (..., n, k)

    Raises
    ------
    LinAlgError
        If `tcsolve.factor` made the factors: they were too inaccurate, and the more precise factorization
        that replaced them has a pivot that is exactly zero.
    ValueError
        The shapes do not fit, a stack is empty, b holds NaN or Inf, or trans is unknown.
    DeviceError, DeviceMemoryError
        As in `solve`, for CuPy arrays.

    Warns
    -----
    LinAlgWarning
        If `tcsolve.factor` made the factors: rcond is below machine epsilon, or not known.
    AccuracyWarning
        The backward error of x is above ``u sqrt(n)``, see `Solution`.

    Notes
    -----
    The backward error is measured with the matrix that `lu_factor` kept.  The tuples of SciPy and CuPy have
    no matrix; then it is measured with the product of the factors, relative to ``|| |L| |U| |x| ||``.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.linalg
    >>> from tcsolve import lu_solve
    >>> lu_solve(scipy.linalg.lu_factor(np.diag([1.0, 2.0])), [1.0, 4]).tolist()
    [1.0, 2.0]
    """
    trans = check_trans(trans)
    ours = isinstance(lu_and_piv, LUFactors)
    if ours and lu_and_piv.factorization is not None:
        solve = functools.partial(
            lu_and_piv.factorization.solve, trans=trans, check_finite=check_finite
        )
        return over_stacks(solve, (b, RHS), name="lu_solve")
    lu, piv = lu_and_piv
    lent = may_overwrite(overwrite_b, b, lu, piv, lu_and_piv.matrix if ours else None)
    how = {"trans": trans, "overwrite_b": lent, "check_finite": check_finite}
    arrays = [(lu, 2), (piv, 1), (b, RHS)]
    if ours and lu_and_piv.matrix is not None:
        arrays.append((lu_and_piv.matrix, 2))
        how["norm"] = lu_and_piv.norm(trans)
    is_stack = any(np.ndim(x) > 2 for x, _ in arrays)
    if is_stack:
        how["overwrite_b"] = False
    return over_stacks(functools.partial(_solve_one, **how), *arrays, name="lu_solve")


def _solve_one(lu, piv, b, matrix=None, *, trans, overwrite_b, check_finite, norm=None):
    on_device = is_cupy(lu)
    routine = _solve_on_device if on_device else _lu_solve
    solve = functools.partial(routine, (lu, piv), trans=trans)

    def system():
        ops = ops_for(lu) if on_device else numpy_ops
        if matrix is not None:
            return DenseSystem.of(ops, transposed(matrix, trans), norm)
        if not on_device and len(lu) > SMALL:
            return LUSystem.of(lu, piv, trans)
        return ProductSystem.of(ops, _factors_of(ops.xp, lu, *ops.host(piv), trans))

    how = {"overwrite_b": overwrite_b, "check_finite": check_finite}
    return solved(solve, system, b, "lu_solve", **how)


def _solve_on_device(lu_and_piv, b, *, trans, overwrite_b=False, check_finite=True):
    """Solve as SciPy does, by CuPy.

    CuPy's function converts b to the dtype of lu, and does not find NaN or Inf in complex arrays.  So the
    conversion to a common dtype and the check are done here.
    """
    from cupyx.scipy.linalg import lu_solve as on_device

    lu, piv = lu_and_piv
    lu, b = device_operands(lu, b, {"b": b} if check_finite else {})
    if not b.size:
        return b
    return on_device((lu, piv), b, trans=trans, check_finite=False)


def _factors_of(xp, lu, piv, trans):
    """Return the factors P L and U; for `trans` 1 or 2, those of the transpose or the adjoint."""
    order = list(range(len(lu)))
    for i, j in enumerate(np.asarray(piv).tolist()):
        order[i], order[int(j)] = order[int(j)], order[i]
    pl = xp.empty_like(lu)
    pl[xp.asarray(order)] = xp.tril(lu, -1) + xp.eye(len(lu), dtype=lu.dtype)
    factors = [pl, xp.triu(lu)]
    if trans == 0:
        return factors
    turned = [f.T for f in reversed(factors)]
    return turned if trans == 1 else [f.conj() for f in turned]
