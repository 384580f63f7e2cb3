// How the blocks of a thread-block cluster wait for each other, and read and write words in the shared memory of other
// blocks.  st.async writes a word, and a barrier in the other block counts its bytes (mbarrier.cuh).
#pragma once

#include "common/common.cuh"
#include "common/mbarrier.cuh"
#include "common/sm_addresses.cuh"

// After the wait, a block sees all writes that the other blocks made before they arrived.
__device__ __forceinline__ void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_in_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Arrives without making writes visible, which is enough for a block that has only read.
__device__ __forceinline__ void arrive_relaxed_in_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }

// Arrives and waits, for warps whose lanes do not run together.
__device__ __forceinline__ void meet_in_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ unsigned rank_in_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Read and write 32 bits in the shared memory of another block, at the address that p has in this block.
__device__ __forceinline__ unsigned load_from(const void* p, unsigned block) {
    unsigned bits;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(bits) : "r"(address_in(p, block)) : "memory");
    return bits;
}
__device__ __forceinline__ void store_to(void* p, unsigned block, unsigned bits) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(address_in(p, block)), "r"(bits) : "memory");
}

// The address of a word in another block, and of the barrier there that counts its bytes.
struct Mailbox { unsigned word, barrier; };

__device__ __forceinline__ Mailbox mailbox_in(int block, const void* word, const void* barrier) {
    return {address_in(word, block), address_in(barrier, block)};
}

// Sends a word.
__device__ __forceinline__ void send(int v, Mailbox to) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];"
                 :: "r"(to.word), "r"(v), "r"(to.barrier) : "memory");
}

// Sends 16 bytes from each lane for which `does` is true, without a branch.
__device__ __forceinline__ void send(float4 v, Mailbox to, bool does) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                 "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n}"
                 :: "r"(to.word), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(to.barrier), "r"(int(does))
                 : "memory");
}
