// Asynchronous copies to shared memory (cp.async), from compute capability 8 on.  On earlier devices callers copy by
// ordinary loads and stores, and commit_copies and the waits do nothing.
#pragma once

#include "common/sm_addresses.cuh"

#if __CUDA_ARCH__ >= 800
// Copies 16 bytes, but not through the first-level cache.  Only the first `bytes` are read; the others become zero.
template <typename To, typename From>
__device__ __forceinline__ void copy_16(To* to, const From* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// Copies 16 bytes if they are `wanted`, else writes zeros.
__device__ __forceinline__ void copy_or_zero(float* to, const float* from, bool wanted) {
    copy_16<void, void>(to, from, wanted ? 16 : 0);
}

// Copies 4, 8 or 16 bytes through the first-level cache.
template <int BYTES>
__device__ __forceinline__ void copy_cached(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"(shared_address(to)), "l"(from), "n"(BYTES) : "memory");
}

// The same, but only the first `bytes` are read; the others become zero.
template <int BYTES>
__device__ __forceinline__ void copy_cached(void* to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(bytes) : "memory");
}
#endif

// Makes a group of the copies that this thread has started since the last call; the group may be empty.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING groups of this thread are still under way.
template <int PENDING> __device__ __forceinline__ void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}

// Waits for all copies of this thread, committed or not.
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
