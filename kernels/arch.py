"""GPU architectures: their names, their largest clusters and their shared memory."""

# The architectures for which tests compile the kernels; a kernel that does not run on one of them is left out
# there.  They are spelled as by `target_arch`.
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")

# Clusters exist from CLUSTER_ARCH on.  A device with clusters can launch those of PORTABLE_CLUSTER blocks if
# it has as many multiprocessors.  Clusters of 16 blocks need a function attribute, and 16 multiprocessors in
# one GPC.  From compute capability 11 on, they are not launched.
CLUSTER_ARCH = 90
SMALLEST_CLUSTER = 2
PORTABLE_CLUSTER = 8
LARGEST_CLUSTER = 16

# The compute capability of Hopper.
HOPPER = 90

# Compute capabilities with a high rate in FP64.
FAST_FP64 = 80, 90, 100

# The shared memory that every block may have: 64 KB before compute capability 8, at least 99 KB since then.
SHARED_BYTES = {75: 64 << 10, 80: 99 << 10}
# On devices with large shared memory: the bytes of a block, the bytes of a multiprocessor, and the bytes that
# the hardware reserves for each block.
LARGEST_SHARED_BYTES, MULTIPROCESSOR_BYTES, RESERVED_BYTES = 227 << 10, 228 << 10, 1 << 10


def arch_number(arch):
    """Return the compute capability of an architecture as an integer: 90 for 'sm_90' and 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def has_large_memory(number):
    """Tell whether launch shapes may take 227 KB of shared memory; `number` is from `arch_number`."""
    return number == 90 or 100 <= number < 110


def shared_bytes(arch):
    """Return the bytes of shared memory that a block may have on this architecture and all later ones."""
    return max(limit for least, limit in SHARED_BYTES.items() if arch_number(arch) >= least)
