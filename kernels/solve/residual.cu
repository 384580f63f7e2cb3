// r = b - A x for one right-hand side in one pass over A, and the sizes of r and of x.
//
//   a      T_A n x n, row-major, leading dimension lda.
//   where  null, or points to the address of a, for a recorded launch that serves other matrices later.
//   x, r   double[n] contiguous.
//   b      double, entries b_step apart.
//   sizes  unsigned long long[2], zero before the launch: max |r|, then max |x|, as the bits of a double.  As integers
//          these compare like the numbers, and NaN is the largest.
//
// Grid ceil(n / (8 ROWS)), block 256.  A warp takes ROWS rows and reads x from the cache once for all of them; for a
// small A one row is faster, because there are more warps.
// Defines T_A (float or double), ROWS (1 or 4).
// Rounding: fused multiply-adds in FP64, in an order that depends on n, ROWS and T_A alone; then one subtraction.

#include "common/common.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int RUN = 16 / sizeof(T_A);           // entries of A in one access
constexpr int FLIGHT = ROWS == 1 ? 8 : 4;       // accesses to a row at a time

using Bits = unsigned long long;

__device__ __forceinline__ Bits bits(double v) { return static_cast<Bits>(__double_as_longlong(fabs(v))); }

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_matrix_residual(
    double* r, Bits* sizes, const T_A* a, const T_A* const* where, Index lda, const double* __restrict__ x,
    const double* __restrict__ b, Index b_step, Index n
) {
    if (where) a = *where;
    __shared__ Bits largest[2][WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Index row0 = (Index(blockIdx.x) * WARPS + warp) * ROWS;
    const bool aligned = aligned16(a, lda), x_aligned = aligned16(x, 0);
    double sum[ROWS][FLIGHT] = {};
    for (Index q0 = lane * RUN; q0 < n; q0 += FLIGHT * WARP * RUN) {
        Run<T_A, RUN> of_a[ROWS][FLIGHT];
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            const Index q = q0 + f * WARP * RUN;
            #pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const Index left = row0 + i < n ? n - q : 0;
                of_a[i][f].load(a + (row0 + i) * lda + q, aligned && left >= RUN, left);
            }
        }
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            const Index q = q0 + f * WARP * RUN, left = n - q;
            Run<double, RUN> of_x;
            of_x.load(x + q, x_aligned && left >= RUN, left);
            #pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                #pragma unroll
                for (int e = 0; e < RUN; ++e) sum[i][f] = fma(double(of_a[i][f].at[e]), of_x.at[e], sum[i][f]);
            }
        }
    }
    Bits of_r = 0, of_x = 0;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        double total = 0;
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) total += sum[i][f];
        total = sum_of_lanes(total);
        if (row0 + i >= n) continue;
        const double v = b[(row0 + i) * b_step] - total;
        if (lane == 0) r[row0 + i] = v;
        of_r = max(of_r, bits(v)), of_x = max(of_x, bits(x[row0 + i]));
    }
    if (lane == 0) largest[0][warp] = of_r, largest[1][warp] = of_x;
    __syncthreads();
    if (threadIdx.x >= 2) return;
    Bits top = 0;
    #pragma unroll
    for (int w = 0; w < WARPS; ++w) top = max(top, largest[threadIdx.x][w]);
    if (top) atomicMax(sizes + threadIdx.x, top);
}
