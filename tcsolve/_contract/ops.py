"""The primitives that NumPy and CuPy implement differently.

An algorithm takes an `Ops` and imports neither library.  A primitive exists only if the functions of `ops.xp`
are not accurate or fast enough.  Matrices are row-major unless stated otherwise.  A primitive writes to an
argument only if its description says "in place" or names the output.
"""

import math
from typing import Any, NamedTuple, Protocol

__all__ = ["Ops", "Stats"]


class Stats(NamedTuple):
    """The sum of |a| over each row and over each column: FP64 vectors on the device of a."""

    row_sum: Any
    col_sum: Any


class Ops(Protocol):
    """The primitives of one device.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    device : str
        'cpu' or 'cuda'.
    vendor : module or None
        `tcsolve._backends.cuda.batched.library_factors` on a GPU, which `tcsolve._solve.vendor.solve` uses;
        None on the CPU.
    """

    xp: Any
    device: str
    vendor: Any

    def array(self, host):
        """Return a NumPy array as an array on this device."""

    def host(self, *arrays):
        """Return small arrays as NumPy arrays, with one synchronisation for all of them."""

    def copied(self, x):
        """Return a copy of a contiguous x."""

    def guarded(self, function, again=True):
        """Return a function that calls `function` and raises a DeviceMemoryError when memory runs out.

        If cached memory can be freed, and `again` is True, `function` is called a second time first.
        """

    def converted(self, x, dtype):
        """Return x converted to `dtype`, or x itself if it has that dtype; subnormal numbers are kept."""

    def reading(self, *arrays):
        """Start to copy arrays to the host; return a function that waits for the copies and returns them.

        It does not wait for work that is launched after this call.
        """

    def mark(self):
        """Return a time stamp that the device records after the work launched so far."""

    def seconds(self, start, stop):
        """Return the seconds between two marks; waits until the device has reached the second."""

    def free_bytes(self, enough=math.inf):
        """Return the number of bytes that can be allocated, or any number of them that is at least `enough`.

        Infinity if the number is not known before an allocation.
        """

    def clear_cache(self):
        """Free the memory that is cached for later solves; return whether there was any."""

    def stats(self, a):
        """Return the `Stats` of a; NaN and Inf propagate."""

    def extremes(self, a, dtype=None):
        """Start the survey of a square a; return (a function that waits for its six numbers, a copy or None).

        The numbers are the largest and the smallest row sum, the largest and the smallest column sum, the
        minimum of 2 |a_ii| - row_sum_i, and the minimum of 3 |a_jj| - col_sum_j.  NaN propagates.  a must not
        change before the function has returned.

        The copy is `cast_scaled(a, None, None, dtype)`, if the survey makes it in the same pass over a.
        """

    def goes_early(self, a):
        """Tell whether the LU of a may start before the survey of a is read.

        The answer depends only on the shape, the dtype and the layout of a, so that equal input gives equal
        bits.
        """

    def starts_early(self, a, how):
        """Tell whether this LU of a, with the `Update` how, should start before the survey is read."""

    def row_max(self, a):
        """Return max |a_ij| of each row."""

    def col_max(self, a, row_scale):
        """Return max r_i |a_ij| of each column."""

    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        """Return diag(r) a diag(s), row-major, in `dtype`; None stands for scales of one.

        The scales are powers of two, so each entry is rounded only once.  The result is a new matrix or
        `out`.  `out` is FP32 or complex64 and has contiguous rows.
        """

    def lu_rules(self, dtype, w=None):
        """Return the `schedule.Rules` for the LU of matrices of a dtype; with w, for the memory of w."""

    def strip_lu(self, p, start, stop, ipiv, row0, order, info, started=None):
        """Factor the strip p[start:, start:stop] in place with partial pivoting; return its swaps.

        The swaps are not applied to p: the rows of the factored strip, too, stay in their old places.  They
        are applied to the entries of `order`.  For start <= j < stop, ipiv[j] becomes row0 + (the row of p
        that is swapped with row j), in LAPACK's order.  info[0] becomes min(info[0], row0 + j + 1) for the
        first zero or non-finite pivot j.  `started` is passed on from `beside`.
        """

    def swap_rows(self, rows, swaps):
        """Apply the swaps of `strip_lu` or `merge_swaps` to rows in place: new[dst] = old[src]."""

    def solve_unit_lower(self, l, b, substitution=None, share=None):
        """b := L**-1 b in place, where L is the unit lower triangle of l.

        `substitution` is a result of the method `substitution` for l; `share` is passed on from `beside`.
        """

    def substitution(self, l, n, how, dominant, bound=None):
        """Prepare a fast `solve_unit_lower` with l for up to n columns; return an opaque object, or None.

        Its products are computed as the `Update` how says.  The triangle of a `dominant` matrix is so well
        conditioned that every method computes an accurate inverse.  With `bound`, the result of the
        method `bound` for the block of U on the diagonal, the right-hand sides need not be scaled by their
        own largest entries.
        """

    def bound(self, u, beyond):
        """Return a bound on the entries of U right of the diagonal block u of a dominant matrix; opaque.

        beyond[0] becomes 1 if an entry exceeds the bound, or if |l| > 1.
        """

    def right_substitution(self, u, how, bound):
        """Prepare a fast `solve_right` with u, its products as the `Update` how says; return it, or None."""

    def solve_right(self, l, u, substitution=None):
        """l := l U**-1 in place, where U is the upper triangle of u.

        `substitution` is a result of `right_substitution` for u.
        """

    def merge_swaps(self, order, local, ipiv, start):
        """Return the swaps of all strips together, for a panel that begins at row `start`.

        The result is (dst, src), or a longer tuple that begins so.  local[i] is the number of the row that is
        now row i of the panel.  This sets order := order[local] and local[i] := i.
        """

    def report(self, info, ipiv, worst, beyond):
        """Return the FP64 array (info, number of entries with ipiv[j] != j, worst, beyond)."""

    def block_row(self, rows, start, stop, swaps, first, last, substitution):
        """Apply `swap_rows` to columns first:last, then `solve_unit_lower` to the rows of U right of `stop`.

        L11 is in columns start:stop of the first stop - start rows.  It may get there only by these swaps.
        """

    def together(self, first, second):
        """Call first() and second(), which do not depend on each other; run them concurrently if possible."""

    def beside(self, step):
        """Do all parts of a `_lu._Step`, concurrently where possible, with the same result as step.do().

        The parts depend on each other as follows.

        - `update_first` needs `solve_first` and, if `completes`, `complete`.
        - The first strip of the next panel needs `update_first`; the other strips need `fill`.
        - `fill` and `rest` need `complete`.
        - If `swaps_known`, `fill` and `solve_rest` need `swap_rest` and `substitute`, and `substitute` is
          called after `solve_first`.  Otherwise `fill`, `solve_rest` and `swap_done` need `solve_first`.
        - `rest` needs everything but the next panel and `swap_done`.

        `share` is for calls of `solve_unit_lower` and `subtract_product` during the factorization of the next
        panel.  Every part sees the work launched before, and work launched later sees every part.
        """

    def update(self, c, l, u, how):
        """c -= l u in place, with the operands rounded as the `Update` how says."""

    def gemm(self, a, b, c, out, product, alpha, beta, engine):
        """out = alpha a b + beta c, in the arithmetic of `product`; c is not read if beta is 0.

        a and b are two matrices, or two stacks of equal length.  No array is empty.  out may be c: it is
        written only after all memory is allocated.  Return an opaque object for `gemm_again`, or None.
        """

    def signature(self, options, *arrays):
        """Return a key of all that `gemm_again` does not check: options, dtypes, shapes; or None."""

    def gemm_again(self, launch, a, b, c, out):
        """Repeat a product on arrays with the same `signature`, and return its result.

        Return None if more checks are needed, because `out` may overlap another array.
        """

    def operand(self, l, how, at_once=False, bound=None):
        """Return l, with |l| <= 1, rounded as the `Update` how says, for `subtract_product`; opaque.

        With `at_once`, l is rounded now.  Otherwise it may be rounded when it is first used, together with u,
        which saves a launch.  With `at_once` and `bound` (see the method), |l| <= 1 is checked too.
        """

    def subtract_product(self, c, operand, u, share=None, first=0):
        """c -= l u in place, with u rounded in the same way as l; `share` is passed on from `beside`.

        The product uses as many rows of l as c has, from row `first` of `operand` on.
        """

    def replayed(self, w, name, body):
        """Return body(), which works on w and reads nothing back to the host.

        Equal names mean equal work, so that a recorded graph may replace the call.
        """

    def aside(self, w, others, name, body, then=None):
        """Start body(), which reads w and others, and runs at the same time as the work launched later.

        Return a function that waits for it, or None if this device runs nothing concurrently.  The caller
        must call that function before it frees an array that body reads.

        body returns two objects; the first is a small array, and its copy to the host may start at once.
        The function returns both, the first for `host`.  body reads nothing back and writes only its
        results.  Equal names mean equal work.  If given, then(first, second) replaces the two results by two
        others, and may read other arrays.
        """

    def invert_diagonal_blocks(self, lu):
        """Return (inverses of diagonal blocks for `substitute`, a number for `trusted`), or None."""

    def trusted(self, inverses, worst):
        """Return the inverses, or None if the number `worst`, read back, shows that they lose digits."""

    def solve_factored(self, lu, b, adjoint):
        """Return (L U)**-1 b, or (L U)**-H b, in the dtype of the packed row-major factors lu."""

    def substitute(self, lu, b, adjoint, inverses, order):
        """Return A**-1 b, or A**-T b, in FP64, where A[order] = L U; the entries of b may have any size.

        Return None if `solve_factored` is the fastest way for this b.
        """

    def goes_ahead(self, a, b):
        """Tell whether `ahead` supports these operands; this does not depend on what is cached."""

    def ahead(self, lu, inverses, order, a, b, steps):
        """Start the first steps of refinement with these factors of a; return a function that waits for them.

        That function returns (x, r, sizes) for `refine_columns`.  Return None if it is faster to launch the
        steps one by one.
        """

    def getrf(self, a, dtype, overwrite_a=False):
        """Return (factors, info): the LU of a by LAPACK or cuSOLVER in `dtype`; factors are opaque.

        With `overwrite_a`, the factors may overwrite a, if a is contiguous and has this dtype.
        """

    def getrs(self, factors, b, adjoint):
        """Return a**-1 b, or a**-H b, by the factors of `getrf`."""

    def gecon(self, factors, norm_one):
        """Return the estimate of rcond in the 1-norm, or None if the library has no estimator."""

    def diagonal(self, factors):
        """Return (diagonal of U, sign of the permutation) for the factors of `getrf`."""

    def product(self, a, x, adjoint=False):
        """Return a x, or a**H x, computed in FP64 for every dtype of a."""

    def matmul(self, a, b):
        """Return the products of two stacks of matrices of one dtype, (k, m, n) and (k, n, r)."""

    def residual(self, a, x, b):
        """Return r = b - a x in FP64, and on the host max |r| and max |x| of each column; NaN propagates."""

    def difference(self, b, y, x):
        """Return r = b - y, and on the host max |r| and max |x| of each column; NaN propagates."""

    def column_max(self, v):
        """Return max |v| of each column of the n x k array v; NaN propagates."""

    def gram(self, vectors, known=None):
        """Return the Gram matrices v_i^H v_j on the host, shape (k, m, m), of m arrays v_i of shape (n, k).

        There is one Gram matrix for each of the k columns.  `known` has the products of the first arrays.
        """

    def mixed(self, vectors, weights):
        """Return the sums over i of weights[c, i] v_i[:, c] for each column c; v_i are m arrays (n, k)."""

    def probes(self, n):
        """Return the four first vectors of the condition estimate as columns, shape (n, 4).

        They are 1 / n, then (-1)**i (1 + i / (n - 1)), then two with random entries.  The random entries are
        uniform, with mean 0 and variance 1, and the same in every call.
        """

    def signs(self, v, state):
        """Return the signs of v, v / |v| for complex v, with shape (n, 1); zeros if state[1] is 0."""

    def held(self, b, y, z):
        """Return sums that compare the columns of b with those of y, in one small array.

        If z has l columns, the last l columns are compared by inner products with z.  The result has
        sum |b - y|^2 of all other columns, then sum |b|^2 of these, then |z^H (b - y)| of the last l columns.
        """

    def steepest(self, z, state, found):
        """Return the unit vector e_i, shape (n, 1), for the i of the largest |z_i|, or of a NaN.

        Return zeros if i is the same as in the last call (state[0]), or if state[1] is 0.  found becomes
        (i, |z_i|); state becomes (i, 1 if the vector is not zero, else 0).
        """
