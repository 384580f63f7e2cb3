// What the GEMM engines need around a product: scales, split operands, and the last step.
//
//   tcs_row_top  top[i] = bits of max_j |x_ij|          tcs_col_top  top[j] = bits of max_i |x_ij|
//   tcs_split    hi = rn(s x), lo = rn(s x - hi), with the power of two s that `top` gives a row or column
//   tcs_finish   out = alpha (sum, unscaled) + beta c
//
// x is FP32 rows x cols, row-major, leading dimension ld.  tcs_col_top needs top zeroed and keeps the largest;
// the order of its blocks does not show.  `by_row`: top has an entry for each row, else for each column.
// hi and lo (null if not wanted) are row-major with leading dimension ld_out, a multiple of 16 bytes.
// sum is FP32 m x n with leading dimension ld_sum; Origin and Target as in gemm.cuh.
//
// Grid and block:  tcs_row_top ceil(rows / 8) of (32, 8);  tcs_col_top (ceil(cols / 128), ceil(rows / 256)) of
// (32, 8);  tcs_split (ceil(rows / 8), ceil(cols / 256)) of (32, 8);  tcs_finish (ceil(m / 8), ceil(n / 256))
// of (32, 8).  Rows are in the first dimension of the grid, which has no limit that matters.
// Defines T_LOW (fp16, bf16 or tf32).

#include "gemm.cuh"

constexpr int GROUP = 8;            // rows of a block
constexpr int ROWS_PER_CHUNK = 256; // rows a block of tcs_col_top looks at

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_row_top(unsigned* __restrict__ top, const float* __restrict__ x, Index ld, Index rows, Index cols) {
    const Index row = Index(blockIdx.x) * GROUP + threadIdx.y;
    if (row >= rows) return;
    const bool vector = aligned16(x, ld);
    unsigned largest = 0;
    #pragma unroll 4
    for (Index q = 4 * threadIdx.x; q < cols; q += 4 * WARP) {
        Run<float, 4> run;
        run.load(x + row * ld + q, vector && q + 4 <= cols, cols - q);
        #pragma unroll
        for (int e = 0; e < 4; ++e) largest = max(largest, bits_of_size(run.at[e]));
    }
    #pragma unroll
    for (int d = WARP / 2; d; d /= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, d));
    if (threadIdx.x == 0) top[row] = largest;
}

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_col_top(unsigned* __restrict__ top, const float* __restrict__ x, Index ld, Index rows, Index cols) {
    __shared__ unsigned found[GROUP][4 * WARP];
    const Index col = Index(blockIdx.x) * 4 * WARP + 4 * threadIdx.x, row0 = Index(blockIdx.y) * ROWS_PER_CHUNK;
    const bool vector = aligned16(x, ld) && col + 4 <= cols;
    unsigned largest[4] = {};
    #pragma unroll 4
    for (int i = threadIdx.y; i < ROWS_PER_CHUNK; i += GROUP) {
        if (row0 + i >= rows) break;
        Run<float, 4> run;
        run.load(x + (row0 + i) * ld + col, vector, cols - col);
        #pragma unroll
        for (int e = 0; e < 4; ++e) largest[e] = max(largest[e], bits_of_size(run.at[e]));
    }
    #pragma unroll
    for (int e = 0; e < 4; ++e) found[threadIdx.y][4 * threadIdx.x + e] = largest[e];
    __syncthreads();
    const int mine = threadIdx.y * WARP + threadIdx.x;
    if (mine >= 4 * WARP || Index(blockIdx.x) * 4 * WARP + mine >= cols) return;
    unsigned all = 0;
    #pragma unroll
    for (int i = 0; i < GROUP; ++i) all = max(all, found[i][mine]);
    atomicMax(top + Index(blockIdx.x) * 4 * WARP + mine, all);
}

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_split(
    T_LOW* __restrict__ hi, T_LOW* __restrict__ lo, Index ld_out, const float* __restrict__ x, Index ld,
    const unsigned* __restrict__ top, Index by_row, Index rows, Index cols
) {
    constexpr int RUN = 8;
    const Index row = Index(blockIdx.x) * GROUP + threadIdx.y;
    const Index q = (Index(blockIdx.y) * WARP + threadIdx.x) * RUN, left = cols - q;
    if (row >= rows || left <= 0) return;
    Run<float, RUN> in;
    in.load(x + row * ld + q, left >= RUN && aligned16(x, ld), left);
    Run<T_LOW, RUN> high, low;
    #pragma unroll
    for (int e = 0; e < RUN; ++e) {
        const unsigned largest = e < left ? top[by_row ? row : q + e] : 0;
        const float scaled = in.at[e] * power_of_two(fit(largest));
        high.at[e] = round_to<T_LOW>(scaled);
        low.at[e] = round_to<T_LOW>(scaled - widen(high.at[e]));
    }
    high.store(hi + row * ld_out + q, left >= RUN, left);
    if (lo) low.store(lo + row * ld_out + q, left >= RUN, left);
}

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_finish(
    void* out, Index ld_out, Index kind, const void* c, Index ld_c, const float* __restrict__ sum, Index ld_sum,
    const float* __restrict__ a, Index row_a, Index col_a, const unsigned* __restrict__ top_a,
    const float* __restrict__ b, Index row_b, Index col_b, const unsigned* __restrict__ top_b,
    Index m, Index n, Index k, double alpha, double beta
) {
    const Target target = {out, c, ld_out, ld_c, m, n, int(kind), alpha, beta};
    const Origin origin = {a, b, row_a, col_a, row_b, col_b, k, top_a, top_b};
    const bool in_pairs = target.pairs();
    const Index row = Index(blockIdx.x) * GROUP + threadIdx.y;
    if (row >= m) return;
    #pragma unroll 1
    for (int e = 0; e < 4; ++e) {
        const Index col = Index(blockIdx.y) * 8 * WARP + 2 * (e * WARP + threadIdx.x);
        if (col >= n) return;
        const float* from = sum + row * ld_sum + col;
        target.store(origin, in_pairs, row, col, from[0], col + 1 < n ? from[1] : 0.0f);
        target.mend(origin, row, col);
        target.mend(origin, row, col + 1);
    }
}
