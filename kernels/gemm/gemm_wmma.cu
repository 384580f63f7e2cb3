// C = alpha op(A) op(B) + beta C in tiles of 64 or 128 rows, whose operands are loaded ahead into shared memory.
//
// The second of the three engines naive, wmma and wgmma.  It adds:
//   - a tile of op(A) is read from global memory once for all columns of a tile of C, one of op(B) once for all rows,
//     16 bytes a thread;
//   - copies run STAGES - 1 tiles ahead of the tensor cores (cp.async from sm_80 on, ordinary loads before), except
//     those of FP32 operands for a 16-bit format (below);
//   - unless T_IN is float, fragments are loaded one slice ahead, also from one tile to the next;
//   - chunks of 16 bytes are swizzled, so that copies and fragments meet no bank conflicts (SWIZZLE 0 leaves this
//     out, for comparison).
// It is 7, 13 and 17 times as fast as the naive engine at n = 1024, 2048 and 4096 (H200, FP16,
// benchmarks/results/gemm.json).
//
// Small tiles are for small products, because a few large tiles would leave many multiprocessors idle.  With small
// tiles n = 1024 ran at 159 TFLOP/s instead of 96, but n = 2048 at 241 instead of 329 (H200; one comparison,
// of which no results file is kept).
//
//   a, b   TRANS_A 0: a is op(A), m x k, rows contiguous; 1: a is its transpose, k x m, rows contiguous.
//          TRANS_B 0: b is op(B), k x n; 1: its transpose, n x k.  Leading dimensions ld_a, ld_b, in entries.
//          Rows that start on 16-byte boundaries are copied fast; others entry by entry.
//   full_a, full_b  for scaled operands the FP32 op(A) (m x k) and op(B) (k x n) by strides, and top_a, top_b,
//          bits of max |a_i.| and max |b_.j| (tcs_tops); else null
//   out, c row-major with leading dimensions ld_out, ld_c, of `kind` (see gemm.cuh); c is not read if beta = 0
//
// Grid ceil(m / BLOCK_M) ceil(n / BLOCK_N); block and dynamic shared memory as wmma_shape gives them
// (kernels/product_shapes.py).
// Defines T_IN (fp16, bf16, float, int8), T_LOW (fp16, bf16, tf32, int8), REFINE (0 to 4: none, 'a', 'b',
// 'ab', 'full'; 0 unless T_IN is float), TRANS_A, TRANS_B, SWIZZLE, TILE (0: 64 x 64 entries of C, for small products;
// 1: 128 x 128; 2: 128 x 256 and one block a multiprocessor, for large products, from sm_80 on where shared memory is
// large; 1 if T_IN is float).  If T_IN is float and T_LOW has 16 bits, REFINE is not 0: for a single product, an
// earlier launch rounds the operands, and T_IN is T_LOW.
//
// If T_IN is float, operands are rounded, and split if REFINE > 0, while they are loaded.  For 16-bit formats each
// block splits an entry once: the entry is in a register while earlier tiles are multiplied, and is then stored in
// shared memory as hi and lo.  For TF32 shared memory holds FP32, and each fragment is split when it is loaded into
// registers.
//
// Rounding: with REFINE 0 the tensor cores sum along all of k.  With more products they sum 32 values of k at a time (8
// for TF32), the smallest products of a slice first; these sums are added in FP32 registers, rounded to nearest, so
// that the truncation errors of the tensor cores do not accumulate along k.

#include "gemm/wmma_direct.cuh"
#include "gemm/wmma_split.cuh"
#include "gemm/wmma_rounded.cuh"
#include "gemm/wmma_result.cuh"

// The class that computes the products of a warp, for these formats.
template <int, typename...> struct Choice;
template <typename T, typename... More> struct Choice<0, T, More...> { using type = T; };
template <int WHICH, typename T, typename... More> struct Choice<WHICH, T, More...> : Choice<WHICH - 1, More...> {};
using Work = typename Choice<SPLIT_ON_LOAD ? 0 : SCALED ? 1 : 2, Split<T_IN>, Rounded<T_IN>, Direct>::type;

// Blocks on a multiprocessor for which the compiler must leave registers.
constexpr int RESIDENT = WIDE || SPLIT_ON_LOAD ? 1 : SMALL && sizeof(T_IN) == 2 ? 3 : 2;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_gemm_wmma(
    void* out, Index ld_out, Index kind, const void* c, Index ld_c,
    const T_IN* __restrict__ a, Index ld_a, const T_IN* __restrict__ b, Index ld_b,
    const float* __restrict__ full_a, Index row_a, Index col_a, const unsigned* __restrict__ top_a,
    const float* __restrict__ full_b, Index row_b, Index col_b, const unsigned* __restrict__ top_b,
    Index m, Index n, Index k, double alpha, double beta
) {
    extern __shared__ __align__(128) char stages[];
    Index tile_row, tile_col;
    TileOrder<>{(m + BLOCK_M - 1) / BLOCK_M, (n + BLOCK_N - 1) / BLOCK_N}.find(blockIdx.x, 8, tile_row, tile_col);
    const Index first_row = tile_row * BLOCK_M, first_col = tile_col * BLOCK_N;
    const int warp = threadIdx.x / WARP;
    const int row0 = warp / WARPS_ACROSS * WARP_ROWS, col0 = warp % WARPS_ACROSS * WARP_COLS;

    const int tiles = int((k + BLOCK_K - 1) / BLOCK_K);
    const Feed feed = {{a, ld_a, first_row, m, k}, {b, ld_b, first_col, n, k}, stages, 0, tiles};
    Work work(feed, top_a, top_b, row0, col0);
    work.run(stages, feed, row0, col0);

    wait_for_groups<0>();
    __syncthreads();  // all warps have read the last tile, which the sums overwrite
    Acc* const sums = reinterpret_cast<Acc*>(stages);
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < 2 * TILES_M; ++i) {
        #pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const Acc (&part)[4] = work.sum[i / 2][j];
            Acc* to = sums + place(row0 + 8 * i + g, col0 + 8 * j + 2 * t);
            to[0] = part[i % 2 * 2];
            to[1] = part[i % 2 * 2 + 1];
        }
    }
    __syncthreads();

    const Target target = {out, c, ld_out, ld_c, m, n, int(kind), alpha, beta};
    const Origin<T_LOW> origin = {full_a, full_b, row_a, col_a, row_b, col_b, k, top_a, top_b};
    const bool in_pairs = target.pairs();
    const int col = threadIdx.x % Columns::ACROSS * 4;
    const Columns columns(target, origin, first_col + col);
    columns.store_all(target, origin, in_pairs, first_row, sums, col);
    if (any_broken(target, origin, first_row, first_col)) {
        #pragma unroll 1
        for (int e = threadIdx.x; e < BLOCK_M * BLOCK_N; e += THREADS) {
            target.mend(origin, first_row + e / BLOCK_N, first_col + e % BLOCK_N);
        }
    }
}
