"""Architectures: how they are spelled, and what clusters and shared memory they have."""

# Every architecture that must compile, in the spelling `target_arch` gives.
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")

# Largest cluster that every device with clusters launches; more needs permission (and 16 SMs of
# one GPC, which compute capability 12 has not).
CLUSTER_ARCH = 90
SMALLEST_CLUSTER = 2
PORTABLE_CLUSTER = 8
LARGEST_CLUSTER = 16

# Hopper's compute capability.
HOPPER = 90

# Shared memory that every block may have: 64 KB before compute capability 8, 99 KB and more since.
SHARED_BYTES = {75: 64 << 10, 80: 99 << 10}
# Where it is large, that of a block, and of a multiprocessor, which has some for itself for each block.
LARGEST_SHARED_BYTES, MULTIPROCESSOR_BYTES, RESERVED_BYTES = 227 << 10, 228 << 10, 1 << 10


def arch_number(arch):
    """Return 90 for 'sm_90' and 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def has_large_memory(number):
    """Tell whether a block may have 227 KB of shared memory, by the number of an architecture."""
    return number == 90 or 100 <= number < 110


def shared_bytes(arch):
    """Return the shared memory that a block may have on every device of this architecture or later."""
    return max(limit for least, limit in SHARED_BYTES.items() if arch_number(arch) >= least)
