"""The primitives of the LU: strips, row swaps, triangular solves, updates, and solves with the factors.

`tcsolve._lu.elimination` combines the primitives, and `tcsolve._lu.factors` solves with the result.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

__all__ = ["LUOps", "LibraryLU", "Packed", "Pivots", "Square"]


class Pivots(NamedTuple):
    """Where the strips of a panel store their pivots.

    Attributes
    ----------
    row : int
        The row of the matrix that is the first row of the panel.
    ipiv : array of int32
        One entry for each column of the panel: the row of the matrix, counted from 0, that was swapped with
        the row of the diagonal entry.  The swaps are done one after the other, as in LAPACK.
    order : array of int32
        One entry for each row of the panel; the swaps are applied to it.
    info : array of int32, shape (1,)
        The 1-based column of the first zero or non-finite pivot so far, or a larger number than any column.
        The panel may make it smaller.
    """

    row: int
    ipiv: Any
    order: Any
    info: Any


class Packed(NamedTuple):
    """P A = L U, packed row-major.

    Attributes
    ----------
    lu : array, shape (n, n)
        Both triangles.
    order : array, shape (n,)
        order[i] is the row of A that became row i.
    inverses : array or None
        Inverses of diagonal blocks, if the device solves with them.
    """

    lu: Any
    order: Any
    inverses: Any


class Square(NamedTuple):
    """The preparations for the blocks below, and right of, a factored square panel, which has L11 and U11.

    Attributes
    ----------
    solve : callable or None
        solve(b, share=None) computes b := L11**-1 b in place.  None if a result of `LUOps.solver` is at least
        as fast.
    divide : callable
        divide(l) computes l := l U11**-1 in place.
    bound : object
        The argument `bound` of `LUOps.operand`, which then checks |l| <= 1.
    """

    solve: Callable | None
    divide: Callable
    bound: Any


class LibraryLU(Protocol):
    """The LU of a matrix a, or of its transpose, by LAPACK or cuSOLVER; a named tuple.

    Attributes
    ----------
    lu : array, shape (n, n)
        Both triangles; its diagonal is that of U.
    swaps : ndarray of int, shape (n,)
        The rows that were swapped with rows 0, 1, ...
    order : array of int, shape (n,)
        Row i of L U is row order[i] of the factored matrix.
    transposed : bool
        Whether the factored matrix is the transpose of a.
    inverses : array or None
        Inverses of diagonal blocks, if the device solves with them; None is always valid.
    """

    lu: Any
    swaps: Any
    order: Any
    transposed: bool
    inverses: Any

    def solve(self, b, adjoint):
        """Return a**-1 b, or a**-H b, in the dtype of the factors."""

    def gecon(self, norm_one):
        """Return the estimate of rcond in the 1-norm, or None if the library has no estimator."""


class LUOps(Protocol):
    """The primitives of the LU on one device."""

    # ---- the elimination -------------------------------------------------------------------

    def rules(self, dtype, w=None):
        """Return the `schedule.Rules` for the LU of matrices of a dtype; with w, for the memory of w."""

    def strip(self, p, start, stop, pivots, started=None):
        """Factor the strip p[start:, start:stop] of a panel in place, by partial pivoting; return its swaps.

        The swaps are not applied to p: the rows of the factored strip, too, stay in their old places.
        `started` comes from `overlap`: flags that the strip sets when it runs.  With None it sets no flags.
        """

    def swap_rows(self, rows, swaps):
        """Apply the swaps of `strip` or `merge_swaps` to rows in place: new[dst] = old[src]."""

    def merge_swaps(self, order, local, ipiv, start):
        """Return the swaps of all strips together, for a panel that begins at row `start`.

        The result is a tuple that begins with (dst, src).  local[i] is the number of the row that is
        now row i of the panel.  The method sets order := order[local] and local[i] := i.
        """

    def block_row(self, rows, panel, columns, swaps, solve=None):
        """Apply `swap_rows` to some columns, then solve for U in those right of the panel.

        `panel` and `columns` are slices, of columns of the matrix `rows`.  L11 is the square block at the top
        of the columns of the panel, after the swaps.  `solve` is a result of `solver`, or of `square`, for
        L11; None stands for substitution.
        """

    def solver(self, l, plan=None):
        """Return a function solve(b, share=None) that computes b := L**-1 b in place.

        L is the unit lower triangle of l.  With a `schedule.SolvePlan`, an inverse of L may be prepared.
        `share` is passed on from `overlap`.
        """

    def square(self, p, plan, beyond):
        """Prepare the computation of L below a square panel p and of U right of it; return a `Square`.

        p is a panel of a dominant matrix, and `plan` its `schedule.SolvePlan`.  A block is scaled before it
        is rounded.  The scale comes from the largest entry of the block, or from a bound that its entries
        nearly always meet if A is dominant.  beyond[0] becomes 1 if an entry exceeds a small multiple of this
        bound, or if |l| > 1.
        """

    def operand(self, l, how, at_once=False, bound=None):
        """Return a function subtract(c, u, share=None, first=0) that computes c -= l u in place.

        `how` is the `Update` by which l, with |l| <= 1, and u are rounded.  c may have fewer rows than l;
        then the product takes len(c) rows of l, from row `first` on.  `share` is passed on from `overlap`.

        With `at_once`, l is rounded now.  Otherwise it may be rounded when it is first used, together with u,
        which saves a launch.  With `at_once` and the bound of a `Square`, |l| <= 1 is checked too.
        """

    def cholesky_panel(self, p):
        """Factor a panel p (m, k) of a Hermitian matrix in place: p becomes the panel of L in A = L L**H.

        The first k rows are the diagonal block; only its lower triangle is read.  Return False if this block
        is not positive definite, or if its factor is not finite.  Then the contents of p are not defined.
        """

    def together(self, first, second):
        """Call first() and second(), which do not depend on each other; run them concurrently if possible."""

    def overlap(self, step):
        """Do all parts of a `_lu.elimination._Step`, concurrently where possible.

        The result is that of step.do().

        The parts depend on each other as follows.

        - `update_first` needs `solve_first` and, if `completes`, `complete`.
        - The first strip of the next panel needs `update_first`; the other strips need `fill`.
        - `fill` and `rest` need `complete`.
        - If `swaps_known`, `fill` and `solve_rest` need `swap_rest` and `substitute`, and `substitute` is
          called after `solve_first`.  Otherwise `fill`, `solve_rest` and `swap_done` need `solve_first`.
        - `rest` needs everything but the next panel and `swap_done`.

        `share` says how a product and the panel divide the device.  The parts `solve_rest` and `rest` pass it
        to a `solver` and an `operand`.  Every part runs after the work launched before this call, and work
        launched later runs after every part.
        """

    def finish(self, lu, ipiv, info, beyond):
        """Return (report, inverses) of a finished LU.

        The report is the FP64 array (info, number of entries with ipiv[j] != j, condition, beyond).  The
        inverses of diagonal blocks are for `solve_packed`, or None.  A solve with them has an error of about
        `condition` times the roundoff.
        """

    # ---- solves with factors ---------------------------------------------------------------

    def solve_packed(self, packed, b, adjoint):
        """Return A**-1 b, or A**-H b, to the precision of the factors; b is FP64, its entries of any size."""

    def ahead(self, packed, a, b, steps):
        """Start the first steps of refinement with these factors of a; return a function that waits for them.

        That function returns (x, r, sizes) for `refine_columns`.  Return None if nothing is started; the
        steps are then launched one by one.  a and b are such that `schedule.goes_ahead` is True.
        """

    def getrf(self, a, dtype, overwrite_a=False):
        """Return the LU of a by LAPACK or cuSOLVER in `dtype`, as `LibraryLU`, and the info of getrf.

        With `overwrite_a`, the factors may overwrite a, if a is contiguous and has this dtype.
        """
