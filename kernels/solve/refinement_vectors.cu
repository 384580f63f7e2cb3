// The vector operations of a refinement step, each one pass over n x k numbers; k right-hand sides, any strides.
//
//   tcs_residual   r = b - y, and the sizes of r and x
//       r     double [k][n] contiguous.   b, y, x  double n x k with strides (row, column) in entries.
//       sizes unsigned long long[2][k], zero before the launch: max |r|, then max |x| of each column, as the bits of a
//             double.  As integers these compare like the numbers, and NaN is the largest.
//   tcs_column_max  sizes[k], zero before the launch: max |v| of each column in the same form.
//   tcs_combine    out[i][g] = sum of +-2^-e_j v[i][j] over the columns j = g, g + 32, ..., with e_j as below and signs
//             that look random.  The numbers of v have 1 or 2 `parts`, and its strides are in doubles.
//   tcs_lower      low[j][i] = v[order[i]][j] 2^-e_j for i < n and j < k, 0 for k <= j < width, where 2^e_j is the
//             power of two at or below sizes[j]; order null: no permutation.  All bits of done[0 .. count) become 1,
//             as triangular_solve.cu needs them.
//   tcs_raise      v[j][order[i]] = low[j][i] 2^e_j in FP64, v [k][n] contiguous; plus onto[j][order[i]], unless null.
//
// Grid ceil(n / 256) x k (tcs_lower: x width; tcs_combine: ceil(n / 8) x 1), block 256.  A grid has at most 65535
// blocks in y; blocks of tcs_residual and tcs_column_max take several columns if k is larger.
// Rounding: in FP64, once for each difference and each addition; scaling by powers of two is exact up to the cast.
// Defines T_LOW (float or double).

#include "common/common.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256;

using Bits = unsigned long long;

__device__ __forceinline__ Bits bits(double v) { return static_cast<Bits>(__double_as_longlong(fabs(v))); }

// Raises *to to the largest v of the block.
__device__ __forceinline__ void largest(Bits* to, Bits v) {
    v = largest_of_lanes(v);
    if (threadIdx.x % WARP == 0 && v) atomicMax(to, v);
}

// 2^-e (`inverse`) or 2^e, where 2^e is the power of two at or below a size, but not below 2^-1022 or above 2^1022; 1
// for infinity and NaN.
__device__ __forceinline__ double power(Bits size, bool inverse) {
    const int e = int(size >> 52);
    if (e == 0x7ff) return 1.0;
    const int shifted = inverse ? 2046 - e : e;
    return __longlong_as_double((long long)(max(1, min(2045, shifted))) << 52);
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_residual(
    double* r, Bits* sizes, const double* b, Index b_row, Index b_col, const double* y, Index y_row, Index y_col,
    const double* x, Index x_row, Index x_col, Index n, Index k
) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x;
    for (Index j = blockIdx.y; j < k; j += gridDim.y) {
        Bits of_r = 0, of_x = 0;
        if (i < n) {
            const double v = b[i * b_row + j * b_col] - y[i * y_row + j * y_col];
            r[j * n + i] = v;
            of_r = bits(v), of_x = bits(x[i * x_row + j * x_col]);
        }
        largest(sizes + j, of_r);
        largest(sizes + k + j, of_x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_column_max(Bits* sizes, const double* v, Index v_row, Index v_col, Index n, Index k) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x;
    for (Index j = blockIdx.y; j < k; j += gridDim.y) largest(sizes + j, i < n ? bits(v[i * v_row + j * v_col]) : 0);
}

// One warp sums a row; its lanes read neighbours of a row-major v.
extern "C" __global__ void __launch_bounds__(THREADS)
tcs_combine(double* out, const double* v, Index v_row, Index v_col, Index parts, const Bits* sizes, Index n, Index k) {
    const Index i = Index(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (i >= n) return;
    const bool paired = parts == 2;
    const double* row = v + i * v_row;
    double sum[2] = {0, 0};
    #pragma unroll 8
    for (Index j = lane; j < k; j += WARP) {
        unsigned mixed = unsigned(j) * 0x9e3779b1u;
        mixed ^= mixed >> 15;
        const double scale = mixed & 0x2000u ? power(sizes[j], true) : -power(sizes[j], true);
        sum[0] += scale * row[j * v_col];
        if (paired) sum[1] += scale * row[j * v_col + 1];
    }
    for (Index part = 0; part < parts; ++part) out[(i * WARP + lane) * parts + part] = sum[part];
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_lower(
    T_LOW* low, unsigned* done, Index count, const double* v, Index v_row, Index v_col, const int* order,
    const Bits* sizes, Index n, Index k
) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x, j = blockIdx.y;
    if (i < n) {
        const Index from = order ? order[i] : i;
        low[j * n + i] = j < k ? T_LOW(v[from * v_row + j * v_col] * power(sizes[j], true)) : T_LOW(0);
    }
    const Index blocks = Index(gridDim.x) * gridDim.y, block = j * gridDim.x + blockIdx.x;
    for (Index e = block * THREADS + threadIdx.x; e < count; e += blocks * THREADS) done[e] = ~0u;
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_raise(double* v, const T_LOW* low, const int* order, const Bits* sizes, const double* onto, Index n) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x, j = blockIdx.y;
    if (i >= n) return;
    const Index to = j * n + (order ? order[i] : i);
    const double raised = double(low[j * n + i]) * power(sizes[j], false);
    v[to] = onto ? onto[to] + raised : raised;
}
