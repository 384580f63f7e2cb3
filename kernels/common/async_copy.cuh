// Copies to shared memory that run by themselves, and groups of them (cp.async), from compute capability 8 on.
#pragma once

#include "common/sm_addresses.cuh"

#if __CUDA_ARCH__ >= 800
// Copies 16 bytes of which the first `bytes` exist; the others become zero.
__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
#endif

// What a thread has copied since the last time is a group.
__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most so many of its groups are still under way.
template <int PENDING> __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}
