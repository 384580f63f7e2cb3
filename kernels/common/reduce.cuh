// Reductions over the lanes of a warp and over the threads of a block.
//
// A reduction over lanes is a butterfly: in a step of distance d, lane i joins its own value with that of its partner
// i ^ d.  All lanes get the result.  `join` must not depend on the order of its arguments; otherwise the lanes may end
// with different results.
#pragma once

#include "common/common.cuh"

// The value of a lane's partner at distance d.
template <typename T>
__device__ __forceinline__ T of_partner(T v, int d) { return __shfl_xor_sync(ALL_LANES, v, d); }

// Calls step(d) for all distances of a butterfly over groups of OF neighbouring lanes.
template <int OF = WARP, typename Step>
__device__ __forceinline__ void butterfly(Step step) {
    #pragma unroll
    for (int d = OF / 2; d; d /= 2) step(d);
}

// Over groups of OF neighbouring lanes.
template <int OF = WARP, typename T, typename Join>
__device__ __forceinline__ T over_lanes(T v, Join join) {
    #pragma unroll
    for (int d = OF / 2; d; d /= 2) v = join(v, of_partner(v, d));
    return v;
}

template <int OF = WARP, typename T>
__device__ __forceinline__ T sum_of_lanes(T v) {
    return over_lanes<OF>(v, [](T x, T y) { return x + y; });
}

// For integers; a maximum of floating-point numbers must say what it does with NaN.
template <int OF = WARP, typename T>
__device__ __forceinline__ T largest_of_lanes(T v) {
    static_assert(T(1) / T(2) == T(0), "integers only");
    return over_lanes<OF>(v, [](T x, T y) { return max(x, y); });
}

// The same for a whole warp, in one instruction where the device has it; for `int` and `unsigned`.
template <typename T>
__device__ __forceinline__ T largest_of_warp(T v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, v);
#else
    return largest_of_lanes(v);
#endif
}

// The smallest of a warp; an `int` must not be INT_MIN.
__device__ __forceinline__ int smallest_of_warp(int v) { return -largest_of_warp(-v); }

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ unsigned smallest_of_warp(unsigned v) { return __reduce_min_sync(ALL_LANES, v); }
#endif

// Over a block of WARPS warps, for each of VALUES numbers.
template <int WARPS, int VALUES, typename Join>
__device__ __forceinline__ void all_over_block(double (&v)[VALUES], Join join) {
    __shared__ double of_warp[VALUES][WARPS];
    #pragma unroll
    for (int q = 0; q < VALUES; ++q) v[q] = over_lanes(v[q], join);
    __syncthreads();  // all have read the values of the call before
    #pragma unroll
    for (int q = 0; q < VALUES; ++q) if (threadIdx.x % WARP == 0) of_warp[q][threadIdx.x / WARP] = v[q];
    __syncthreads();
    #pragma unroll
    for (int q = 0; q < VALUES; ++q) {
        v[q] = of_warp[q][0];
        #pragma unroll
        for (int w = 1; w < WARPS; ++w) v[q] = join(v[q], of_warp[q][w]);
    }
}

// The same for one number.
template <int WARPS, typename Join>
__device__ __forceinline__ double over_block(double v, Join join) {
    double one[1] = {v};
    all_over_block<WARPS>(one, join);
    return one[0];
}

// The largest v >= 0 of the block, for each of VALUES numbers; NaN if one of them is NaN.  As integers, the bits of
// such numbers compare like the numbers.  Two successive calls without a barrier between them have different values of
// FLIP, 0 and 1, so that no thread writes what others still read.
template <int WARPS, int FLIP, int VALUES>
__device__ __forceinline__ void largest_of_block(double (&v)[VALUES]) {
    using Bits = unsigned long long;
    __shared__ Bits of_warp[2][VALUES][WARPS];
    #pragma unroll
    for (int q = 0; q < VALUES; ++q) {
        const unsigned high = __double2hiint(v[q]), low = __double2loint(v[q]);
        const unsigned most = largest_of_warp(high), rest = largest_of_warp(high == most ? low : 0u);
        v[q] = __hiloint2double(int(most), int(rest));
        if (WARPS > 1 && threadIdx.x % WARP == 0) of_warp[FLIP][q][threadIdx.x / WARP] = Bits(most) << 32 | rest;
    }
    if constexpr (WARPS == 1) {
        __syncwarp();
    } else {
        __syncthreads();
        #pragma unroll
        for (int q = 0; q < VALUES; ++q) {
            Bits most = of_warp[FLIP][q][0];
            #pragma unroll
            for (int w = 1; w < WARPS; ++w) most = max(most, of_warp[FLIP][q][w]);
            v[q] = __longlong_as_double(most);
        }
    }
}

// The same for one number.
template <int WARPS, int FLIP>
__device__ __forceinline__ double largest_of_block(double v) {
    double one[1] = {v};
    largest_of_block<WARPS, FLIP>(one);
    return one[0];
}
