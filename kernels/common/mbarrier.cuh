// Barriers in shared memory that count arrivals, and bytes that copies bring (mbarrier).
//
// A barrier has 8 bytes.  Functions take its address in shared memory (shared_address), or its variable.  It passes
// through phases: a phase is over when all arrivals, and all bytes that were expected, have come.  A wait names the
// phase by its parity; the phase before the first counts as over.  Barriers exist from compute capability 8 on.  From 9
// on, they also count bytes, a wait may suspend the thread, and other blocks of a cluster can arrive.
#pragma once

#include "common/common.cuh"
#include "common/sm_addresses.cuh"

// One thread sets up a barrier for COUNT arrivals a phase.
template <int COUNT>
__device__ __forceinline__ void init_barrier(unsigned barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "n"(COUNT) : "memory");
}

// Makes barriers that this thread has set up visible to the other blocks of the cluster and to the copy engine.
__device__ __forceinline__ void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive_at(unsigned barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" :: "r"(barrier) : "memory");
}

// Arrives, and announces bytes that must come before the phase is over.
__device__ __forceinline__ void expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// The same for each thread for which `does` is true, without a branch.
__device__ __forceinline__ void expect(unsigned barrier, unsigned bytes, bool does) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
                 "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n}"
                 :: "r"(barrier), "r"(bytes), "r"(int(does)) : "memory");
}

// Arrives at the same barrier of another block of the cluster, or of this one.  Relaxed: writes before the arrival need
// not be visible to those that wait.  With release here, and acquire in the wait, each stage of gemm_wgmma.cu needed a
// fence for the whole device, and all lines of the first-level cache became invalid.  This reduced the rate by a
// quarter.
__device__ __forceinline__ void arrive_relaxed(unsigned barrier, unsigned block) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];"
                 :: "r"(address_in(barrier, block)) : "memory");
}

// Whether the phase is over.  The thread may be suspended for a while if it is not.
__device__ __forceinline__ bool is_over(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

// The same without suspending the thread.
__device__ __forceinline__ bool is_over_now(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

// Waits for the end of a phase, each thread by itself.
__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
    while (!is_over(barrier, parity)) {}
}

// ---- a barrier by its variable, a phase by its number 0, 1, ... --------------------------------

// Sets up a barrier for one arrival a phase, and makes it visible to the other blocks.
__device__ __forceinline__ void set_up_barrier(unsigned long long& barrier) {
    init_barrier<1>(shared_address(&barrier));
    show_barriers();
}

__device__ __forceinline__ void expect(unsigned long long& barrier, int bytes, bool does) {
    expect(shared_address(&barrier), unsigned(bytes), does);
}

__device__ __forceinline__ bool is_over(const unsigned long long& barrier, int phase) {
    return is_over(shared_address(&barrier), unsigned(phase & 1));
}

// Waits by whole warps.  The vote tells the compiler that the lanes stay together.
__device__ __forceinline__ void wait_for(const unsigned long long& barrier, int phase) {
    while (!__all_sync(ALL_LANES, is_over(barrier, phase))) {}
}
