"""The primitives that NumPy and CuPy implement differently.

An algorithm takes an `Ops`, and makes its arrays by `ops.xp`.  It imports NumPy only for numbers on the host,
and not CuPy; some modules of `_family` call CuPy's solvers.  A primitive exists only if the functions of
`ops.xp` are not accurate or fast enough.  Matrices are row-major unless stated otherwise.  A primitive writes
to an argument only if its description says "in place" or names the output.

`Ops` has the primitives of the runtime and of products and norms; `ops.lu` has those of the LU (`LUOps`),
and `ops.vendor` those of stacks (`Stacks`).
"""

from typing import Any, NamedTuple, Protocol

from tcsolve._contract.lu import LUOps
from tcsolve._contract.stacks import Stacks

__all__ = ["BegunSurvey", "Ops", "RowStats"]


class RowStats(Protocol):
    """The largest |a_ij| of each row, and the sum of |a_ij| over each row.

    A backend may compute each of them only when it is read, so a must not change before that.

    Attributes
    ----------
    top, total : array, shape (m,)
        On the device of a; `total` is FP64.  NaN and Inf propagate.
    """

    top: Any
    total: Any


class BegunSurvey(NamedTuple):
    """A survey that was started.

    Attributes
    ----------
    wait : callable
        Waits for the survey, and returns its six numbers.
    copy : array or None
        The copy of a, if the survey makes it.
    is_early : bool
        Whether the LU of the copy should start before the survey is read.
    """

    wait: Any
    copy: Any
    is_early: bool


