// How the blocks of one thread-block cluster exchange their best rows: every block sends to all, by st.async into
// their shared memory, and an mbarrier of each receiver counts the bytes.
#pragma once

struct Board {};  // nothing in global memory

// Buffers alternate between even and odd columns j of a leaf: a warp may be one column ahead of another.
static_assert(WIDTH % 4 == 0, "every leaf finds the phases of both barriers where the first one found them");
struct __align__(16) Exchange {
    Message row_of_warp[2][WARPS], row_of_block[2][BLOCKS];
    Candidate best_of_warp[2][WARPS], best_of_block[2][BLOCKS];
    unsigned long long arrived[2];
};

__device__ __forceinline__ int block_count() { return BLOCKS; }

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// The address of the same shared variable in another block of the cluster.
__device__ __forceinline__ unsigned address_in(const void* p, unsigned block) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(block));
    return address;
}

// What all blocks did before they arrived is seen by those that have waited.
__device__ __forceinline__ void arrive_all(Team&) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_all(Team&) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void set_up(Exchange& x) {
    if (threadIdx.x < 2) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                     :: "r"(shared_address(&x.arrived[threadIdx.x])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
}

// Announces what this block is about to receive; one thread of it.
__device__ __forceinline__ void expect(Exchange& x, int words, int j) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(&x.arrived[j & 1])), "r"(BLOCKS * (16 * words + int(sizeof(Candidate))))
                 : "memory");
}

// Sends the first words of a row, of 16 bytes each, and its candidate to every block, each by a thread of its own.
__device__ __forceinline__ void send(
    Exchange& x, const Team& team, const Message& row, const Candidate& best, int words, int j, int
) {
    const int parity = j & 1;
    constexpr int ITEMS = MESSAGE_WORDS + 1;
    #pragma unroll
    for (int start = 0; start < BLOCKS * ITEMS; start += THREADS) {
        const int e = start + threadIdx.x, to = e / ITEMS, word = e % ITEMS;
        if (to >= BLOCKS) continue;
        const unsigned arrived = address_in(&x.arrived[parity], to);
        if (word == MESSAGE_WORDS) {
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%0], {%1, %2}, [%3];"
                         :: "r"(address_in(&x.best_of_block[parity][team.rank], to)),
                            "r"(best.size), "r"(best.code), "r"(arrived) : "memory");
        } else if (word < words) {
            const float4 v = reinterpret_cast<const float4*>(&row)[word];
            const float4* there = reinterpret_cast<const float4*>(&x.row_of_block[parity][team.rank]) + word;
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                :: "r"(address_in(there, to)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(arrived) : "memory");
        }
    }
}

// Waits for what all blocks send about a column and returns the best.
__device__ __forceinline__ Candidate receive(Exchange& x, const Team&, int j, int) {
    const int parity = j & 1;
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(&x.arrived[parity])), "r"((j >> 1) & 1) : "memory");
    } while (!done);
    return best_of_lanes(x.best_of_block[parity]);
}

__device__ __forceinline__ const Message& message_of(const Exchange& x, const Candidate& pivot, int j) {
    return x.row_of_block[j & 1][pivot.source()];
}
