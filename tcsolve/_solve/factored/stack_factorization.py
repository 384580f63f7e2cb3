"""`StackFactorization`: verified solves, condition numbers and determinants of a factored stack."""

import time
from dataclasses import replace

import numpy as np

from tcsolve._backends.cpu.ops import NumpyOps
from tcsolve._backends.select import ops_for
from tcsolve._backends.transfer import brought
from tcsolve._checks import check_array, check_shapes, check_trans, require_finite, result_dtype
from tcsolve._errors import DeviceMemoryError
from tcsolve._outcome import raise_or_warn
from tcsolve._refine import stopping
from tcsolve._solution import HistoryPoint, Solution, distinct, of_slices
from tcsolve._solve.choice.placement import place_rhs
from tcsolve._solve.factored.fold import Fold
from tcsolve._solve.factored.separate_factors import SeparateFactors
from tcsolve._solve.factored.stack_facts import determinants_of_stack, rconds_of_stack
from tcsolve._solve.host import library as host_library
from tcsolve._solve.ladder.determinant import LogDeterminant
from tcsolve._solve.problem.trivial import solve_empty
from tcsolve._solve.vendor.factors import InParts, Paired, Turned
from tcsolve._solve.vendor.measure import MEASURED, measure
from tcsolve._solve.vendor.result import codes_of_slices
from tcsolve._solve.vendor.settle import clear_singular, settled
from tcsolve._solve.vendor.solve import answered
from tcsolve._solve.vendor.system import CONVERGED, ILL_CONDITIONED, NONFINITE, SEEN, System
from tcsolve._steps import guarded, note

__all__ = ["StackFactorization"]

# The primitives of the host, with LAPACK's factors of stacks as their `vendor`.  `solve` uses the plain
# `NumpyOps`, which have no vendor.
host_ops = NumpyOps()
host_ops.vendor = host_library


