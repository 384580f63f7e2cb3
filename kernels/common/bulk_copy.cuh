// Copies of many bytes by the copy engine (TMA), from compute capability 9 on; one thread starts each.
//
// A barrier in shared memory (mbarrier.cuh) counts the bytes that a copy brings there.  Copies out of shared memory
// belong to groups, as those of async_copy.cuh do.  Addresses in shared memory are those that shared_address gives.
#pragma once

// Describes a matrix, and the boxes into which the matrix is cut; the driver makes this description.
struct __align__(64) TensorMap { unsigned long long opaque[16]; };

// Makes what this thread wrote to shared memory visible to the copy engine.
__device__ __forceinline__ void show_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- into shared memory ------------------------------------------------------------------------

__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int x, int y, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// Loads a box into all CLUSTER_BLOCKS blocks of the cluster.  The address and the barrier are the same in each block.
template <int CLUSTER_BLOCKS>
__device__ __forceinline__ void load_box_everywhere(unsigned to, const TensorMap& map, int x, int y, unsigned barrier) {
    constexpr unsigned short ALL = (1 << CLUSTER_BLOCKS) - 1;
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(ALL) : "memory");
}

// ---- out of shared memory ----------------------------------------------------------------------

// Copies consecutive bytes.  Their number and both addresses are multiples of 16.
__device__ __forceinline__ void store_bytes(void* to, unsigned from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, int x, int y, unsigned from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}

// Adds a box to the matrix, in the second-level cache.
__device__ __forceinline__ void add_box(const TensorMap& map, int x, int y, unsigned from) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%1, %2}], [%3];"
                 :: "l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}

// The same for a matrix that is not needed again soon: its lines leave the second-level cache before others.
__device__ __forceinline__ void add_passing_box(const TensorMap& map, int x, int y, unsigned from) {
    unsigned long long evict_first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint "
                 "[%0, {%1, %2}], [%3], %4;"
                 :: "l"(&map), "r"(x), "r"(y), "r"(from), "l"(evict_first) : "memory");
}

// Makes a group of the copies out of shared memory that this thread has started since the last call.
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last PENDING groups of this thread have been read from shared memory, which may then be
// overwritten.
template <int PENDING> __device__ __forceinline__ void wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}

// Waits until all groups of this thread have arrived in global memory.
__device__ __forceinline__ void wait_until_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
