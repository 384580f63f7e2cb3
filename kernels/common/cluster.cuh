// How the blocks of a thread-block cluster wait for each other, and send each other words: by st.async into shared
// memory, where an mbarrier counts the bytes.
#pragma once

#include "common/common.cuh"
#include "common/mbarrier.cuh"
#include "common/sm_addresses.cuh"

// What all blocks did before they arrived is seen by those that have waited.
__device__ __forceinline__ void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_in_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where a word goes in another block, and what counts it there.
struct Mailbox { unsigned word, barrier; };

__device__ __forceinline__ Mailbox mailbox_in(int block, const void* word, const void* barrier) {
    return {address_in(word, block), address_in(barrier, block)};
}

__device__ __forceinline__ void send(float4 v, Mailbox to, bool does) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n}"
                 :: "r"(to.word), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(to.barrier), "r"(int(does))
                 : "memory");
}
