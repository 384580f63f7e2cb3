"""The arguments of the GEMM kernels for one product: operands, scales, parts, and slices of k."""

import copy

import cupy
import numpy as np

from tcsolve._backends.cuda.gemm.layout import KINDS, Stored, as_stored, empty_aligned, leading
from tcsolve._backends.cuda.gemm.wgmma import NO_ORIGIN, TURN_WORDS, split_blocks, split_kernel
from tcsolve._backends.cuda.runtime import cluster_launch, compiler
from tcsolve.kernels.product_shapes import WGMMA_DEPTH, split_shape

__all__ = ["Work"]

# Largest k of one launch of gemm_wgmma.cu with several products.  On an H200, one launch was as fast as two
# at k = 16384, and up to 5 % slower than several at k = 32768 and 65536 (one comparison, no results file).
LONGEST_SUM = 8192


class Work:
    """One product, with properties that return the arguments of the kernels."""

    def __init__(self, job, stored, arch, multiprocessors):
        a, b, self.c, self.out, self.product, self.alpha, self.beta, _ = job
        (self.a, self.b), self.arch, self.multiprocessors = stored, arch, multiprocessors
        (self.m, self.k), self.n = a.shape, b.shape[1]
        self.scaled = not (self.product.direct or self.product.native)
        self.top_a = self.top_b = self._turns = None
        self.split_how = None  # (defines, shape) of split_once, if it has split the operands

    @classmethod
    def of(cls, job, arch, multiprocessors):
        """Return the work of a `Job`; operands that the kernels cannot read are copied."""
        dtype = None if job.product.direct else np.dtype(job.product.accumulator)
        stored = [as_stored(x, dtype) for x in (job.a, job.b)]
        job = job._replace(alpha=float(job.alpha), beta=float(job.beta))
        return cls(job, stored, arch, multiprocessors)

    def find_tops(self):
        """Find the largest entry of each row of op(a) and each column of op(b), if these are scaled."""
        if not self.scaled:
            return
        self._make_room()
        kernel = split_kernel("tcs_tops")
        blocks = sum(_top_blocks(*x[3:]) for x in self.to_scale)
        kernel((blocks,), (32, 8), sum(self.to_scale, ()))

    def _make_room(self):
        tops = cupy.zeros(self.m + self.n + TURN_WORDS, cupy.uint32)
        self.top_a, self.top_b = tops[: self.m], tops[self.m : -TURN_WORDS]
        self._turns = tops[-TURN_WORDS:]

    @property
    def to_scale(self):
        """The arguments x, ld, top, by_row, rows, cols for a and for b."""
        a, b = self.a, self.b
        return (
            (a.array, a.ld, self.top_a, int(not a.transposed), *a.array.shape),
            (b.array, b.ld, self.top_b, int(b.transposed), *b.array.shape),
        )

    def split(self, *parts):
        """Scale and split both operands, and return [hi, lo] of each.

        `parts` has two switches: whether a, and whether b, has a second part; if not, its lo is None.
        """
        low = self.product.precision
        stored = cupy.float32 if low == "tf32" else cupy.uint16
        pairs = [
            [empty_aligned(x.array.shape, stored) if wanted else None for wanted in (1, part)]
            for x, part in zip((self.a, self.b), parts, strict=True)
        ]
        shape = split_shape(tuple(x[3:] for x in self.to_scale), self.arch)
        if shape is None or not self._split_once(pairs, shape):
            self.find_tops()
            blocks = sum(split_blocks(*x.array.shape) for x in (self.a, self.b))
            split_kernel("tcs_split", low)((blocks,), (32, 8), sum(self._to_split(pairs), ()))
        return pairs

    def _split_once(self, pairs, shape):
        """Scale and split both operands in one pass; return False if the device cannot run its clusters."""
        defines = {"T_LOW": self.product.precision} | shape.defines
        entry, clusters = ("split_once", "tcs_split_once"), cluster_launch.in_force()
        needs = shape.defines["CLUSTER"], shape.threads
        if not clusters.fits(cluster_launch.Variant(*entry, tuple(defines.items()), *needs)):
            return False
        self._make_room()
        a, b = self._to_split(pairs)
        (share_a, share_b), (blocks_a, blocks_b) = shape.shares, shape.blocks
        args = *a, share_a, blocks_a, *b, share_b

        def launch(threads):
            kernel = compiler.kernel("split_once", "tcs_split_once", **defines)
            kernel((blocks_a + blocks_b,), (threads,), args)

        done = clusters.launch("split_once", [shape.threads], launch)
        self.split_how = (defines, shape) if done else None
        return done

    def _to_split(self, pairs):
        """Return the arguments of `to_scale`, then hi, lo, ld_out, for a and for b."""
        return [(*x, hi, lo, leading(hi)) for x, (hi, lo) in zip(self.to_scale, pairs, strict=True)]

    def along_k(self, pairs):
        """Yield (part of the work, [hi, lo] of both operands) for slices of k.

        Each part but the first is added to `out`.  So k is divided only if `out` is FP32 and holds the sums
        without rounding them.
        """
        refined = self.scaled and self.product.level and self.out.dtype == np.float32
        count = -(-self.k // LONGEST_SUM) if refined else 1
        if count == 1:
            yield self, pairs
            return
        depth = -(-self.k // (count * WGMMA_DEPTH)) * WGMMA_DEPTH
        whole = slice(None)
        for first in range(0, self.k, depth):
            part, k = copy.copy(self), slice(first, min(self.k, first + depth))
            part.a, part.b, part.k = self.a.cut(whole, k), self.b.cut(k, whole), k.stop - first
            if first:
                part.c, part.beta = self.out, 1.0
            yield part, [_cut(pairs[0], self.a, whole, k), _cut(pairs[1], self.b, k, whole)]

    @property
    def turns(self):
        """Words in which `launch_wgmma` counts tiles; they are zero, and no other product uses them."""
        if self._turns is None:
            self._turns = cupy.zeros(TURN_WORDS, cupy.uint32)
        return self._turns

    @property
    def target(self):
        """The arguments out, ld_out, kind, c, ld_c."""
        ld_c = 0 if self.c is None else leading(self.c)
        return self.out, leading(self.out), KINDS[self.out.dtype.name], self.c, ld_c

    @property
    def origin(self):
        """The arguments a, row_a, col_a, top_a, b, row_b, col_b, top_b; null if nothing was scaled."""
        if not self.scaled:
            return NO_ORIGIN
        return self.operands

    @property
    def operands(self):
        a, b = self.a, self.b
        return a.array, *a.strides, self.top_a, b.array, *b.strides, self.top_b

    @property
    def sizes(self):
        """The arguments m, n, k, alpha, beta."""
        return self.m, self.n, self.k, self.alpha, self.beta

    @property
    def defines(self):
        low = self.product.precision
        return {
            "T_IN": "float" if self.scaled else low,
            "T_LOW": low,
            "REFINE": self.product.level,
        }

    @property
    def transposes(self):
        return {"TRANS_A": int(self.a.transposed), "TRANS_B": int(self.b.transposed)}


def _cut(pair, operand, rows, cols):
    """Return [hi, lo] of op(x)[rows, cols] for an operand; lo may be None."""
    return [x if x is None else Stored(x, operand.transposed).cut(rows, cols).array for x in pair]


def _top_blocks(by_row, rows, cols):
    """Return the number of blocks of tcs_tops for a matrix."""
    return -(-rows // 8) if by_row else -(-cols // 128) * -(-rows // 256)
