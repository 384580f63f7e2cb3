// C = alpha op(A) op(B) + beta C with one warp for each 16 x 16 tile of C, operands straight from global memory.
//
// The first of the three engines naive, wmma and wgmma.  It shows a tensor-core product in its simplest form, and the
// cost of the loads if no tile is shared.  op(A) is read from the caches or global memory once for every 16 columns of
// C, and op(B) once for every 16 rows, so the loads, not the tensor cores, determine the time.
//
//   a, b   op(A) (m x k) and op(B) (k x n) by their strides in entries, any order, any alignment
//   top_a, top_b  for T_IN float: bits of max |a_i.| and max |b_.j| (tcs_tops); else null
//   out, c row-major with leading dimensions ld_out, ld_c, of `kind` (see gemm.cuh); c is not read if beta = 0
//
// Grid ceil(m / 32) ceil(n / 32), block 128: the warps of a block make 2 x 2 tiles.
// Defines T_IN (fp16, bf16, float, int8), T_LOW (what the tensor cores multiply: fp16, bf16, tf32, int8), and
// REFINE (0 to 4: none, 'a', 'b', 'ab', 'full'; 0 unless T_IN is float).
//
// Rounding: the tensor core sums the products of a slice (16 values of k in a 16-bit format).  If T_IN is float, the
// sums of slices are added in FP32 registers, rounded to nearest; else the tensor core adds them, too.

#include "gemm/gemm.cuh"

constexpr int TILE = 16, BLOCK = 2 * TILE;
constexpr bool SCALED = SAME<T_IN, float>;
constexpr int WORD = PER_WORD<T_LOW>, SLICE = SLICE_WORDS * WORD;
using Acc = typename Accumulator<T_LOW>::type;
static_assert(SCALED || (SAME<T_IN, T_LOW> && REFINE == 0), "only FP32 operands are rounded");

// A row of op(A) or a column of op(B).
struct Line {
    const T_IN* first;  // null outside the matrix
    Index stride, k;
    bool whole_words;
    Scale<T_LOW> scale;

    __device__ __forceinline__ Line(const T_IN* x, Index across, Index along, Index i, Index count, Index k,
                                    const unsigned* top)
        : first(i < count ? x + i * across : nullptr), stride(along), k(k) {
        whole_words = along == 1 && (reinterpret_cast<unsigned long long>(first) & 3) == 0;
        if (SCALED && i < count) scale = Scale<T_LOW>(top[i]);
    }

    // WORD entries from q on.
    template <bool SPLIT>
    __device__ __forceinline__ Parts word(Index q) const {
        if (!SCALED && first && whole_words && q + WORD <= k) {
            return {*reinterpret_cast<const unsigned*>(first + q), 0};
        }
        T_IN x[WORD];
        #pragma unroll
        for (int e = 0; e < WORD; ++e) x[e] = first && q + e < k ? first[(q + e) * stride] : T_IN{};
        return make<SPLIT>(x);
    }

    template <bool SPLIT, typename T>
    __device__ __forceinline__ Parts make(const T (&x)[WORD]) const {
        if constexpr (SAME<T, float>) {
            float y[WORD];
            #pragma unroll
            for (int e = 0; e < WORD; ++e) y[e] = scale(x[e]);
            return parts_of<T_LOW, SPLIT>(y, 1.0f);
        } else {
            Parts parts = {0, 0};
            memcpy(&parts.hi, x, 4);
            return parts;
        }
    }
};

extern "C" __global__ void __launch_bounds__(128)
tcs_gemm_naive(
    void* out, Index ld_out, Index kind, const void* c, Index ld_c,
    const T_IN* __restrict__ a, Index row_a, Index col_a, const unsigned* __restrict__ top_a,
    const T_IN* __restrict__ b, Index row_b, Index col_b, const unsigned* __restrict__ top_b,
    Index m, Index n, Index k, double alpha, double beta
) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    Index tile_row, tile_col;
    TileOrder<>{(m + BLOCK - 1) / BLOCK, (n + BLOCK - 1) / BLOCK}.find(blockIdx.x, 8, tile_row, tile_col);
    const Index row0 = tile_row * BLOCK + warp / 2 * TILE, col0 = tile_col * BLOCK + warp % 2 * TILE;
    if (row0 >= m || col0 >= n) return;

    const Line rows[2] = {
        {a, row_a, col_a, row0 + g, m, k, top_a}, {a, row_a, col_a, row0 + g + 8, m, k, top_a}
    };
    const Line cols[2] = {
        {b, col_b, row_b, col0 + g, n, k, top_b}, {b, col_b, row_b, col0 + g + 8, n, k, top_b}
    };
    Acc sum[2][4] = {};
    #pragma unroll 2
    for (Index q = 0; q < k; q += SLICE) {
        unsigned a_hi[4], a_lo[4];
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            const Parts parts = rows[r % 2].word<SPLITS_A<REFINE>>(q + (t + r / 2 * 4) * WORD);
            a_hi[r] = parts.hi;
            a_lo[r] = parts.lo;
        }
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
            unsigned b_hi[2], b_lo[2];
            #pragma unroll
            for (int r = 0; r < 2; ++r) {
                const Parts parts = cols[j].word<SPLITS_B<REFINE>>(q + (t + r * 4) * WORD);
                b_hi[r] = parts.hi;
                b_lo[r] = parts.lo;
            }
            if (SCALED) {
                Acc slice[4] = {};
                mma_refined<T_LOW, REFINE>(slice, a_hi, a_lo, b_hi, b_lo);
                #pragma unroll
                for (int e = 0; e < 4; ++e) sum[j][e] += slice[e];
            } else {
                mma_refined<T_LOW, REFINE>(sum[j], a_hi, a_lo, b_hi, b_lo);
            }
        }
    }

    const Target target = {out, c, ld_out, ld_c, m, n, int(kind), alpha, beta};
    const Origin<T_LOW> origin = {
        reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), row_a, col_a, row_b, col_b, k,
        top_a, top_b
    };
    const bool in_pairs = target.pairs();
    #pragma unroll
    for (int j = 0; j < 2; ++j) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Index i = row0 + g + 8 * half;
            target.store(origin, in_pairs, i, col0 + 8 * j + 2 * t, sum[j][2 * half], sum[j][2 * half + 1]);
        }
    }
    if (SCALED) {
        #pragma unroll 1
        for (int e = lane; e < TILE * TILE; e += WARP) target.mend(origin, row0 + e / TILE, col0 + e % TILE);
    }
}
