// The power of two that brings a block of U into the range of FP16, and the factors alpha and beta of the update.
//
//   scale[0] = scale_to_top of the largest |u| (operand_scale.cuh)
//   alpha[0] = -1 / (scale[0] scale_l), beta[0] = 1, so that alpha P Q^T + beta C is C - L U.  Unless scale_by is null,
//              scale_l is multiplied by scale_by[0]
//
//   u     FP32 k x r, row-major, leading dimension ldu; for a complex block, its float view
//   work  unsigned[2], zero before and after; calls that may run at the same time need different ones
//
// Grid any (a few blocks a multiprocessor), block 256.  A maximum is exact, so the order of the blocks does not matter.

#include "common/operand_scale.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256;
constexpr int FLIGHT = 4;                        // words that a thread has in flight
constexpr int SEGMENT = FLIGHT * 4 * THREADS;    // floats of one row that a block reads at a time

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_update_scale(
    float* scale, float* alpha, float* beta, unsigned* work,
    const float* __restrict__ u, Index ldu, Index k, Index r, double scale_l,
    const float* __restrict__ scale_by
) {
    // As integers, the bits of |u| compare like |u|, and those of NaN are above infinity.
    unsigned largest = 0;
    const bool aligned = aligned16(u, ldu);
    const Index segments = (r + SEGMENT - 1) / SEGMENT;
    for (Index block = blockIdx.x; block < k * segments; block += gridDim.x) {
        const float* row = u + block / segments * ldu;
        const Index start = block % segments * SEGMENT + 4 * threadIdx.x;
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            const Index q = start + f * 4 * THREADS;
            Run<float, 4> x;
            x.load(row + q, aligned && q + 4 <= r, r - q);
            #pragma unroll
            for (int e = 0; e < 4; ++e) largest = max(largest, __float_as_uint(fabsf(x.at[e])));
        }
    }
    largest = largest_of_lanes(largest);
    if (threadIdx.x % WARP == 0) atomicMax(&work[0], largest);

    // The block that arrives last finds the maximum of all.
    __threadfence();
    __syncthreads();
    if (threadIdx.x != 0 || atomicAdd(&work[1], 1u) != gridDim.x - 1) return;
    __threadfence();
    const float s = scale_to_top(atomicExch(&work[0], 0u));
    atomicExch(&work[1], 0u);
    *scale = s;
    *alpha = alpha_of(s, scale_l * (scale_by ? *scale_by : 1.0f));
    *beta = 1.0f;
}
