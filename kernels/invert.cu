// Inverses of the diagonal blocks of both triangles, and how well conditioned the worst block is.
//
//   inverse  T_IN [2][ceil(n / BLOCK)][BLOCK][BLOCK]: of the lower, then of the upper triangle's blocks; zero outside
//            the triangle and beyond n.
//   worst    double[1] as ordered bits, zero before the launch: becomes the largest || |D^-1| |D| || (infinity norm)
//            of the blocks D, or a NaN or infinity if one arises.
//   lu       T_IN n x n, row-major, leading dimension ld; the triangle that unit_lower names has ones on its
//            diagonal, which are not stored.
//
// Grid (ceil(n / BLOCK), 2), block BLOCK, dynamic shared memory sizeof(T_IN) BLOCK (BLOCK + 1) bytes.
// Defines T_IN (float or double).
// Rounding: substitution, a thread to each column of the inverse, with fused multiply-adds in T_IN.

#include "common.cuh"

constexpr int BLOCK = sizeof(T_IN) == 4 ? 128 : 64;
constexpr int WARPS = BLOCK / WARP;

// One triangle of a diagonal block, zero beyond it.
struct Triangle {
    const T_IN* at;
    Index ld;
    int rows;
    bool lower, unit;

    __device__ __forceinline__ T_IN operator()(int i, int k) const {
        if (i >= rows || k >= rows || (lower ? k > i : k < i)) return 0;
        return i == k && unit ? T_IN(1) : __ldg(at + i * ld + k);
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
tcs_invert_blocks(
    T_IN* inverse, unsigned long long* worst, const T_IN* __restrict__ lu, Index ld, Index n, Index unit_lower
) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    T_IN (*x)[BLOCK + 1] = reinterpret_cast<T_IN (*)[BLOCK + 1]>(dynamic);
    __shared__ __align__(16) T_IN row[2][BLOCK];  // of the triangle, the one at hand and the next
    __shared__ T_IN row_sum[BLOCK];
    const Index first = Index(blockIdx.x) * BLOCK;
    const bool lower = blockIdx.y == 0;
    const int t = threadIdx.x, lane = t % WARP, warp = t / WARP;
    const Triangle d = {lu + first * (ld + 1), ld, int(min(n - first, Index(BLOCK))), lower, lower == bool(unit_lower)};

    #pragma unroll 4
    for (int i = warp; i < BLOCK; i += WARPS) {
        T_IN sum = 0;
        #pragma unroll
        for (int k = lane; k < BLOCK; k += WARP) sum += fabs(d(i, k));
        #pragma unroll
        for (int s = WARP / 2; s; s /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, s);
        if (lane == 0) row_sum[i] = sum;
    }
    // Rows in the order of the substitution, for all columns at once: column t of the inverse is this thread's.
    row[0][t] = d(lower ? 0 : BLOCK - 1, t);
    for (int step = 0; step < BLOCK; ++step) {
        __syncthreads();
        const int i = lower ? step : BLOCK - 1 - step, next = lower ? i + 1 : i - 1;
        const T_IN ahead = step + 1 < BLOCK ? d(next, t) : T_IN(0);
        const T_IN* l = row[step & 1];
        T_IN value = 0;
        if (i < d.rows) {
            value = i == t ? T_IN(1) : T_IN(0);
            const int from = lower ? 0 : i + 1, to = lower ? i : d.rows;
            #pragma unroll 8
            for (int k = from; k < to; ++k) value = fma(-l[k], x[k][t], value);
            value /= l[i];
        }
        x[i][t] = value;
        row[~step & 1][t] = ahead;
    }
    __syncthreads();

    T_IN condition = 0;
    #pragma unroll 4
    for (int k = 0; k < BLOCK; ++k) condition += fabs(x[t][k]) * row_sum[k];
    // Bits of positive numbers compare like the numbers, and those of NaN come last.
    atomicMax(worst, static_cast<unsigned long long>(__double_as_longlong(fabs(double(condition)))));
    T_IN* out = inverse + (Index(blockIdx.y) * gridDim.x + blockIdx.x) * BLOCK * BLOCK;
    #pragma unroll 4
    for (int i = 0; i < BLOCK; ++i) out[i * BLOCK + t] = x[i][t];
}
