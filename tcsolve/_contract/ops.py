"""The contract of the primitives: everything in which NumPy and CuPy differ.

Algorithm modules take an `Ops` and know neither library.  A primitive exists only where precision or
speed makes `ops.xp` not enough.  Matrices are row-major unless said otherwise; "in place" is said where
an argument is written.
"""

import math
from typing import Any, NamedTuple, Protocol

__all__ = ["Ops", "Stats"]


class Stats(NamedTuple):
    """Sums of |a| over each row and each column; vectors of FP64 on the device."""

    row_sum: Any
    col_sum: Any


class Ops(Protocol):
    """What a device must offer to the algorithms.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    device : str
        'cpu' or 'cuda'.
    vendor : module or None
        `tcsolve._backends.cuda.batched.library_factors`, where systems are solved by
        `tcsolve._solve.vendor.solve`.
    """

    xp: Any
    device: str
    vendor: Any

    def array(self, host):
        """Return a NumPy array as an array of this device."""

    def host(self, *arrays):
        """Return copies of small arrays on the host, with one synchronisation."""

    def copied(self, x):
        """Return a copy of a contiguous x."""

    def guarded(self, function, again=True):
        """Return the function, with a DeviceMemoryError where the device runs out of memory in it.

        It is called once more, if it may be, where memory that was kept for later could be given up.
        """

    def converted(self, x, dtype):
        """Return x in `dtype`, x itself if it has that; subnormal numbers are kept."""

    def reading(self, *arrays):
        """Return a function that returns copies on the host, and waits for nothing launched after this."""

    def mark(self):
        """Return a time stamp in the order of the device's work."""

    def seconds(self, start, stop):
        """Return the seconds between two marks; may wait for the second."""

    def free_bytes(self, enough=math.inf):
        """Return the bytes that can still be allocated; some of them, if those are `enough`.

        Infinity where only an allocation can tell.
        """

    def clear_cache(self):
        """Free what is kept for later solves; return whether there was anything."""

    def stats(self, a):
        """Return the `Stats` of a; NaN and Inf propagate."""

    def extremes(self, a, dtype=None):
        """Start to look for six numbers of a square a; return a function that waits for them alone.

        The largest and the smallest row sum, the largest and the smallest column sum, the least
        2 |a_ii| - row_sum_i and the least 3 |a_jj| - col_sum_j; NaN propagates.  Until then a must stay as it
        is.

        Also return what `cast_scaled` would in `dtype`, with no scales, if the same look brings it, or None.
        """

    def goes_early(self, a):
        """Tell whether an LU of a may be started before anything is known of a, now or another time."""

    def starts_early(self, a, how):
        """Tell whether the LU of a should be started so now."""

    def row_max(self, a):
        """Return max |a_ij| of each row."""

    def col_max(self, a, row_scale):
        """Return max r_i |a_ij| of each column."""

    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        """Return a row-major diag(r) a diag(s) in `dtype`; None stands for ones.

        The scales are powers of two, so that this rounds each entry once.  It is a new matrix, or `out`: of
        FP32 or complex64, with contiguous rows.
        """

    def lu_rules(self, dtype, w=None):
        """Return the `schedule.Rules` for the LU of matrices of a dtype, or of w in its place."""

    def strip_lu(self, p, start, stop, ipiv, row0, order, info, started=None):
        """Factor p[start:, start:stop] in place with partial pivoting; return its swaps.

        No row of p has moved yet, the strip's own no more than the others; the entries of `order` have.
        ipiv[j] becomes row0 + (the row of p swapped with row j), in LAPACK's order, for start <= j < stop,
        and info[0] becomes min(info[0], row0 + j + 1) for the first zero or non-finite pivot j.  `started` is
        what `beside` hands over.
        """

    def swap_rows(self, rows, swaps):
        """Swap rows in place, as `strip_lu` said, or `merge_swaps`: new[dst] = old[src]."""

    def solve_unit_lower(self, l, b, substitution=None, share=None):
        """b := L**-1 b in place, L the unit lower triangle of l.

        By what `substitution` returned, if that is given; `share` is from `beside`.
        """

    def substitution(self, l, n, how, dominant, bound=None):
        """Return what makes `solve_unit_lower` of up to n columns fast, or None; its products as `how`.

        The triangle of a matrix that is `dominant` is so well conditioned that it may be inverted in any way.
        What `bound` returned for the block of U beside it spares looks at what is solved for.
        """

    def bound(self, u, beyond):
        """Return what bounds the entries next to the block u on the diagonal of a dominant U; opaque.

        beyond[0] becomes 1 where that turns out to be wrong, or |l| > 1.
        """

    def right_substitution(self, u, how, bound):
        """Return what makes `solve_right` fast, or None; its products as `how`."""

    def solve_right(self, l, u, substitution=None):
        """l := l U**-1 in place, U the upper triangle of u.

        By what `right_substitution` returned, if that is given.
        """

    def merge_swaps(self, order, local, ipiv, start):
        """Return the swaps of all strips of a panel that begins at row `start`, (dst, src) and perhaps more.

        local tells where each row of the panel came from; order := order[local], and local counts from 0
        again.
        """

    def report(self, info, ipiv, worst, beyond):
        """Return info, how many entries of ipiv are not their own number, worst and beyond, (4,) in FP64."""

    def block_row(self, rows, start, stop, swaps, first, last, substitution):
        """Do `swap_rows` to columns first:last, and then `solve_unit_lower` to the rows of U right of `stop`.

        Columns start:stop hold, or will when their rows are swapped, L11 in the first stop - start rows.
        """

    def together(self, first, second):
        """Do first() and second(), neither of which needs the other, side by side if possible."""

    def beside(self, step):
        """Do all parts of a `_lu._Step`, some beside others if possible, with the results of step.do().

        `update_first` needs `solve_first` and, if `completes`, `complete`, the first strip of the panel needs
        it, and the others `fill`.  `fill` and `rest` need `complete`.
        If `swaps_known`, `fill` and `solve_rest` need `swap_rest`, and `substitute`, which is called after
        `solve_first`; else they, and `swap_done`, need `solve_first`.  `rest` needs all but the panel and
        `swap_done`.  `share` is for `solve_unit_lower` and `subtract_product` beside the panel.  What was
        done before is seen by all, and all is done for what follows.
        """

    def update(self, c, l, u, how):
        """c -= l u in place, with the operands rounded as the `Update` how says."""

    def gemm(self, a, b, c, out, product, alpha, beta, engine):
        """out = alpha a b + beta c, as the `Product` says; c is not read if beta is 0.

        Two matrices, or two stacks of equal length; no array is empty, and out may be c, which is not written
        before all memory is allocated.  What is returned is opaque: None, or what `gemm_again` takes.
        """

    def signature(self, options, *arrays):
        """Return a key of options and all of arrays (or None) that `gemm_again` does not look at, or None."""

    def gemm_again(self, launch, a, b, c, out):
        """Repeat a product on arrays of the same `signature`, and return its result.

        Returns None if that would need more checks: `out` may overlap another array.
        """

    def operand(self, l, how, at_once=False, bound=None):
        """Return l, |l| <= 1, rounded as the `Update` how says, for `subtract_product`; opaque.

        It is rounded when it is first used, at the latest: perhaps with u, which saves a launch, unless
        `at_once`.  Given what `bound` returned, and at once, it is seen whether |l| <= 1.
        """

    def subtract_product(self, c, operand, u, share=None, first=0):
        """c -= l u in place, with u rounded as l was for its `operand`; `share` is from `beside`.

        l are as many rows as c has, from row `first` on.
        """

    def replayed(self, w, name, body):
        """Return body(), which works on w without reading anything back; equal names are equal work."""

    def aside(self, w, others, name, body, then=None):
        """Start body(), which reads w and others, beside what follows; return a function that waits for it.

        body returns two things, the first a small array, which may be sent to the host at once; that function
        returns both, the first for `host`, and must be called before what is read may be freed.  body
        reads nothing back and writes nothing but what it returns; equal names are equal work.
        then(first, second), if given, may read other arrays, and returns two things in place of those.  None
        is returned where nothing runs beside anything.
        """

    def invert_diagonal_blocks(self, lu):
        """Return the inverses that `substitute` needs and their measure for `trusted`, or None."""

    def trusted(self, inverses, worst):
        """Return the inverses, or None if their measure, read back, says that they lose digits."""

    def solve_factored(self, lu, b, adjoint):
        """Return (L U)**-1 b, or (L U)**-H b, for packed row-major factors, in their dtype."""

    def substitute(self, lu, b, adjoint, inverses, order):
        """Return A**-1 b, or A**-T b, in FP64 for FP64 b of any size, where A[order] = L U.

        None if there is no faster way than `solve_factored` for this b.
        """

    def goes_ahead(self, a, b):
        """Tell whether `ahead` may do steps for these, now or another time."""

    def ahead(self, lu, inverses, order, a, b, steps):
        """Start the first steps of refinement with these factors of a; return a function that waits for them.

        That returns (x, r, sizes) as `refine_columns` takes it.  None is returned where steps are better done
        one by one.
        """

    def getrf(self, a, dtype, overwrite_a=False):
        """Return (factors, info): the library's own LU of a in `dtype`; factors are opaque.

        With leave they may take the place of a, if that is contiguous and has this dtype.
        """

    def getrs(self, factors, b, adjoint):
        """Return a**-1 b, or a**-H b, from what `getrf` returned."""

    def gecon(self, factors, norm_one):
        """Return the reciprocal 1-norm condition estimate, or None if the library has none."""

    def diagonal(self, factors):
        """Return (diagonal of U, sign of the permutation) of what `getrf` returned."""

    def product(self, a, x, adjoint=False):
        """Return a x, or a**H x, computed in FP64 whatever the dtype of a is."""

    def matmul(self, a, b):
        """Return the products of two stacks of matrices, (k, m, n) and (k, n, r), of one dtype."""

    def residual(self, a, x, b):
        """Return r = b - a x in FP64, and on the host max |r| and max |x| of each column; NaN propagates."""

    def difference(self, b, y, x):
        """Return r = b - y, and on the host max |r| and max |x| of each column; NaN propagates."""

    def column_max(self, v):
        """Return max |v| of each column of the n x k array v; NaN propagates."""

    def gram(self, vectors, known=None):
        """Return v_i^H v_j, (k, m, m), on the host, for each column of m arrays of (n, k).

        known has those of some of the first of them.
        """

    def mixed(self, vectors, weights):
        """Return the sum of weights[c, i] v_i, for each column c of m arrays of (n, k)."""

    def probes(self, n):
        """Return 1 / n, (-1)**i (1 + i / (n - 1)), and two of random entries as columns (n, 4).

        Those are uniform, of mean 0 and variance 1, and always the same.
        """

    def signs(self, v, state):
        """Return the sign of each entry of v, (n, 1), of complex ones v / |v|; zeros if state[1] is 0."""

    def held(self, b, y, z):
        """Return what is left of b by y, in one small array; z has a column for each of the last ones of b.

        The sum of |b - y|^2 of each column but those, that of |b|^2 of each, and |z^H (b - y)| for those.
        """

    def steepest(self, z, state, found):
        """Return the unit vector (n, 1) of the largest |z_i|, or of a NaN.

        Zeros if it was found last time or state[1] is 0.  found becomes its number and its size, state that
        number and whether the vector is not zero.
        """
