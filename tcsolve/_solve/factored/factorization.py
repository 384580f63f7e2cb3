"""`Factorization`: verified solves, the condition number and the determinant of a factored matrix."""

import copy
import functools
from dataclasses import replace

import numpy as np

from tcsolve._backends.select import ops_for
from tcsolve._checks import check_array, check_shapes, check_trans, result_dtype
from tcsolve._errors import InputError
from tcsolve._locks import ForkSafeLock
from tcsolve._outcome import raise_or_warn
from tcsolve._solution import Solution
from tcsolve._solve.choice.placement import place_rhs
from tcsolve._solve.factored.replacement import Replacement
from tcsolve._solve.ladder.condition import ConditionEstimate
from tcsolve._solve.ladder.determinant import log_determinant
from tcsolve._solve.ladder.ladder import Ladder
from tcsolve._solve.ladder.residuals import BY_NAME
from tcsolve._solve.ladder.transposed import TransposedLadder
from tcsolve._solve.ladder.verified import Solve
from tcsolve._solve.problem.request import require_residual
from tcsolve._solve.problem.trivial import solve_empty
from tcsolve._solve.problem.zero_pivots import if_singular
from tcsolve._steps import guarded, note

__all__ = ["Factorization", "has_zero_pivot", "ladder_of", "refined_by"]


