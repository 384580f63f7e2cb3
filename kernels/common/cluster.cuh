// How the blocks of a thread-block cluster wait for each other, and send each other words.  st.async writes a word into
// the shared memory of another block, and a barrier there counts its bytes (mbarrier.cuh).
#pragma once

#include "common/common.cuh"
#include "common/mbarrier.cuh"
#include "common/sm_addresses.cuh"

// A block that has waited sees all writes that any block made before it arrived.
__device__ __forceinline__ void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_in_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of a word in another block, and of the barrier there that counts its bytes.
struct Mailbox { unsigned word, barrier; };

__device__ __forceinline__ Mailbox mailbox_in(int block, const void* word, const void* barrier) {
    return {address_in(word, block), address_in(barrier, block)};
}

// Sends a word, by the lanes with `does`, without a branch.
__device__ __forceinline__ void send(float4 v, Mailbox to, bool does) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n}"
                 :: "r"(to.word), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(to.barrier), "r"(int(does))
                 : "memory");
}
