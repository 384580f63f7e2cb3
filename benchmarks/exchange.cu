// The exchange that each column of a panel needs, without other work: every warp of a cluster sends 16 bytes to all
// blocks of the cluster, and finds the largest of the values that the warps have sent.
//
//   rounds  number of exchanges; a warp sends the largest value of the exchange before, plus 1
//   result  float[BLOCKS]: the last value of each block, which must be `rounds`
//
// Defines BLOCKS, the number of blocks of the cluster, and WARPS, the number of warps of a block.  Messages use
// st.async, counted by an mbarrier, as in exchange_cluster.cuh.

#include "common/sm_addresses.cuh"

constexpr int WARP = 32, CANDIDATES = BLOCKS * WARPS;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ void expect(const unsigned long long& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(&barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for(const unsigned long long& barrier, int phase) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(&barrier)), "r"(phase & 1) : "memory");
    } while (!__all_sync(ALL_LANES, done));
}

__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(WARP * WARPS, 1)
exchange(long long rounds, float* result) {
    __shared__ __align__(16) float4 candidate[2][CANDIDATES];
    __shared__ unsigned long long arrived[2];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (threadIdx.x < 2) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&arrived[threadIdx.x])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0 && rounds) expect(arrived[0], sizeof candidate[0]);
    meet();  // no block sends before the barriers of all are there
    unsigned own = 0;
    for (int j = 0; j < rounds; ++j) {
        const float mine = __uint_as_float(__reduce_max_sync(ALL_LANES, own)) + 1;
        if (lane < BLOCKS) {
            const float4* const to = &candidate[j & 1][blockIdx.x * WARPS + warp];
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %1, %1, %1}, [%2];"
                         :: "r"(address_in(to, lane)), "f"(mine), "r"(address_in(&arrived[j & 1], lane)) : "memory");
        }
        if (threadIdx.x == 0 && j + 1 < rounds) expect(arrived[(j + 1) & 1], sizeof candidate[0]);
        wait_for(arrived[j & 1], j >> 1);
        float best = 0;
        #pragma unroll
        for (int k = lane; k < CANDIDATES; k += WARP) best = fmaxf(best, candidate[j & 1][k].x);
        own = __reduce_max_sync(ALL_LANES, __float_as_uint(best));
    }
    if (threadIdx.x == 0) result[blockIdx.x] = __uint_as_float(own);
    meet();  // no block leaves while another may still send to it
}
