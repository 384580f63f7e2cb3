// The last step of the verification of one large system A X = B: norms and sizes, from sums of |a_ij| and from A X,
// which earlier launches have computed.
//
//   out      double [4 + 2 k], zero before the launch: ||A||_inf, ||A||_1, the largest ||y_p||_1, info, max |b - A x|
//            of each column, and max |x| of each, as tcs_stack_measure gives them.  A number that is computed from a
//            NaN is NaN.
//   row_sum, col_sum  double[n]: sums of |a_ij| of each row and column.
//   x, b     n x k, T_A, or pairs of T_A if COMPLEX, entry (i, j) at i x_row + j x_col (steps count entries).
//   ax       A x: double, or pairs, with strides of its own in the same form.
//   y        double (or pairs): A^-1 of `probes` vectors, entry (p, i) at p n + i.
//   info     int, or null for 0.
//
//   Grid 2 + ceil(k / 32) ceil(n / 128), block 256.  Rounding: FP64, in an order that depends on n alone.
//
// Defines T_A (float or double), COMPLEX (0 or 1).

#include "common/common.cuh"
#include "common/number.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int ROWS = 128;  // of a block of tcs_sizes

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_sizes(
    double* out, const double* row_sum, const double* col_sum, const T_A* x, Index x_row, Index x_col, const T_A* b,
    Index b_row, Index b_col, const double* ax, Index ax_row, Index ax_col, const double* y, Index probes,
    const int* info, Index n, Index k
) {
    const Index first = threadIdx.x;
    const bool writes = threadIdx.x == 0;
    if (blockIdx.x == 0) {
        double inf = 0, one = 0;
        for (Index i = first; i < n; i += THREADS) inf = larger(inf, row_sum[i]), one = larger(one, col_sum[i]);
        inf = over_block<WARPS>(inf, larger), one = over_block<WARPS>(one, larger);
        if (writes) out[0] = inf, out[1] = one, out[3] = info ? double(*info) : 0.0;
    } else if (blockIdx.x == 1) {
        double grown = 0;
        for (Index p = 0; p < probes; ++p) {
            double size = 0;
            for (Index i = first; i < n; i += THREADS) size += modulus(number(y, p * n + i));
            grown = larger(grown, over_block<WARPS>(size, sum_of));
        }
        if (writes) out[2] = grown;
    } else {
        // 32 columns and some rows; neighbouring threads read neighbours of a row.
        __shared__ double rests[WARPS][WARP], of_x[WARPS][WARP];
        const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        const Index parts = (n + ROWS - 1) / ROWS, block = blockIdx.x - 2;
        const Index c = block / parts * WARP + lane, from = block % parts * ROWS, to = min(n, from + ROWS);
        double rest = 0, size = 0;
        for (Index i = from + warp; i < to && c < k; i += WARPS) {
            const Number v = number(b, i * b_row + c * b_col), w = number(ax, i * ax_row + c * ax_col);
            rest = larger(rest, modulus({v.re - w.re, v.im - w.im}));
            size = larger(size, modulus(number(x, i * x_row + c * x_col)));
        }
        rests[warp][lane] = rest, of_x[warp][lane] = size;
        __syncthreads();
        if (warp || c >= k) return;
        for (int w = 1; w < WARPS; ++w) rest = larger(rest, rests[w][lane]), size = larger(size, of_x[w][lane]);
        raise(out + 4 + c, rest), raise(out + 4 + k + c, size);
    }
}
