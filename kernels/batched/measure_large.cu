// Norms and residuals that verify systems A x = b of many unknowns, each by many multiprocessors, in one launch.
//
//   board  double[SEEN + 4 + 2 k][count]: the numbers of `tell` (reading.cuh), ||A||_inf, ||A||_1, the largest
//          ||y_p||_1 over the last `probes` rows y_p of y, info, max |b - A x| of each column, and max |x| of each.  A
//          norm or size that is computed from a NaN is NaN; info and the numbers of `tell` never are.  Zero before the
//          launch, but the numbers of `tell` may be those of an earlier read of A; they only become larger.
//   a      count matrices n x n, T_A, or pairs of T_A if COMPLEX, entry (s, i, j) at s a_step + i a_row + j a_col
//          (steps count entries).
//   below, above, mirror  how a is read, see reading.cuh; mirror is 0 unless `hermitian`.
//   x      T_A (or pairs) [count][n][k], contiguous: its columns become the first k rows of y, rounded.
//   y      double (or pairs) [count][k + probes][n], entry (s, p, i) at s y_step + p n + i: solutions of A x = b, then
//          A^-1 of `probes` vectors.
//   b      count matrices n x k, T_A, or pairs, entry (s, i, c) at s b_step + i b_row + c b_col.
//   info   int[count], or null for 0.
//   r      double (or pairs) [count][k][n], contiguous: becomes b - A x; or null.
//
//   hermitian  A is Hermitian, so ||A||_1 = ||A||_inf.  The numbers of `tell` in `board` come from an earlier read of
//           a, and are not computed again.  Both triangles of a are used if they agree exactly, according to these
//           numbers.
//   each    rows of a warp.
//
// Grid count (1 + ceil(k / 4) ceil(n / (8 each)) + ceil(n / 32)), block 256: for each system one block for y, then for
// every four right-hand sides blocks for rows, then blocks for columns, 32 to a block; no blocks for columns if
// `hermitian`.
// Defines T_A (float or double), COMPLEX (0 or 1).
// Rounding: norms in FP64, in an order that depends only on n, `below` and `above`; residuals are summed in two
// doubles.

#include "batched/reading.cuh"
#include "common/reduce.cuh"
#include "common/sum.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int AT_ONCE = 4;  // right-hand sides of a block

// What a warp finds: the numbers of `tell`, ||A||_inf, and for each answer max |b - A x| and max |x|.
constexpr int REST = SEEN + 1, SIZE = REST + AT_ONCE, ALL = SIZE + AT_ONCE;

// A system, and `from`: the number of the first of the answers that a block looks at.  x, y, b and r begin there.
struct System {
    double* board;
    Reading a;
    T_A* x;
    const double* y;
    const T_A* b;
    Index b_row, b_col, n, k, count, from;
    double* r;
    bool hermitian, is_exact;  // is_exact: mirror images in a are equal

    // Entry j of answer from + c.
    __device__ __forceinline__ Number answer(Index j, Index c) const {
        const Number v = number(y, c * n + j);
        return {double(T_A(v.re)), double(T_A(v.im))};
    }

    // Raises a number of the board to the largest v of the block.
    __device__ __forceinline__ void report(Index number, double v) const {
        v = over_block<WARPS>(v, larger);
        if (threadIdx.x == 0 && v != 0) raise(board + number * count, v);
    }

    // The sizes of A^-1 times the vectors.
    __device__ void look_at_probes(Index probes) const {
        for (Index p = k; p < k + probes; ++p) {
            double size = 0;
            for (Index i = threadIdx.x; i < n; i += THREADS) size += modulus(number(y, p * n + i));
            size = over_block<WARPS>(size, sum_of);
            if (threadIdx.x == 0) raise(board + (SEEN + 2) * count, size);
        }
    }

    // Looks at rows, and at up to AT_ONCE answers.  Warp w has the rows first + w, first + w + WARPS, ...
    __device__ void look_at_rows(Index first, Index each, int lane, int warp) const {
        __shared__ double of_warps[WARPS][ALL];
        double* found = of_warps[warp];
        if (lane < ALL) found[lane] = 0;
        __syncwarp();
        Seen seen;
        for (Index i = first + warp; i < min(n, first + WARPS * each); i += WARPS) look_at_row(i, lane, seen, found);
        if (!hermitian) tell_warp(seen, found);
        __syncthreads();
        const int entry = threadIdx.x;
        if (entry >= ALL) return;
        double v = of_warps[0][entry];
        #pragma unroll
        for (int w = 1; w < WARPS; ++w) v = larger(v, of_warps[w][entry]);
        if (v == 0) return;
        const Index answer = from + (entry - REST) % AT_ONCE;
        const Index row = entry < REST ? entry : SEEN + 4 + answer + (entry < SIZE ? 0 : k);
        raise(board + row * count, v);
        if (entry == SEEN && hermitian) raise(board + (SEEN + 1) * count, v);
    }

