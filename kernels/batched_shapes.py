"""The launch shapes of gemm_batched.cu: the division of a batch of small products into blocks."""

from typing import NamedTuple

from tcsolve.kernels.arch import (
    CLUSTER_ARCH,
    MULTIPROCESSOR_BYTES,
    RESERVED_BYTES,
    arch_number,
    has_large_memory,
    shared_bytes,
)

# Largest dimension of a matrix for gemm_batched.cu, bytes of operands that a block copies at a time, and
# registers of a thread for the rows of A.
LARGEST_BATCHED = 64
BATCHED_BYTES = 8 << 10
BATCHED_REGISTERS = 72
# On devices with large shared memory, fewer resident blocks are faster if each computes one product whose
# 16-bit operands have LARGE_OPERANDS bytes or more.  Then a launch takes more shared memory than it needs, so
# that only as many blocks are resident as together need USED_BYTES or less.  On an H200, 32768 products of
# 64 x 64 matrices in FP16 take 185.5 instead of 186.5 us, and 256.5 instead of 259.7 us with FP32 results.
LARGE_OPERANDS, USED_BYTES = 16 << 10, 164 << 10
IN_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "float": 4, "int8": 1}
# Bytes of an entry of the result, by its kind (gemm.cuh).
OUT_BYTES = (4, 2, 2, 4)


