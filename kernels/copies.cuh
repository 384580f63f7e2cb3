// Groups of copies to shared memory that run by themselves (cp.async), from compute capability 8 on.
#pragma once

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
