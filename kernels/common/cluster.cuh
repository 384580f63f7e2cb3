// How the blocks of a thread-block cluster wait for each other, and send each other words: by st.async into shared
// memory, where an mbarrier counts the bytes.
#pragma once

#include "common/common.cuh"
#include "common/sm_addresses.cuh"

// What all blocks did before they arrived is seen by those that have waited.
__device__ __forceinline__ void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_in_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void set_up_barrier(unsigned long long& barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Announces what is to arrive in this block before a barrier's phase is over; one thread `does`.
__device__ __forceinline__ void expect(unsigned long long& barrier, int bytes, bool does) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
                 "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n}"
                 :: "r"(shared_address(&barrier)), "r"(bytes), "r"(int(does)) : "memory");
}

// Whether phase 0, 1, ... of a barrier is over, for which a lane may wait a while; phase -1 counts as over.
__device__ __forceinline__ bool is_over(const unsigned long long& barrier, int phase) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared_address(&barrier)), "r"(phase & 1) : "memory");
    return done;
}

__device__ __forceinline__ void wait_for(const unsigned long long& barrier, int phase) {
    // All, so that the compiler knows that the lanes stay together.
    while (!__all_sync(ALL_LANES, is_over(barrier, phase))) {}
}

// Where a word goes in another block, and what counts it there.
struct Mailbox { unsigned word, barrier; };

__device__ __forceinline__ Mailbox mailbox_in(int block, const void* word, const unsigned long long& barrier) {
    return {address_in(word, block), address_in(&barrier, block)};
}

__device__ __forceinline__ void send(float4 v, Mailbox to, bool does) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n}"
                 :: "r"(to.word), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(to.barrier), "r"(int(does))
                 : "memory");
}
