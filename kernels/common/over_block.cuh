// Numbers of all threads of a warp or of a block, joined into one.
#pragma once

#include "common/common.cuh"

// The same to all threads of a warp; `join` must not depend on the order of two numbers.
template <typename Join>
__device__ __forceinline__ double over_warp(double v, Join join) {
    #pragma unroll
    for (int d = WARP / 2; d; d /= 2) v = join(v, __shfl_xor_sync(ALL_LANES, v, d));
    return v;
}

// The same to all threads of a block of WARPS warps.
template <int WARPS, typename Join>
__device__ __forceinline__ double over_block(double v, Join join) {
    __shared__ double of_warp[WARPS];
    v = over_warp(v, join);
    __syncthreads();  // the last ones have been read
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    v = of_warp[0];
    #pragma unroll
    for (int w = 1; w < WARPS; ++w) v = join(v, of_warp[w]);
    return v;
}
