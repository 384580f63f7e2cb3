"""The primitives of stacks and of structured matrices.

A GPU has all of them.  The host has only those that the LU of a stack needs
(`tcsolve._solve.host.library`).
"""

from typing import Any, NamedTuple, Protocol

__all__ = ["StackFactors", "StackPlan", "Stacks"]


class StackFactors(Protocol):
    """The factors of a stack of m matrices.

    Attributes
    ----------
    info : array of int32, shape (m,)
        Nonzero for a matrix if its factorization broke down, else zero.
    nbytes : int
        The bytes that the factors keep; factors of matrices that are not general need not have this.
    """

    info: Any
    nbytes: int

    def solve(self, rhs, adjoint=False):
        """Return A**-1 (or A**-H) times each row rhs[s, j]; rhs (m, c, n) may be overwritten.

        rhs is contiguous, in FP64 or complex128.
        """

    def taken(self, which):
        """Return the factors of the matrices with the numbers `which`.

        Factors of a single matrix need not have this method.
        """


class StackPlan(NamedTuple):
    """How a backend solves the systems of a stack, or a single system.

    Attributes
    ----------
    launch_bytes : int or None
        The bytes that `Stacks.solve_and_judge` allocates for its factors.  None if the systems do not fit
        into one launch, or if other methods are faster.
    together : int
        The largest number of systems that one call of `Stacks.factor` or `Stacks.factor_and_solve` should
        take.
    work_bytes : int
        The bytes that are allocated besides the results and an n x n matrix of factors for each system.  The
        number is negative if less than these matrices is allocated: if no factors are kept, as in an
        elimination, or only one triangle of them.  For many complex columns of one system, it is the bytes of
        inverses and of planes: the real matrices u, v and u + v for a complex matrix u + i v.
    """

    launch_bytes: int | None
    together: int
    work_bytes: int


