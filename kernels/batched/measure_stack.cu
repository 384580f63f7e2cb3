// Norms and residuals that verify a stack of systems A x = b, in one launch: norms of each A, the residual of each x,
// and sizes of A^-1 times some random vectors.
//
//   a     count matrices n x n, entry (s, i, j) at s a_step + i a_row + j a_col.
//   x, b  count matrices n x k, in the same form.  a, x and b are T_A, or pairs of T_A if COMPLEX; steps count entries.
//   y     double (or pairs): A^-1 of `probes` vectors, entry (s, p, i) at s y_step + p n + i.
//   info  int[count], copied to the result, or null for 0.
//   residuals  double (or pairs) [count][k][n], or null: b - A x.
//   out   double [4 + 2 k][count]: ||A||_inf, ||A||_1, the largest ||y_p||_1, info, max |b - A x| of each column, and
//         max |x| of each.  A number that is computed from a NaN is NaN.
//
// A warp takes one matrix, LANES of its threads one row; n <= LANES, or LANES = 32.
// Grid ceil(count / 8), block 256, shared memory double[8][n rounded up to 32]: sums of columns by each warp.
// Defines T_A (float or double), COMPLEX (0 or 1), LANES (4, 8, 16 or 32).
// Rounding: if T_A is double, residuals are summed in two doubles and have about the error of one rounding; else sums
// are in FP64.  The order depends on n alone.

#include "common/common.cuh"
#include "common/number.cuh"
#include "common/reduce.cuh"
#include "common/sum.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int ROWS = WARP / LANES;  // rows that a warp reads at a time
constexpr int AT_ONCE = 4;          // right-hand sides for which a row is read once
constexpr bool EXACT = sizeof(T_A) == 8;

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_stack_measure(
    double* out, double* residuals, const T_A* a, Index a_step, Index a_row, Index a_col, const T_A* x, Index x_step,
    Index x_row, Index x_col, const T_A* b, Index b_step, Index b_row, Index b_col, const double* y, Index y_step,
    Index probes, const int* info, Index count, Index n, Index k
) {
    extern __shared__ double column_sums[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int group = lane / LANES, first = lane % LANES;
    const Index slice = Index(blockIdx.x) * WARPS + warp;
    if (slice >= count) return;

    const Index slots = (n + WARP - 1) / WARP * WARP;
    double* sums = column_sums + warp * slots;
    for (Index i = lane; i < slots; i += WARP) sums[i] = 0;
    a += PARTS * slice * a_step, x += PARTS * slice * x_step, b += PARTS * slice * b_step;
    y += PARTS * slice * y_step;

    // Norms.  Each thread has places of its own in `sums`: column j of group g is at g LANES + j.
    double inf = 0, one = 0, grown = 0;
    for (Index i0 = 0; i0 < n; i0 += ROWS) {
        const Index i = i0 + group;
        double row = 0;
        if (i < n) {
            for (Index j = first, place = lane; j < n; j += LANES, place += WARP) {
                const double size = modulus(number(a, i * a_row + j * a_col));
                row += size, sums[place] += size;
            }
        }
        inf = larger(inf, sum_of_lanes<LANES>(row));
    }
    __syncwarp();
    for (Index j = lane; j < n; j += WARP) {
        double column = 0;
        #pragma unroll
        for (int g = 0; g < ROWS; ++g) column += sums[g * LANES + j];
        one = larger(one, column);
    }
    for (Index p = 0; p < probes; ++p) {
        double size = 0;
        for (Index i = lane; i < n; i += WARP) size += modulus(number(y, p * n + i));
        grown = larger(grown, over_lanes(size, sum_of));
    }
    inf = over_lanes(inf, larger), one = over_lanes(one, larger);
    const bool writes = lane == 0;
    if (writes) {
        out[slice] = inf, out[count + slice] = one, out[2 * count + slice] = grown;
        out[3 * count + slice] = info ? double(info[slice]) : 0.0;
    }

    for (Index c0 = 0; c0 < k; c0 += AT_ONCE) {
        const int some = int(min(Index(AT_ONCE), k - c0));
        double rest[AT_ONCE] = {}, size[AT_ONCE] = {};
        for (Index i0 = 0; i0 < n; i0 += ROWS) {
            const Index i = i0 + group;
            Sum<EXACT> re[AT_ONCE], im[AT_ONCE];
            for (Index j = first; i < n && j < n; j += LANES) {
                const Number u = number(a, i * a_row + j * a_col);
                #pragma unroll
                for (int c = 0; c < AT_ONCE; ++c) {
                    if (c >= some) break;
                    const Number v = number(x, j * x_row + (c0 + c) * x_col);
                    re[c].add_product(u.re, v.re);
                    if (COMPLEX) {
                        re[c].add_product(-u.im, v.im);
                        im[c].add_product(u.re, v.im), im[c].add_product(u.im, v.re);
                    }
                }
            }
            #pragma unroll
            for (int c = 0; c < AT_ONCE; ++c) {
                re[c].template join<LANES>();
                if (COMPLEX) im[c].template join<LANES>();
                // Only one thread of a row goes on: sums in other lanes may differ in the last bit.
                if (i >= n || c >= some || first != 0) continue;
                const Number v = number(b, i * b_row + (c0 + c) * b_col);
                const Number r = {re[c].from(v.re), COMPLEX ? im[c].from(v.im) : 0.0};
                rest[c] = larger(rest[c], modulus(r));
                if (residuals) store(residuals, (slice * k + c0 + c) * n + i, r);
                size[c] = larger(size[c], modulus(number(x, i * x_row + (c0 + c) * x_col)));
            }
        }
        #pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) {
            const double r = over_lanes(rest[c], larger), of_x = over_lanes(size[c], larger);
            if (writes && c < some) {
                out[(4 + c0 + c) * count + slice] = r, out[(4 + k + c0 + c) * count + slice] = of_x;
            }
        }
    }
}