class BatchedShape(NamedTuple):
    """A launch shape of gemm_batched.cu.

    A block computes `count` products at a time, and copies operands `stages` - 1 steps ahead.
    A warp multiplies `height` strips of 16 rows together.  gemm_batched.cu explains `brief` and `bulk`.
    """

    threads: int
    count: int
    height: int
    stages: int
    shared_bytes: int
    brief: int = 0
    bulk: int = 0

    @property
    def defines(self):
        """The macros of gemm_batched.cu that describe the launch."""
        return {name.upper(): value for name, value in self._asdict().items()}

    def grid(self, products, most):
        """Return the number of blocks to launch on a device that holds `most` blocks at a time."""
        chunks = -(-products // self.count)
        return chunks if self.brief else min(chunks, most)


class Batched(NamedTuple):
    """The macros of gemm_batched.cu that describe the product, with their names in lower case."""

    size_m: int
    size_n: int
    size_k: int
    t_in: str
    t_low: str
    refine: int
    trans_a: int
    trans_b: int
    store_a: int
    store_b: int
    kind: int
    addend: int
    dense: int

    @property
    def defines(self):
        return {name.upper(): value for name, value in self._asdict().items()}

    @property
    def operands(self):
        """For A, then for B: (m or n, whether the rows in shared memory run along k, STORE)."""
        a = (self.size_m, not self.trans_a, self.store_a)
        return a, (self.size_n, bool(self.trans_b), self.store_b)

    @property
    def two(self):
        """Whether a warp computes two products at a time."""
        return self.size_m <= 8 and self.size_k <= 16 // IN_BYTES[self.t_low]

    @property
    def strips(self):
        return 1 if self.two else -(-self.size_m // 16)

    def row_bytes(self, operand):
        across, along_k, _ = operand
        return (self.size_k if along_k else across) * IN_BYTES[self.t_in]

    def in_blocks(self, operand):
        """Tell whether ldmatrix can load an operand directly."""
        sixteen = self.t_in in ("fp16", "bf16")
        return sixteen and self.row_bytes(operand) % 16 == 0 and self.size_k % 8 == 0

    def operand_bytes(self, operand, count):
        """Return the bytes of shared memory for `count` matrices, as in batched_operand.cuh."""
        across, along_k, store = operand
        row_bytes = self.row_bytes(operand)
        whole = row_bytes % 16 == 0
        pitch = row_bytes + 16 if self.t_in == "float" and row_bytes % 128 == 0 else row_bytes
        matrices = (across if along_k else self.size_k) * pitch * (1 if store == 2 else count)
        return -(-matrices // 16) * 16 + (0 if whole else 16)

    def gathered_bytes(self, height, bulk=0):
        """Return the bytes of shared memory in which a warp gathers its results."""
        size = OUT_BYTES[self.kind]
        tiles, turn = (2 if self.size_n > 8 else 1), not self.in_blocks(self.operands[1])
        traded = not turn and self.size_n % 8 == 0 and (size == 2 or self.size_n >= 32)
        run = 4 if tiles == 2 and (turn or traded) else 2
        if not self.dense or (self.size_n % run == 0 and not bulk):
            return 0
        rows = 2 * self.size_m if self.two else min(self.size_m, 16 * height)
        return -(-rows * self.size_n * size // 16) * 16 + 16


def batched_shape(batched, arch):
    """Return the `BatchedShape` for a `Batched`, or None if no shape fits in shared memory."""
    limit = shared_bytes(arch)
    height = _height(batched)
    each = _operand_bytes(batched)
    count = max(1, min(256, BATCHED_BYTES // max(each, 1)))
    count += count % 2 if batched.two else 0
    if count == 1 and batched.dense and (batched.store_a, batched.store_b) == (1, 1):
        # Each block computes one product and ends (`brief`).
        words = batched.size_m * batched.size_n * OUT_BYTES[batched.kind] % 16 == 0
        bulk = int(words and batched.t_in != "float" and arch_number(arch) >= CLUSTER_ARCH)
        shape = batched_shape_of(batched, height, 1, 1, brief=1, bulk=bulk)
        if shape.shared_bytes <= limit:
            return shape
    for number, stages in ((count, _stages(batched, each)), (count, 1), (1, 1)):
        shape = batched_shape_of(batched, height, number, stages)
        if shape.shared_bytes <= limit:
            return shape
    return None


def batched_room(batched, shape, arch):
    """Return the bytes of shared memory of a launch; more than needed if fewer resident blocks are faster."""
    sixteen = batched.t_in in ("fp16", "bf16") and has_large_memory(arch_number(arch))
    if not (shape.brief and sixteen and _operand_bytes(batched) >= LARGE_OPERANDS):
        return shape.shared_bytes
    # The smallest size that leaves no room for another block.
    least = MULTIPROCESSOR_BYTES // (USED_BYTES // shape.shared_bytes + 1) - RESERVED_BYTES + 1
    return max(shape.shared_bytes, -(-least // 16) * 16)


def _operand_bytes(batched):
    """Return the bytes of the operands of one product, without operands that all products share."""
    size = IN_BYTES[batched.t_in] * batched.size_k
    return size * sum(across for across, _, store in batched.operands if store != 2)


def _stages(batched, each):
    """Return the number of stages; `each` is the number of bytes of the operands of a product.

    Most products have one stage.  Then more blocks fit on a multiprocessor, and one computes while others
    wait (measured on an H200).  There are three stages for small FP32 operands, and for large 16-bit operands
    with results of 4 bytes.
    """
    short_and_rounded = batched.t_in == "float" and each < 4 << 10
    long_results = each >= 16 << 10 and batched.in_blocks(batched.operands[1])
    return 3 if short_and_rounded or (long_results and OUT_BYTES[batched.kind] == 4) else 1


def batched_shape_of(batched, height, count, stages, warps=4, **how):
    """Return the `BatchedShape` with these numbers; `how` has `brief` and `bulk`."""
    tasks = -(-count // 2) if batched.two else count * -(-batched.strips // height)
    warps = min(warps, tasks)
    total = warps * batched.gathered_bytes(height, how.get("bulk", 0))
    for operand in batched.operands:
        part = batched.operand_bytes(operand, count)
        total += part if operand[2] == 2 else stages * part
    return BatchedShape(32 * warps, count, height, stages, total, **how)


def _height(batched):
    """Return how many strips a warp multiplies with the same part of B; one if ldmatrix can load B."""
    if batched.in_blocks(batched.operands[1]):
        return 1
    slices = -(-batched.size_k // (32 // IN_BYTES[batched.t_low]))
    registers = slices * (8 if batched.refine else 4)
    most = max(1, min(4, BATCHED_REGISTERS // registers))
    parts = -(-batched.strips // most)
    return -(-batched.strips // parts)