    // Looks at row i, and raises the numbers of `found` from SEEN on.
    __device__ __forceinline__ void look_at_row(Index i, int lane, Seen& seen, double* found) const {
        const Index some = k - from;
        double inf = 0;
        Sum<true> re[AT_ONCE], im[AT_ONCE];
        #pragma unroll 4
        for (int j = lane; j < int(n); j += WARP) {
            Number u;
            if (hermitian) {
                u = is_exact ? a.given(i, j) : a(i, j);
            } else {
                const Number given = a.given(i, j);
                u = a.band.stands(i, j, given, {0.0, 0.0});
                seen.note(a.band, i, j, given, u);
                if (!a.band.reads(i, j)) continue;
            }
            inf += modulus(u);
            #pragma unroll
            for (int c = 0; c < AT_ONCE; ++c) {
                if (c >= some) break;
                const Number v = answer(j, c);
                re[c].add_product(u.re, v.re);
                if (COMPLEX) {
                    re[c].add_product(-u.im, v.im);
                    im[c].add_product(u.re, v.im), im[c].add_product(u.im, v.re);
                }
            }
        }
        inf = over_lanes(inf, sum_of);
        if (lane == 0) found[SEEN] = larger(found[SEEN], inf);
        #pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) {
            if (c >= some) break;
            re[c].template join<WARP>();
            if (COMPLEX) im[c].template join<WARP>();
            if (lane) continue;  // sums in other lanes may differ in the last bit
            const Number v = number(b, i * b_row + c * b_col);
            const Number left = {re[c].from(v.re), COMPLEX ? im[c].from(v.im) : 0.0};
            if (r) store(r, c * n + i, left);
            const Number mine = answer(i, c);
            store(x, i * k + c, mine);
            found[REST + c] = larger(found[REST + c], modulus(left));
            found[SIZE + c] = larger(found[SIZE + c], modulus(mine));
        }
    }

    // The sums of columns j0 to j0 + 31.
    __device__ void look_at_columns(Index j0, int lane, int warp) const {
        __shared__ double sums[WARPS][WARP];
        const Index j = j0 + lane, first = max(Index(0), j0 - a.band.above), last = min(n, j0 + WARP + a.band.below);
        double sum = 0;
        if (j < n) {
            #pragma unroll 4
            for (Index i = first + warp; i < last; i += WARPS) {
                if (a.band.reads(i, j)) sum += modulus(a.given(i, j));
            }
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0) {
            for (int w = 1; w < WARPS; ++w) sum += sums[w][lane];
        }
        report(SEEN + 1, warp == 0 ? sum : 0.0);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, COMPLEX ? 2 : 4)
tcs_measure_large(
    double* board, T_A* x, const T_A* a, Index a_step, Index a_row, Index a_col, Index below, Index above, Index mirror,
    const T_A* b, Index b_step, Index b_row, Index b_col, const double* y, Index y_step, Index probes, const int* info,
    double* r, Index count, Index n, Index k, Index hermitian, Index each
) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Index row_blocks = (n + WARPS * each - 1) / (WARPS * each);
    const Index row_looks = (k + AT_ONCE - 1) / AT_ONCE * row_blocks;
    const Index blocks = 1 + row_looks + (hermitian ? 0 : (n + WARP - 1) / WARP);
    const Index slice = blockIdx.x / blocks, block = blockIdx.x % blocks;
    const Index from = block && block <= row_looks ? (block - 1) / row_blocks * AT_ONCE : 0;
    const System s = {
        board + slice, {a + PARTS * slice * a_step, a_row, a_col, {below, above, mirror}},
        x + PARTS * (slice * n * k + from), y + PARTS * (slice * y_step + from * n),
        b + PARTS * (slice * b_step + from * b_col), b_row, b_col, n, k, count, from,
        r ? r + PARTS * (slice * k + from) * n : nullptr, bool(hermitian),
        board[slice] == 0 && board[slice + 3 * count] == 0
    };
    if (block == 0) {
        s.look_at_probes(probes);
        if (threadIdx.x == 0 && info) s.board[(SEEN + 3) * count] = info[slice];
    } else if (block <= row_looks) {
        s.look_at_rows((block - 1) % row_blocks * WARPS * each, each, lane, warp);
    } else {
        s.look_at_columns((block - 1 - row_looks) * WARP, lane, warp);
    }
}
