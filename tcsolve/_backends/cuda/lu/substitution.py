"""Triangular solves of a few right-hand sides with inverted diagonal blocks, one launch per triangle."""

import functools
from typing import Any, NamedTuple

import cupy

from tcsolve._backends.cuda.runtime import cluster_launch, compiler, current_device
from tcsolve._backends.cuda.runtime.cublas_calls import ld
from tcsolve._backends.cuda.runtime.prepared_launch import launch
from tcsolve._errors import DeviceError
from tcsolve.kernels.launch_shapes import TRSV_BLOCK, TRSV_COLUMNS, TRSV_THREADS, trsv_shapes

__all__ = ["begin_and_solve", "invert_diagonal_blocks", "substitute"]

REAL = {"f": "float", "d": "double"}
# Number of threads in a block of the inversion, and in a block of the vector kernels.
INVERT_THREADS, VECTOR_THREADS = 256, 256
INVERT = "invert_diagonal_blocks", "tcs_invert_blocks"
BEGIN = "invert_diagonal_blocks", "tcs_begin_triangle"


def invert_diagonal_blocks(lu, unit_lower=True, only_lower=None):
    """Return the inverses of the diagonal blocks of row-major real factors, and their condition.

    Parameters
    ----------
    lu : array, shape (n, n), float32 or float64
        Both triangles.  One of them has a unit diagonal, which is not stored.
    unit_lower : bool
        True if the lower triangle has the unit diagonal.
    only_lower : bool, optional
        True: invert only the blocks of the lower triangle.  False: only those of the upper triangle.  The
        other triangle is not read.

    Returns
    -------
    inverses : array, shape (2, ceil(n / block), block, block)
        The inverses of the blocks of the lower triangle, then of the upper one; zero beyond n.  If
        `only_lower` is given, the other half is not filled.
    condition : array, shape (1,), or None
        The largest || |D^-1| |D| || of a block D (see `INVERSE_CONDITION`); None if `only_lower` is given.
    """
    char = lu.dtype.char
    n, size = lu.shape[0], TRSV_BLOCK[char]
    inverses = cupy.empty((2, -(-n // size), size, size), lu.dtype)
    condition = cupy.zeros(1) if only_lower is None else None
    args = (inverses, condition, lu, ld(lu), n, int(unit_lower), int(only_lower is False))
    grid = inverses.shape[1], 2 if only_lower is None else 1
    launch(INVERT, grid, (INVERT_THREADS, 1), args, {"T_IN": REAL[char]})
    return inverses, condition


def substitute(
    lu,
    b,
    adjoint,
    inverses,
    before,
    after,
    *,
    out=None,
    onto=None,
    sizes=None,
    known=False,
    only_lower=None,
):
    """Return the solution x of (L U) x = b, or of (L U)**T x = b, in FP64.

    b has at most max(TRSV_COLUMNS) columns.  It is FP64 and may have any strides; lu is row-major.  Row
    before[i] of b is used as row i, and row i of the solution becomes row after[i] of x.  None stands for no
    permutation.  Each column is scaled so that its largest entry is near 1, to fit the range of the factors.
    The scaling is undone in x.

    Parameters
    ----------
    out : array, shape (k, n), float64, C-contiguous, optional
        Receives the columns of x as its rows.
    onto : array, shape (k, n), float64, C-contiguous, optional
        x is the sum of this array and the solution.
    sizes : array, float64, optional
        If `known`, the largest |b_ij| of each column, or ones for no scaling.  Otherwise an array of zeros,
        which receives the largest |b_ij|.  It has an entry for each column that the launches are compiled
        for, or more.
    known : bool
        Whether `sizes` is filled already.
    only_lower : bool, optional
        True: solve only with the lower triangle.  False: only with the upper triangle.
    """
    (n, k), char = b.shape, lu.dtype.char
    clusters = cluster_launch.in_force()
    launches = _launches(clusters, cluster_launch.present_context(), n, k, char, adjoint)
    width, item = launches.width, lu.itemsize
    sizes = cupy.zeros(width) if sizes is None else sizes
    # Memory for the scaled b, the results of both triangles, and two tickets: counters from which clusters
    # draw the numbers 0, 1, ...  All bits are one in a result that is not computed yet, and in a ticket from
    # which no number was drawn.
    stages = cupy.empty(3 * width * n + 2, lu.dtype)
    rhs = stages.data.ptr
    made = rhs + width * n * item
    last = made + width * n * item
    tickets = last + width * n * item
    of_b = (b.data.ptr, *(s // b.itemsize for s in b.strides))
    top = sizes.data.ptr
    before, after = (0 if order is None else order.data.ptr for order in (before, after))
    if not known:
        launches.column_max(enumerate((top, *of_b)))
    launches.lower(enumerate((rhs, made, (2 * width * n + 2) * item // 4, *of_b, before, top)))
    factors, blocks = (lu.data.ptr, ld(lu)), inverses.data.ptr
    upper = blocks + inverses.strides[0]
    order = (not adjoint, adjoint)  # True for the lower triangle, in the order of the solves
    if only_lower is None:
        tasks = (0, made, rhs), (1, last, made)
    else:
        tasks = ((order.index(only_lower), last, rhs),)
    for number, to, of in tasks:
        lower = order[number]
        own = (blocks if lower else upper, tickets + 4 * number)
        launches.triangles[number](enumerate((to, of, *factors, n, *own, top)))
    if only_lower is not None and char == "d" and known:  # `sizes` are ones
        return stages[2 * width * n : 3 * width * n].reshape(width, n)[:k].T
    x, added = cupy.empty((k, n)) if out is None else out, 0 if onto is None else onto.data.ptr
    launches.lift(enumerate((x.data.ptr, last, after, top, added)))
    return x.T


def begin_and_solve(t, lower, b, probes):
    """Invert the diagonal blocks of one triangle, and solve with it, in two launches.

    Parameters
    ----------
    t : array, shape (n, n), float64
        Row-major; the entries outside of the triangle are not read.
    lower : bool
    b : array, shape (n, k), float64
        Right-hand sides with any strides.
    probes : int
        Number of random vectors that are solved for too, at most two.  k + probes is at most
        max(TRSV_COLUMNS).

    Returns
    -------
    inverses : array, shape (2, ceil(n / block), block, block)
        As those of `invert_diagonal_blocks`; only one half is filled.
    x : array, shape (k + probes, n)
        The solutions are its rows.
    """
    (n, k), size = b.shape, TRSV_BLOCK["d"]
    blocks = -(-n // size)
    clusters = cluster_launch.in_force()
    launches = _launches(clusters, cluster_launch.present_context(), n, k + probes, "d", False)
    width, number = launches.width, int(not lower)
    inverses = cupy.empty((2, blocks, size, size))
    # The right-hand sides, the solutions, and a ticket.  All bits of the last two are set to one.
    stages, own = cupy.empty(2 * width * n + 1), inverses.data.ptr + number * inverses.strides[0]
    x = cupy.ndarray((k + probes, n), memptr=stages.data + width * n * b.itemsize)
    of_b = (b.data.ptr, *(s // b.itemsize for s in b.strides))
    rows, done, words = stages.data.ptr, x.data.ptr, 2 * (width * n + 1)
    args = (own, t.data.ptr, ld(t), n, number, rows, *of_b, k, probes, width, done, words)
    grid = blocks + -(-width * n // INVERT_THREADS), 1
    launch(BEGIN, grid, (INVERT_THREADS, 1), args, {"T_IN": REAL["d"]})
    ticket = done + width * n * b.itemsize
    to_solve = (done, rows, t.data.ptr, ld(t), n, own, ticket, 0)
    launches.triangles[number](enumerate(to_solve))
    return inverses, x


class _Launches(NamedTuple):
    """The prepared launches of `substitute`; it replaces all addresses in them."""

    width: int  # number of columns that the triangular solves are compiled for
    column_max: Any
    lower: Any
    triangles: tuple
    lift: Any


class _Triangle:
    """A launch of triangular_solve.cu, with clusters if the device has them.

    The result has the same bits with and without clusters.
    """

    def __init__(self, clusters, shapes, defines):
        self._clusters, self._shapes, self._defines, self._prepared = clusters, shapes, defines, {}

    @classmethod
    def of(cls, clusters, shapes, defines):
        """Return the launch with those shapes whose clusters the device can run."""
        fits = [s for s in shapes if not s.cluster or clusters.fits(_variant(defines, s))]
        return cls(clusters, fits, defines)

    def __call__(self, replaced):
        replaced = tuple(replaced)
        launch = functools.partial(self._launch, replaced)
        if not self._clusters.launch("triangular_solve", self._shapes, launch):
            raise DeviceError("the device refuses to launch a triangular solve; use device='cpu'")

    def _launch(self, replaced, shape):
        if shape not in self._prepared:
            name, entry, defines, *_ = _variant(self._defines, shape)
            grid, block = (shape.blocks, 1), (TRSV_THREADS, 1)
            kernel = compiler.kernel(name, entry, **dict(defines))
            self._prepared[shape] = kernel.prepared(grid, block, [0] * 8, 0)
        self._prepared[shape](replaced)


def _variant(defines, shape):
    defines = tuple((defines | shape.defines).items())
    name = "triangular_solve", "tcs_solve_triangle"
    return cluster_launch.Variant(*name, defines, shape.cluster, TRSV_THREADS)


@functools.lru_cache(maxsize=256)
def _launches(clusters, context, n, k, char, adjoint):
    width = next(width for width in TRSV_COLUMNS if width >= k)
    grid, threads, device = -(-n // VECTOR_THREADS), VECTOR_THREADS, context[0]
    count = current_device.properties(device)["multiprocessors"]
    shapes = trsv_shapes(-(-n // TRSV_BLOCK[char]), current_device.arch(device), count)

    def vectors(entry, args, columns):
        kernel = compiler.kernel("refinement_vectors", entry, T_LOW=REAL[char])
        return kernel.prepared((grid, columns), (threads, 1), args, 0)

    def triangle(lower):
        defines = {"T_IN": REAL[char], "K": width, "LOWER": int(lower), "TRANS": int(adjoint)}
        return _Triangle.of(clusters, shapes, defines)

    return _Launches(
        width,
        vectors("tcs_column_max", [0] * 4 + [n, k], k),
        vectors("tcs_lower", [0] * 8 + [n, k], width),
        (triangle(not adjoint), triangle(adjoint)),
        vectors("tcs_raise", [0] * 5 + [n], k),
    )