def in_turn(method):
    """Decorate a method of `Factorization`: only one thread at a time runs such a method of an object.

    The lock is needed because a method may replace the factors.  When device memory runs out, the method
    raises a DeviceMemoryError.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        system = self._ladder.system
        ops_for(system.a)  # raises if the matrix is not on the current device
        # Every result is checked, so the floating-point settings of the caller must not raise or warn inside.
        with self._lock, np.errstate(all="ignore"):
            self._forget_interrupted()
            return guarded(system.ops, method)(self, *args, **kwargs)

    return call


class Factorization:
    """The LU factors of a matrix, ready for any number of right-hand sides.

    `tcsolve.factor` makes it.  If a right-hand side does not converge with the current factors, the next more
    precise factorization replaces them, for this solve and all later ones.  On the CPU, with
    ``precision='auto'`` and a matrix in FP64, each solve with FP32 factors is predicted to lose some time
    compared with FP64 factors.  When the sum of these losses reaches the additional time of an FP64
    factorization, FP64 factors replace the FP32 factors.  Threads may share a factorization; its methods run
    one at a time.  On the CPU it can be copied and pickled.  On a device it cannot, and a forked child
    process cannot use it.

    Attributes
    ----------
    shape : tuple of int
        Shape of the matrix.
    dtype : dtype
        Dtype of the matrix.  Answers have the same dtype, unless b has a wider one.
    precision : str
        Precision of the current factors: 'fp16', 'fp16x3', ..., 'fp64'.
    rungs : tuple of str
        Every precision that was tried so far, in order.
    nbytes : int
        Number of bytes of the matrix and its factors.
    bytes_planned : int
        Largest number of bytes that was predicted before a factorization; see `Solution`.
    replaced_after : int or None
        Number of solves after which FP64 factors replaced FP32 factors.  None if that has not happened.

    Examples
    --------
    >>> import numpy as np
    >>> from tcsolve import factor
    >>> f = factor(np.diag([1.0, 2.0, 4.0]))
    >>> f.shape, f.dtype, f.precision
    ((3, 3), dtype('float64'), 'fp64')
    """

    def __init__(self, ladder, condition, replacement):
        self._ladder, self._condition, self._lock = ladder, condition, ForkSafeLock()
        self._determinant, self._replacement = None, replacement

    @classmethod
    def of(cls, ops, a, precision, **options):
        """Factor a; the options are those of `Ladder.begin`."""
        ladder = Ladder.begin(ops, a, precision, **options)
        if ladder.rung:
            ladder.make_valid()  # waits for the factors, so that other streams and threads can use them
        return cls(ladder, ConditionEstimate(ladder, least=0.0), Replacement.of(ladder, precision))

    shape = property(lambda self: self._ladder.system.a.shape)
    dtype = property(lambda self: self._ladder.system.a.dtype)
    precision = property(lambda self: self._ladder.precision)
    rungs = property(lambda self: self._ladder.rungs)
    bytes_planned = property(lambda self: self._ladder.memory.planned)
    replaced_after = property(lambda self: self._replacement.after)

    @property
    def nbytes(self):
        system, rung = self._ladder.system, self._ladder.rung
        held = system.a.nbytes + (rung.factors.nbytes if rung else 0)
        return held + (system.matrix.nbytes if system.matrix is not system.a else 0)

    def __repr__(self):
        return f"<Factorization of {self.shape} {self.dtype}, precision {self.precision}>"

    def solve(self, b, *, trans=0, check_finite=True, residual="fp64"):
        """Return x with A x = b, verified; raise errors and give warnings as `tcsolve.solve` does.

        Takes the arguments of `Factorization.solve_ex`.

        Parameters
        ----------
        b : array_like, shape (n,) or (n, nrhs)
            The right-hand sides.
        trans, check_finite, residual
            As in `solve_ex`.

        Returns
        -------
        x : array, shape of b
            The solution, on the device of b.

        Raises
        ------
        InputError, DeviceError, DeviceMemoryError
            As in `solve_ex`.
        SingularError
            A pivot is exactly zero in FP64.

        Warns
        -----
        LinAlgWarning
            rcond is below machine epsilon, or not known.
        AccuracyWarning
            The backward error of x misses the bound, x leaves the range of its dtype, or x is not as accurate
            as a double-double residual promises.

        Examples
        --------
        >>> import numpy as np
        >>> from tcsolve import factor
        >>> f = factor(np.array([[1.0, 2.0], [0.0, 4.0]]))
        >>> f.solve([3.0, 4.0]).tolist(), f.solve([1.0, 6.0], trans=1).tolist()
        ([1.0, 1.0], [1.0, 1.0])
        """
        found = self._found(b, trans, check_finite, residual, report=False)
        if not isinstance(found, Solution):
            return found
        raise_or_warn(found)
        return found.x

    def solve_ex(self, b, *, trans=0, check_finite=True, residual="fp64"):
        """Return the `Solution` of A x = b; numerical failures are in its status and raise no error.

        Parameters
        ----------
        b : array_like, shape (n,) or (n, nrhs)
            The right-hand sides.  Not modified.  A NumPy array, or an array on the device of the factors.
        trans : {0, 1, 2, 'N', 'T', 'C'}
            0 or 'N': solve A x = b.  1 or 'T': A^T x = b.  2 or 'C': A^H x = b.
        check_finite : bool
            True: raise an InputError if b holds NaN or Inf.  False: a column of x is NaN if
            that column of b holds NaN or Inf.
        residual : {'fp64', 'double-double'}
            As in `tcsolve.solve`.

        Returns
        -------
        Solution
            Its x is on the device of b.  Its rcond is that of A, also for A^T.

        Raises
        ------
        InputError
            b has the wrong shape or dtype, is on another device, or holds NaN or Inf; or trans or residual
            is unknown.  Or the factors are not on the current device.
        DeviceError
            The device of the factors cannot be used now.
        DeviceMemoryError
            The device has too little free memory.

        Examples
        --------
        >>> import numpy as np
        >>> from tcsolve import factor
        >>> solution = factor(np.diag([1.0, 2.0])).solve_ex(np.ones((2, 3)))
        >>> solution.status.name, solution.x.shape, solution.backward_error.shape
        ('CONVERGED', (2, 3), (3,))
        """
        return self._found(b, trans, check_finite, residual, report=True)

    def _found(self, b, trans, check_finite, residual, *, report):
        """Return the `Solution`; without `report`, it may be x alone, if there is nothing to warn of."""
        system, trans = self._ladder.system, check_trans(trans)
        require_residual(residual)
        b, dtype = _check_rhs(system, b)
        here = place_rhs(system.ops, b)
        if b.size == 0:
            return solve_empty(here, b.shape, dtype, b.ndim < 2)
        how = check_finite, here, BY_NAME[residual], trans > 0
        if trans == 2 and system.is_complex:  # A^H x = b is A^T conj(x) = conj(b)
            solution = self._solve(b.conj(), dtype, *how, report=True)
            return replace(solution, x=solution.x.conj())
        return self._solve(b, dtype, *how, report=report)

    @in_turn
    def _solve(self, b, dtype, check_finite, here, residual, transposed, *, report):
        """Do what `_found` does, for a checked b; x is on the device of `here`."""
        note = self._replacement.begin(self._ladder, self._condition)
        ladder = TransposedLadder(self._ladder) if transposed else self._ladder
        solve = Solve(ladder, self._condition, dtype, residual)
        if not report and (plain := solve.plain_answer(b)):
            x, steps = plain
            self._replacement.count(self._ladder, steps)
            return x
        solution = solve.solution(b, check_finite)
        self._replacement.count(self._ladder, solution.iterations)
        solution = replace(solution, note=note) if note else solution
        ops, matrix = self._ladder.system.ops, self._ladder.system.matrix
        solution = if_singular(ops, matrix, solution)
        return solution if here is ops else replace(solution, x=ops.host(solution.x)[0])

    @in_turn
    def rcond(self):
        """Estimate the reciprocal condition number in the 1-norm.

        Returns
        -------
        float
            0 if A is singular or not finite.  NaN if the factors are too coarse for an estimate, and the
            plan forbids a more precise factorization.

        Raises
        ------
        InputError, DeviceError, DeviceMemoryError
            As in `solve_ex`.

        Notes
        -----
        1. Higham's estimator runs with the factors.  It gives an upper bound of rcond that is nearly always
           within a factor of 3.
        2. Factors of roundoff u do not show an rcond below about u.  So an estimate near u is tested by
           products with A, unless the factors are in FP64.  The test is left out if A is scaled, or if the
           factors are less precise than those of 'fp16x3'.
        3. If the estimate is near u, and its test is left out or does not confirm it, the norm of the
           inverse is sampled by refined solves.  Their right-hand sides are two random vectors, and the unit
           vector of the largest column of the inverse that the estimator found.  The sample is right within a
           factor of about sqrt(n).  Very rarely, the test rejects an estimate that is not near u.  Then the
           norm is sampled, too.
        4. If these solves do not converge, or if the estimate or the sample is near machine epsilon, A is
           factored by the next rung that can show such an rcond, up to FP64.

        Examples
        --------
        >>> from tcsolve import factor
        >>> factor([[1.0, 0.0], [0.0, 4.0]]).rcond()
        0.25
        """
        return self._condition.rcond()

    @in_turn
    def slogdet(self):
        """Return the sign of the determinant, and the logarithm of its absolute value.

        Returns
        -------
        sign : float or complex
            ``det A / |det A|``; 0 if the matrix is singular, NaN if it is not finite.
        logabsdet : float
            Natural logarithm of ``|det A|``; -inf if the matrix is singular, NaN if it is not finite.

        Raises
        ------
        InputError, DeviceError, DeviceMemoryError
            As in `solve_ex`.

        Notes
        -----
        The result is a named tuple.  The current factors are used if they are in FP64.  Other factors are
        used if A is real and has at least 64 rows, and an estimate with random vectors shows eight correct
        digits of logabsdet.  Otherwise A is factored in FP64; these factors are not kept.

        Examples
        --------
        >>> from tcsolve import factor
        >>> sign, logabsdet = factor([[0.0, 1.0], [1.0, 0.0]]).slogdet()
        >>> float(sign), float(logabsdet)
        (-1.0, 0.0)
        """
        if self._determinant is None:
            self._determinant = log_determinant(self._ladder)
        return self._determinant

    # ---- copies and forks

    def __getstate__(self):
        if self._ladder.system.ops.device != "cpu":
            raise TypeError(
                "factors on a device cannot be copied or pickled; threads may share them, and "
                "other processes must factor again"
            )
        with self._lock:
            self._forget_interrupted()
            self._ladder.finish()
            ladder = copy.copy(self._ladder)  # it can take its next rung independently
            return {
                "_ladder": ladder,
                "_condition": self._condition.with_ladder(ladder),
                "_determinant": self._determinant,
                "_replacement": copy.copy(self._replacement),
            }

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = ForkSafeLock()

    def _forget_interrupted(self):
        """Drop the factors if another thread was using them at a fork; they are recomputed when needed."""
        if self._lock.interrupted:
            self._ladder.forget()
            self._lock.interrupted = False


def ladder_of(factorization):
    """Return the `Ladder` of a `Factorization`."""
    return factorization._ladder


def refined_by(factorization, **fields):
    """Return a copy of a `Factorization` on the host that shares its factors; its plan has other `fields`.

    The fields must be those of the refinement, on which the factors do not depend.
    """
    twin = copy.copy(factorization)
    twin._ladder.plan = replace(twin._ladder.plan, **fields)
    return twin


def has_zero_pivot(factorization):
    """Tell whether the current factors of a `Factorization` have a bad pivot; see `Rung.bad_pivot`."""
    ladder = factorization._ladder
    return ladder.system.finite and bool(ladder.make_valid().bad_pivot)


def _check_rhs(system, b):
    """Return b as an array, and the dtype of x, or raise an InputError."""
    note("check")
    b, n = check_array(b, "b"), system.a.shape[0]
    if b.ndim > 2:
        raise InputError(
            f"b has shape {b.shape}; a factorization solves for ({n},) or ({n}, nrhs): loop over the stack"
        )
    check_shapes(system.a, b)
    return b, result_dtype(system.a, b)