class Stacks(Protocol):
    """What a backend does with stacks; an algorithm finds it as `ops.vendor`.

    Attributes
    ----------
    MEASURED_COLUMNS : int
        Largest number of right-hand sides for `measure_large` to be fast with one system; 0 if there is no
        such function.
    """

    MEASURED_COLUMNS: int

    def plan(self, shape, dtype, kind, band, probes, *, alone=False, factors=False):
        """Return the `StackPlan` of some systems.

        Parameters
        ----------
        shape : tuple of int
            (m, n, k): the numbers of systems, of unknowns, and of right-hand sides of a system.
        dtype, kind, band
            The dtype of a, and the arguments `kind` and `band` of `solve_at_once`.
        probes : int
            Number of random vectors that are solved for besides the right-hand sides.
        alone : bool
            True for one system that is no stack.
        factors : bool
            The factors will be used for other right-hand sides, too.
        """

    # ---- structures ------------------------------------------------------------

    def read_as(self, a, below, above, mirror, seen):
        """Return the full matrices that a band of a (m, n, n) describes; fill `seen` with facts about a.

        Entries with -below <= j - i <= above are read.  Other entries of the result are zero (mirror 0),
        the entry on the other side of the diagonal (mirror 1), or its conjugate (mirror 2).  For mirror 2,
        the diagonal of the result is real.

        Parameters
        ----------
        a : array, shape (m, n, n)
        below, above : int
            Numbers of diagonals below and above the main one that are read.
        mirror : {0, 1, 2}
            See above.
        seen : array, shape (5, m), float64, contiguous
            Zeros before the call.  Receives for each matrix: the largest difference between an entry that
            is not read and the entry of the result; the largest |a_ij| that is read; 1 if an entry that is
            not read is not zero, or if, for mirror 2, a diagonal entry has an imaginary part larger than
            rounding errors; 1 if any entry is NaN or Inf; 1 if a diagonal entry is zero.  The first three
            ignore NaN.  For mirror 2, the first is also at least twice each imaginary part on the diagonal.
        """

    # ---- solves by one launch --------------------------------------------------

    def solve_at_once(self, a, b, kind, band, bound, board, *, alone=False, exact=False):
        """Return x of A x = b for a stack of small systems, and fill `board` with its verification.

        Parameters
        ----------
        a : array, shape (m, n, n)
        b : array, shape (m, n, k)
            Of the dtype of a.
        kind : str
            The kind of factors, as in `factor`, of the matrix that is read.
        band : tuple of int or None
            (below, above, mirror), as in `read_as`; None if all entries are read.
        bound : float
            Bound on max |b - A x| / (||A|| max |x|).  Each column of x that misses it is corrected, by some
            kernels only once.
        board : array, shape (9 + 2 k, m), float64, contiguous
            Receives the rows `seen` of `read_as`, then the rows `out` of `measure`.  If all entries are
            read, only the fourth of the rows `seen` has a meaning.  The third row of `out` has the largest
            1-norm of A**-1 g for one or more random g, or, from kernels that invert A in FP32, the 1-norm of
            that inverse.  With `exact`, or if rcond may be below epsilon, it has the 1-norm of A**-1, or a
            close lower bound.  The fourth has info: the step at which the factorization broke down, or
            0.
        alone : bool
            True for one system that is no stack.  Its x may have other bits than as a system of a stack.
        exact : bool
            See `board`.
        """

    def solve_and_judge(self, a, b, kind, band, limits, *, alone=False):
        """Return (x, the numbers of the doubtful systems, their board) for a stack of small systems.

        The arguments, except for `limits`, are those of `solve_at_once`, and x has the same bits.  x is on
        the device.  The numbers, an increasing array of int, and the board are on the host.  The board of
        `solve_at_once` has a column for each system; this board has only the columns of the doubtful systems.
        It is None if no system is doubtful, if many are, and for a single system.

        A system is doubtful if A is singular or not finite, if A contradicts its structure, or if a number is
        outside of the limits.  The limits are (largest backward error, smallest 1 / (||A||_1 ||y||_1),
        largest norm of A and of x, largest difference of mirror images).  Here ||y||_1 is the third of the
        rows `out` that `solve_at_once` stores in the board.  The infinity norm of A must also be larger than
        the reciprocal of the third limit, and so must max |x|, unless b and x are 0.  The last limit is
        relative to the largest |a_ij|; it is -1 if entries that are not read must be zero.
        """

    # ---- factors by the libraries ----------------------------------------------

    def factor(self, a, kind, columns, careful=False):
        """Return the factors of a stack (see `StackFactors`).

        Parameters
        ----------
        a : array, shape (m, n, n)
            Not modified.  float32 is converted to FP64, complex64 to complex128.
        kind : {'general', 'positive definite', 'lower triangular', 'upper triangular', 'diagonal'}
            Entries outside of a triangle, or of a diagonal, are not read.  For 'positive definite' both
            triangles must be there.
        columns : int
            Expected number of right-hand sides of a solve.
        careful : bool
            Do not use inverses of diagonal blocks.  They lose digits if a block is ill-conditioned, and are
            not finite if a pivot is subnormal.  For one large matrix that is positive definite, or complex
            with many right-hand sides, they may be used all the same, if they are accurate enough.
        """

    def factor_and_solve(
        self, a, kind, b, probes, *, alone=False, band=None, seen=None, copies=False
    ):
        """Return (factors, y, the matrices that were read), for a stack.

        The rows of y (m, k + probes, n) are A**-1 times the columns of b (m, n, k), then A**-1 times `probes`
        random vectors, at most two.  Their entries are uniform, with mean 0 and variance 1, and the same in
        every call.

        Parameters
        ----------
        a, kind
            As in `factor`.
        b : array, shape (m, n, k)
            Of the dtype of a; not modified.
        probes : int
            Number of random vectors, at most two.
        alone : bool
            As in `plan`.
        band, seen
            The arguments (below, above, mirror) and `seen` of `read_as`, if only a band of a is read.  Then
            the matrices that were read are a copy, with all entries, or a itself.  If a itself is read as a
            triangle or a diagonal, `seen` is not filled.
        copies : bool
            Whether the returned matrices must have all entries.  Then a itself is returned only if there is
            no band.
        """

    # ---- verification ----------------------------------------------------------

    def measure(self, a, x, b, y, info, out, *, residuals=None, known=None):
        """Fill `out` with the norms that verify the solutions x of A x = b.

        Parameters
        ----------
        a : array, shape (m, n, n)
        x, b : array, shape (m, n, k)
            They have the dtype of a.
        y : array, shape (m, c, n)
            A**-1 g for c vectors g of each matrix, in FP64 or complex128; y[s] is contiguous.
        info : array of int32, shape (m,), or None
            The info of the factorizations.
        out : array, shape (4 + 2 k, m), float64, contiguous
            Receives for each matrix: the infinity norm, the 1-norm, the largest 1-norm of a row of y, info
            (or 0), max |b - A x| of each column, and max |x| of each column.
        residuals : array, shape (m, k, n), contiguous, optional
            Receives b - A x, in FP64 or complex128.
        known : tuple of array, optional
            For one large system: the sums of |a_ij| over each row and over each column, both (n,), and A x,
            shape (n, k), in FP64 or complex128.  Then a is not read, `residuals` is not filled, and `out`
            has zeros before the call.
        """

    def measure_large(self, a, band, y, b, info, board, *, residuals=None, hermitian=False):
        """Return x (m, n, k), and fill `board` with its verification, by one launch on the whole device.

        Parameters
        ----------
        a : array, shape (m, n, n)
        band : tuple of int
            (below, above, mirror), as in `read_as`.  The mirror is 0 unless `hermitian`.
        y : array, shape (m, k + c, n)
            The rows of y[s] are the columns of A**-1 b, then A**-1 g for c vectors g, in FP64 or complex128;
            y[s] is contiguous.
        b : array, shape (m, n, k)
            It has the dtype of a, and so has x.
        info : array of int32, shape (m,), or None
            The info of the factorizations.
        board : array, shape (9 + 2 k, m), float64, contiguous
            Zeros before the call, or after a call of `read_as` that has filled the rows `seen`.  Receives the
            rows `seen` of `read_as`, then the rows `out` of `measure`.
        residuals : array, shape (m, k, n), contiguous, optional
            Receives b - A x, in FP64 or complex128.
        hermitian : bool
            The matrices are Hermitian as they are read.  `board` then has the rows `seen` already; zeros say
            that the triangles agree.
        """