class Ops(Protocol):
    """The primitives of one device.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    device : str
        'cpu' or 'cuda'.
    properties : dict or None
        The properties of a GPU, from which `tcsolve._solve.choice.cost_model.rates_of` finds its `Rates`.
    lu : LUOps
        The primitives of the LU.
    early_rows : int
        Largest n for which the LU may start before the survey is read; 0 for never.
    ahead_rows : int
        Largest n for which refinement steps are started before it is known that they are needed; 0 for never.
    vendor : Stacks or None
        The primitives of stacks on a GPU; None on the host.  There, a `StackFactorization` uses the functions
        of `tcsolve._solve.host.library` instead.
    """

    xp: Any
    device: str
    properties: Any
    lu: LUOps
    early_rows: int
    ahead_rows: int
    vendor: Stacks | None

    # ---- the runtime -----------------------------------------------------------------------

    def host(self, *arrays):
        """Wait until small arrays are computed, and return them as NumPy arrays."""

    def converted(self, x, dtype):
        """Return x converted to `dtype`, or x itself if it has that dtype; subnormal numbers are kept."""

    def reading(self, *arrays):
        """Return a function that copies arrays to the host, and returns the copies.

        The copies do not wait for work that is launched after this call.  So this work must not overwrite the
        arrays.
        """

    def mark(self):
        """Return a time stamp that the device records after the work launched so far.

        The difference of two stamps is the number of seconds between them.  Computing it waits until the
        device has reached the later one.
        """

    def free_bytes(self, enough):
        """Return the number of bytes that can be allocated, or a smaller number of at least `enough`.

        If fewer than `enough` bytes are free, memory that is cached for later solves is freed.  The result is
        infinite if the number is not known before an allocation.
        """

    def guarded(self, function, again=True):
        """Return a function that calls `function`, and raises a DeviceMemoryError if memory is full.

        Before the error, cached memory is freed.  If there was any, and `again` is True, `function` is called
        a second time.  On the host, errors are not changed, but a fork by another thread waits for the end of
        the call.
        """

    def replayed(self, w, name, body):
        """Return body(divide), which works on w and reads nothing back to the host.

        With a `name`, recorded graphs may replace the call; equal names mean equal work.  None stands for
        work that is not recorded.  Where body calls divide(), one graph may end and another one begin.  At
        that point, the current stream must contain all launched work, or wait for it.
        """

    def aside(self, w, others, name, body, then=None):
        """Start body(), which reads w and others, and runs at the same time as the work launched later.

        Return a function that waits for it, or None if nothing was started.  The caller must call that
        function before it frees an array that body reads.

        body returns two objects, the first of which is a small array.  The returned function returns the same
        two, but the first may be a copy that is still on its way to the host; `host` reads it.  body reads
        nothing back and writes only its results.  Equal names mean equal work.  With `then`, the two results
        are those of then(first, second), which may read other arrays.
        """

    # ---- norms and scaling -----------------------------------------------------------------

    def extremes(self, a, dtype=None):
        """Start the survey of a square a; return it as `BegunSurvey`.

        The numbers are the largest and the smallest row sum of |a_ij|, the largest and the smallest column
        sum of |a_ij|, the minimum of 2 |a_ii| - row_sum_i, and the minimum of 3 |a_jj| - col_sum_j.  NaN
        propagates.  a must not change before `BegunSurvey.wait` has returned.

        The copy is `cast_scaled(a, None, None, dtype)`, if the survey makes it in the same pass over a.
        """

    def row_stats(self, a, col_scale=None):
        """Return the `RowStats` of a diag(s), where the scales s default to one."""

    def cast_scaled(self, a, row_scale, col_scale, dtype, out=None):
        """Return diag(r) a diag(s), row-major, in `dtype`; r and s may both be None, which stands for ones.

        The scales are powers of two, so each entry is rounded only once.  The result is a new matrix or
        `out`.  `out` is FP32 or complex64 and has contiguous rows.
        """

    # ---- products and residuals ------------------------------------------------------------

    def gemm(self, job):
        """Compute job.out, as the `tcsolve._arithmetic.products.Job` says.

        out is written only after all memory is allocated, with one exception: if the matrices of a stack are
        multiplied one by one, and out is not c, out may hold the first results after an error.

        Return a function again(a, b, c, out), or None.  The function repeats the product on arrays with the
        same dtypes, shapes, strides, and addresses modulo 16.  If out is None, it makes a new array.  It
        returns the result, or None if `gemm` must be called instead: because out may overlap another array,
        or because the launch was refused.
        """

    def product(self, a, x, adjoint=False, triangle=None):
        """Return a x, or a**H x, computed in FP64 for every dtype of a.

        a and x are two matrices, or, without `adjoint`, two stacks of matrices in FP64.  The product of two
        matrices is used for residuals.  If all additions of a long sum round in one direction, its error is
        many times the bound of a residual.  So each sum is made of short sums.  For many columns, long sums
        may be formed first.  A check then compares random combinations of the columns of the result with the
        same combinations by short sums.  If it shows such an error, short sums replace the long ones.

        `triangle` is 'upper' or 'lower' if all other entries of a are known to be zero.
        """

    def residual(self, a, x, b):
        """Return r = b - a x in FP64, and on the host max |r| and max |x| of each column; NaN propagates.

        a is a matrix, or the function x -> a x.
        """

    # ---- the estimate of the condition -----------------------------------------------------

    def probes(self, n):
        """Return the four first vectors of the condition estimate as columns, shape (n, 4).

        Entry i is 1 / n in the first vector, and (-1)**i (1 + i / (n - 1)) in the second one.  The other two
        have random entries, which are uniform, with mean 0 and variance 1, and the same in every call.
        """

    def signs(self, v, state):
        """Return the signs of v, v / |v| for complex v, with shape (n, 1); zeros if state[1] is 0."""

    def steepest(self, z, state, found):
        """Return the unit vector e_i, shape (n, 1), for the i of the largest |z_i|, or of a NaN.

        Return zeros if i is the same as in the last call (state[0]), or if state[1] is 0.  found becomes
        (i, |z_i|); state becomes (i, 1 if the vector is not zero, else 0).
        """

    def held(self, b, y, z):
        """Return sums that compare the columns of b with those of y, in one small array.

        If z has l columns, the last l columns are compared by inner products with z.  The result has
        sum |b - y|^2 of each other column, then sum |b|^2 of each of these, then |z^H (b - y)| of each of the
        last l columns.
        """