class StackFactorization:
    """The LU factors of each matrix of a stack, ready for any number of right-hand sides.

    `tcsolve.factor` makes it from an array of shape (..., n, n).  By default the factors are those of LAPACK
    on the host, and of cuBLAS and cuSOLVER on a device, in FP64.  With another precision, each matrix has
    factors as in a `Factorization`.  Every answer is verified for the matrices that were given.  Threads may
    share it.  On the CPU it can be copied and pickled.  On a device it cannot, and a forked child process
    cannot use it.

    Attributes
    ----------
    shape : tuple of int
        Shape of the stack, (..., n, n).
    dtype : dtype
        Dtype of the matrices.  Answers have the same dtype, unless b has a wider one.
    precision : str
        'fp64', or the names of the precisions of all matrices, joined by '+'.
    rungs : tuple of str
        Every precision that was tried.
    nbytes : int
        Number of bytes of the matrices and their factors.
    bytes_planned : int
        Number of bytes that was predicted before the factorization; see `Solution`.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import factor
    >>> f = factor(np.array([np.eye(3), 2 * np.eye(3)]))
    >>> f.shape, f.precision
    ((2, 3, 3), 'fp64')
    """

    def __init__(self, ops, a, factors, bytes_planned):
        self._ops, self._factors, self._planned = ops, factors, bytes_planned
        self._shape, self._a = a.shape, a.reshape(-1, *a.shape[-2:])
        self._rconds = self._determinants = None  # found when they are asked for

    @classmethod
    def of(cls, ops, a, precision="auto", *, nrhs=1, check_finite=True, moved_bytes=0):
        """Factor a (..., n, n), which is kept.

        Parameters
        ----------
        ops : Ops
        a : array, shape (..., n, n)
        precision : str or Plan
            With 'auto' and 'fp64', `ops.vendor` factors the stack, a long one in parts.
        nrhs : int
            Expected number of right-hand sides of a solve.
        check_finite : bool
            Raise an InputError if a holds NaN or Inf.
        moved_bytes : int
            Number of bytes of the copy of a that was made.
        """
        ops = host_ops if ops.vendor is None else ops
        if check_finite:
            require_finite(bool(ops.xp.isfinite(a).all()), "a")
        stack = a.reshape(-1, *a.shape[-2:])
        if getattr(precision, "update", precision) not in ("auto", "fp64"):
            separate = SeparateFactors.of(ops, stack, precision, nrhs)
            return cls(ops, a, separate, moved_bytes + separate.bytes_planned)
        planned = moved_bytes + _require_room(ops, a)
        factors, (m, n) = None, stack.shape[:2]
        if m:
            plan = ops.vendor.plan((m, n, nrhs), stack.dtype, "general", None, 0, factors=True)
            if m <= plan.together:
                factors = ops.vendor.factor(stack, "general", nrhs)
            else:
                factors = InParts.of(ops, stack, nrhs, plan.together)
            # This waits for the factors, so that other streams and threads can use them.
            ops.host(factors.info)
        return cls(ops, a, factors, planned)

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._a.dtype)
    bytes_planned = property(lambda self: self._planned)

    precision = property(lambda self: self._factors.precision if self._is_separate else "fp64")
    rungs = property(lambda self: self._factors.rungs if self._is_separate else ("fp64",))
    _is_separate = property(lambda self: type(self._factors) is SeparateFactors)

    @property
    def nbytes(self):
        return self._a.nbytes + (self._factors.nbytes if self._factors else 0)

    def __repr__(self):
        return f"<StackFactorization of {self.shape} {self.dtype}, precision {self.precision}>"

    def solve(self, b, *, trans=0, check_finite=True):
        """Return x with A x = b, verified; raise errors and give warnings as `tcsolve.solve` does.

        Takes the arguments of `StackFactorization.solve_ex`.

        Parameters
        ----------
        b : array_like, shape (n,) or (..., n, nrhs)
            The right-hand sides.
        trans, check_finite
            As in `solve_ex`.

        Returns
        -------
        x : array, shape (..., n) or (..., n, nrhs)
            The solutions, on the device of b.

        Raises
        ------
        InputError, DeviceError, DeviceMemoryError
            As in `solve_ex`.
        SingularError
            A pivot of a matrix is exactly zero in FP64; the message names the first such matrix.

        Warns
        -----
        LinAlgWarning
            rcond of a matrix is below machine epsilon, or not known.
        AccuracyWarning
            A backward error misses the bound, or x leaves the range of its dtype.

        Examples
        --------
        >>> import numpy as np
        >>> from tcsolve import factor
        >>> factor(np.array([np.eye(2), 2 * np.eye(2)])).solve([2.0, 4.0]).tolist()
        [[2.0, 4.0], [1.0, 2.0]]
        """
        solution = self._solution(b, trans, check_finite, reports=False)
        raise_or_warn(solution)
        return solution.x

    def solve_ex(self, b, *, trans=0, check_finite=True):
        """Return the `Solution` of A x = b; numerical failures are in its statuses and raise no error.

        Parameters
        ----------
        b : array_like, shape (n,) or (..., n, nrhs)
            The right-hand sides.  Not modified.  A 1-D b is the same vector for every matrix.  Any other b
            broadcasts with the stack as in `tcsolve.solve`.  A NumPy array, or an array on the device of the
            factors.
        trans : {0, 1, 2, 'N', 'T', 'C'}
            0 or 'N': solve A x = b.  1 or 'T': A^T x = b.  2 or 'C': A^H x = b.
        check_finite : bool
            True: raise an InputError if b holds NaN or Inf.  False: a column of x is NaN if
            that column of b holds NaN or Inf.

        Returns
        -------
        Solution
            Its x is on the device of b.  Its statuses and rconds have one entry for each system.  rcond is
            that of A, also for A^T.

        Raises
        ------
        InputError
            b has the wrong shape or dtype, is on another device, or holds NaN or Inf; or trans is unknown.
            Or the factors are not on the current device.
        DeviceError
            The device of the factors cannot be used now.
        DeviceMemoryError
            The device has too little free memory.

        Examples
        --------
        >>> import numpy as np
        >>> from tcsolve import factor
        >>> solution = factor(np.array([np.eye(2), np.zeros((2, 2))])).solve_ex([2.0, 4.0])
        >>> [status.name for status in solution.statuses]
        ['CONVERGED', 'SINGULAR']
        """
        return self._solution(b, trans, check_finite, reports=True)

    def rcond(self):
        """Estimate the reciprocal condition number of each matrix in the 1-norm.

        Returns
        -------
        ndarray of float64, shape (...)
            On the host.  0 if a matrix is singular or not finite.  NaN where `Factorization.rcond` returns
            NaN.

        Raises
        ------
        InputError, DeviceError, DeviceMemoryError
            As in `solve_ex`.

        Notes
        -----
        For factors in FP64, Higham's estimator runs for all matrices together.  It gives an upper bound of
        rcond that is nearly always within a factor of 3.  With another precision, each number is that of
        `Factorization.rcond`.

        Examples
        --------
        >>> import numpy as np
        >>> from tcsolve import factor
        >>> factor(np.array([np.eye(2), np.diag([1.0, 4.0])])).rcond().tolist()
        [1.0, 0.25]
        """
        return self._looked_up(self._find_rconds).reshape(self.shape[:-2]).copy()

    def slogdet(self):
        """Return the sign of each determinant, and the logarithm of its absolute value.

        Returns
        -------
        sign : ndarray, shape (...)
            ``det A / |det A|``, on the host; 0 if a matrix is singular, NaN if it is not finite.
        logabsdet : ndarray of float64, shape (...)
            Natural logarithm of ``|det A|``; -inf if a matrix is singular, NaN if it is not finite.

        Raises
        ------
        InputError, DeviceError, DeviceMemoryError
            As in `solve_ex`.

        Notes
        -----
        The result is a named tuple.

        Examples
        --------
        >>> import numpy as np
        >>> from tcsolve import factor
        >>> found = factor(np.array([np.eye(2), -np.eye(2), [[0.0, 1], [1, 0]]])).slogdet()
        >>> found.sign.tolist(), found.logabsdet.tolist()
        ([1.0, 1.0, -1.0], [0.0, 0.0, 0.0])
        """
        found = self._looked_up(self._find_determinants)
        return LogDeterminant(*(v.reshape(self.shape[:-2]).copy() for v in found))

    # ---- solving

    def _solution(self, b, trans, check_finite, reports):
        """Return the `Solution`.

        Without `reports`, `backward_error` of a long stack may have the bound instead of errors that meet it.
        """
        note("check")
        trans, b = check_trans(trans), check_array(b, "b")
        shape, vector = check_shapes(self._a.reshape(self.shape), b)
        dtype, here = result_dtype(self._a, b), place_rhs(self._ops, b)
        if 0 in shape:
            return solve_empty(here, shape, dtype, vector)
        ops_for(self._a)  # raises if the matrices are not on the current device
        start = time.perf_counter()
        columns = b.reshape(-1, 1) if vector else b
        with np.errstate(all="ignore"):
            found = guarded(self._ops, self._solve)(columns, dtype, trans, check_finite, reports)
        total = time.perf_counter() - start
        x = found.x if here.device == self._ops.device else self._ops.host(found.x)[0]
        return replace(found, x=x.reshape(shape), seconds={"solve": total, "total": total})

    def _solve(self, b, dtype, trans, check_finite, reports):
        """Return the `Solution` for b (..., n, k), with x (..., n, k) on the device of the factors."""
        ops, k = self._ops, b.shape[-1]
        fold = Fold.of(self.shape[:-2], b.shape[:-2])
        columns = fold.columns(ops.xp, ops.converted(brought(ops, b), dtype))
        bound, spoilt = stopping.target(dtype, self.shape[-1]), None
        part = self._answered(columns, dtype, trans, reports)
        if check_finite and distinct(part.codes).max() > ILL_CONDITIONED:
            require_finite(bool(ops.xp.isfinite(columns).all()), "b")
        if not fold.is_plain and (part.codes == NONFINITE).any():
            # NaN or Inf in one column changes nothing for the others.
            finite = ops.xp.isfinite(columns).all(axis=1)
            columns = ops.xp.where(finite[:, None], columns, 0)
            part = self._answered(columns, dtype, trans, reports)
            (spoilt,) = ops.host(~finite)
            part.x[...] = ops.xp.where(finite[:, None], part.x, ops.xp.nan)
            part = part._replace(error=np.where(spoilt, np.nan, part.error))
        x, error = fold.answers(ops.xp, part.x, k), fold.of_columns(part.error, k)
        codes, rconds = fold.of_matrices(part.codes), fold.of_matrices(part.rconds)
        if not fold.is_plain:
            codes = codes_of_slices(ops, x, error, bound, codes, rconds)
        if spoilt is not None:
            codes = np.where(fold.of_columns(spoilt, k).any(axis=-1), NONFINITE, codes)
        steps = fold.of_columns(part.steps, k)
        return Solution(
            x=x,
            precision=self.precision,
            rungs=self.rungs,
            iterations=steps,
            history=(HistoryPoint(self.precision, steps, error, False),),
            backward_error=error,
            bound=bound,
            bytes_planned=self.bytes_planned,
            device=ops.device,
            **of_slices(codes.astype(int), rconds),
        )

    def _answered(self, columns, dtype, trans, reports):
        """Return the `Part` of the systems with right-hand sides (m, n, K), with rcond of each matrix."""
        ops = self._ops
        if self._is_separate:
            part = self._factors.solved(ops.xp, columns, trans)
        else:
            matrices, factors = self._turned(dtype, trans)
            system = System(matrices, columns, "general", None, False, False, False)
            part = self._part(system, factors, settled if reports else answered)
            own = {"codes": part.codes, "error": part.error, "rconds": self._find_rconds()}
            part = part._replace(**{name: np.array(v) for name, v in own.items()})
            clear_singular(ops, system, part)
        return part._replace(codes=_with_condition(part.codes, part.rconds, np.finfo(dtype).eps))

    def _turned(self, dtype, trans):
        """Return the matrices of the equations in `dtype`, and their factors."""
        ops, factors = self._ops, self._factors
        conjugated, a = trans == 2 and self.dtype.kind == "c", ops.converted(self._a, dtype)
        if dtype.kind == "c" != self.dtype.kind:
            factors = Paired(ops.xp, factors)
        if not trans:
            return a, factors
        a = ops.xp.swapaxes(a, 1, 2)
        return a.conj() if conjugated else a, Turned(ops.xp, factors, conjugated)

    def _part(self, system, factors, settle):
        """Return the `Part` of the systems, as `settle` finds it from their norms."""
        ops, (m, _, k) = self._ops, system.b.shape
        rows = ops.xp.swapaxes(system.b, 1, 2)
        made = ops.converted(rows, np.result_type(rows.dtype, np.float64))
        # The solve may overwrite its argument, so it gets a copy.
        made = ops.xp.array(rows, order="C") if made is rows else ops.xp.ascontiguousarray(made)
        y = factors.solve(made)
        board = ops.xp.zeros((SEEN + MEASURED + 2 * k, m))
        system, x = measure(ops, system, y, self._factors.info, board)
        board = ops.host(board)[0] if settle is settled else board
        return settle(ops, system, x, factors, board)

    # ---- the matrices

    def _looked_up(self, find):
        """Return find(); raise an error if the device is not the current one, or if memory runs out."""
        ops_for(self._a)  # raises if the matrices are not on the current device
        with np.errstate(all="ignore"):
            return guarded(self._ops, find)()

    def _find_rconds(self):
        """Return rcond of each matrix, (m,)."""
        if self._rconds is None:
            separate = self._is_separate
            given = self._ops, self._a, self._factors
            self._rconds = self._factors.rconds() if separate else rconds_of_stack(*given)
        return self._rconds

    def _find_determinants(self):
        """Return the signs and the logarithms of the determinants, (m,) each."""
        if self._determinants is None:
            given, wide = (
                (self._ops, self._a, self._factors),
                np.result_type(self.dtype, np.float64),
            )
            separate = self._factors.determinants(wide) if self._is_separate else None
            self._determinants = separate or determinants_of_stack(*given)
        return self._determinants

    # ---- copies

    def __getstate__(self):
        if self._ops.device != "cpu":
            raise TypeError(
                "factors on a device cannot be copied or pickled; threads may share them, and "
                "other processes must factor again"
            )
        return {name: value for name, value in vars(self).items() if name != "_ops"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._ops = host_ops


def _require_room(ops, a):
    """Return the bytes of the factors of a, or raise a DeviceMemoryError if the device has fewer."""
    needed = a.size * np.result_type(a.dtype, np.float64).itemsize
    if ops.device == "cuda" and needed > (free := ops.free_bytes(needed)):
        raise DeviceMemoryError(
            f"the factors of a stack of shape {a.shape} need {needed:,} more bytes on the device, "
            f"{free:,} are free; factor parts of the stack, or use device='cpu'"
        )
    return needed


def _with_condition(codes, rconds, eps):
    """Return the codes with ILL_CONDITIONED for converged systems with an rcond below epsilon."""
    return np.where((codes == CONVERGED) & ~(rconds >= eps), ILL_CONDITIONED, codes)
