// The passes before and after a product: they find scales, split operands, and remove the scales from the result.
//
//   tcs_tops     top = bits of the largest |entry| of each row, or column, of two matrices
//   tcs_split    hi = rn(s x), lo = rn(s x - hi), with s = 2^fit(top), of two matrices
//   tcs_split_by the same with one power of two for each matrix: scale_a for a, scale_b[0] times part_b for b.  Unless
//                beyond is null, beyond[0] becomes 1 if any entry |s x| is larger than limit, or NaN.  If found_b is
//                not null, scale_b is not used: each block for b finds the scale of b, a small matrix, as
//                find_operand_scale.cu does.  Then found_b[0] becomes this scale, and found_b[1] becomes
//                -1 / (this scale times top_a).  In this kernel top_a is a number, not an array: the scale of the
//                matrix that multiplies b
//   tcs_finish   out = alpha times sum without its scales, plus beta c
//
// x is FP32 rows x cols, row-major, leading dimension ld.  `by_row`: top has an entry for each row, else for each
// column.  Unless `by_row`, tcs_tops raises top, which is zero before; the order of its blocks does not matter.
// hi, and lo unless null, are row-major with leading dimension ld_out, a multiple of 16 bytes.
// sum is FP32 m x n with leading dimension ld_sum; Origin and Target as in gemm.cuh.
//
// One launch serves both operands: launches take most of the time of small products.
//
// Blocks of (32, 8).  Their number is below.  The first three kernels take this number of blocks for each matrix, and
// the grid has the sum of both:
//   tcs_tops                 ceil(rows / 8) if by_row, else ceil(cols / 128) ceil(rows / 256)
//   tcs_split, tcs_split_by  ceil(rows / 16) ceil(cols / 256)
//   tcs_finish               ceil(m / 8) ceil(n / 256)
// Only the first dimension of the grid is used: the others have at most 65535 blocks.
// Defines T_LOW (fp16, bf16 or tf32).

#include "common/operand_scale.cuh"
#include "common/reduce.cuh"
#include "gemm/gemm.cuh"

constexpr int GROUP = 8;             // rows of threads of a block
constexpr int ROWS_OF_COLUMNS = 256; // rows that a block reads for the largest entries of columns
constexpr int SPLIT_ROWS = 16, SPLIT_COLS = 256, FINISH_COLS = 256;
constexpr int FLIGHT = 4;            // loads of 16 bytes that a thread has in flight in a search for the largest entry

__device__ __forceinline__ Index blocks_for(Index count, Index size) { return (count + size - 1) / size; }

// Consecutive entries of one thread, in whole words.
constexpr int RUN = SPLIT_COLS / WARP, PER = PER_WORD<T_LOW>;
struct Words {
    static constexpr int COUNT = RUN / PER;
    unsigned at[COUNT];

    __device__ __forceinline__ void store(T_LOW* to, Index count) const {
        #pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            if (count >= RUN) {
                // The compiler splits a plain store of a uint4 if entries have 2 bytes.
                __stcg(reinterpret_cast<uint4*>(to) + i / 4, make_uint4(at[i], at[i + 1], at[i + 2], at[i + 3]));
                continue;
            }
            #pragma unroll
            for (int e = i * PER; e < (i + 4) * PER; ++e) {
                if (e >= count) continue;
                T_LOW one;
                memcpy(&one, reinterpret_cast<const char*>(at) + e * sizeof(T_LOW), sizeof(T_LOW));
                to[e] = one;
            }
        }
    }
};

// FLIGHT runs of 16 bytes, `stride` entries apart, loaded without conditions: a conditional load would wait for the one
// before it.
struct Runs {
    Run<float, 4> run[FLIGHT];

    __device__ __forceinline__ Runs(const float* from, Index stride) {
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) run[f].load(from + f * stride, true, 4);
    }

    __device__ __forceinline__ unsigned top(int e) const {
        unsigned largest = 0;
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) largest = max(largest, bits_of_size(run[f].at[e]));
        return largest;
    }
};

// An FP32 matrix and its scales.
struct Scaled {
    const float* x;
    Index ld;
    unsigned* top;
    Index by_row, rows, cols;

    __device__ __forceinline__ Index top_blocks() const {
        return by_row ? blocks_for(rows, GROUP) : blocks_for(cols, 4 * WARP) * blocks_for(rows, ROWS_OF_COLUMNS);
    }

    __device__ __forceinline__ void find_top(Index block) const {
        if (by_row) find_row_top(block);
        else find_col_top(block % blocks_for(cols, 4 * WARP), block / blocks_for(cols, 4 * WARP));
    }

    __device__ __forceinline__ void find_row_top(Index block) const {
        const Index row = block * GROUP + threadIdx.y;
        if (row >= rows) return;
        const bool vector = aligned16(x, ld);
        const float* const from = x + row * ld;
        unsigned largest = 0;
        Index q = 4 * threadIdx.x;
        if (vector) {
            for (; q + (FLIGHT - 1) * 4 * WARP + 4 <= cols; q += FLIGHT * 4 * WARP) {
                const Runs runs(from + q, 4 * WARP);
                #pragma unroll
                for (int e = 0; e < 4; ++e) largest = max(largest, runs.top(e));
            }
        }
        #pragma unroll 1
        for (; q < cols; q += 4 * WARP) {
            Run<float, 4> run;
            run.load(from + q, vector && q + 4 <= cols, cols - q);
            #pragma unroll
            for (int e = 0; e < 4; ++e) largest = max(largest, bits_of_size(run.at[e]));
        }
        largest = largest_of_lanes(largest);
        if (threadIdx.x == 0) top[row] = largest;
    }

    __device__ __forceinline__ void find_col_top(Index block_col, Index block_row) const {
        __shared__ unsigned found[GROUP][4 * WARP];
        const Index col0 = block_col * 4 * WARP, col = col0 + 4 * threadIdx.x, row0 = block_row * ROWS_OF_COLUMNS;
        const bool vector = aligned16(x, ld) && col + 4 <= cols;
        const float* const from = x + row0 * ld + col;
        const int here = int(min(Index(ROWS_OF_COLUMNS), rows - row0));
        unsigned largest[4] = {};
        int i = threadIdx.y;
        if (vector) {
            for (; i + (FLIGHT - 1) * GROUP < here; i += FLIGHT * GROUP) {
                const Runs runs(from + i * ld, GROUP * ld);
                #pragma unroll
                for (int e = 0; e < 4; ++e) largest[e] = max(largest[e], runs.top(e));
            }
        }
        #pragma unroll 1
        for (; i < here; i += GROUP) {
            Run<float, 4> run;
            run.load(from + i * ld, vector, cols - col);
            #pragma unroll
            for (int e = 0; e < 4; ++e) largest[e] = max(largest[e], bits_of_size(run.at[e]));
        }
        #pragma unroll
        for (int e = 0; e < 4; ++e) found[threadIdx.y][4 * threadIdx.x + e] = largest[e];
        __syncthreads();
        const int mine = threadIdx.y * WARP + threadIdx.x;
        if (mine >= 4 * WARP || col0 + mine >= cols) return;
        unsigned all = 0;
        #pragma unroll
        for (int group = 0; group < GROUP; ++group) all = max(all, found[group][mine]);
        atomicMax(top + col0 + mine, all);
    }

    // The power of two for the whole matrix; one block reads all of it.
    __device__ __forceinline__ float find_scale() const {
        __shared__ unsigned of_warp[GROUP];
        const bool vector = aligned16(x, ld);
        unsigned largest = 0;
        for (Index q = 4 * threadIdx.x; q < cols; q += 4 * WARP) {
            const bool whole = vector && q + 4 <= cols;
            Index row = threadIdx.y;
            #pragma unroll 2
            for (; whole && row + (FLIGHT - 1) * GROUP < rows; row += FLIGHT * GROUP) {
                const Runs runs(x + row * ld + q, GROUP * ld);
                #pragma unroll
                for (int e = 0; e < 4; ++e) largest = max(largest, runs.top(e));
            }
            #pragma unroll 1
            for (; row < rows; row += GROUP) {
                Run<float, 4> run;
                run.load(x + row * ld + q, whole, cols - q);
                #pragma unroll
                for (int e = 0; e < 4; ++e) largest = max(largest, bits_of_size(run.at[e]));
            }
        }
        of_warp[threadIdx.y] = largest_of_lanes(largest);
        __syncthreads();
        #pragma unroll
        for (int w = 0; w < GROUP; ++w) largest = max(largest, of_warp[w]);
        return scale_to_top(largest);
    }

    __device__ __forceinline__ Index split_blocks() const {
        return blocks_for(rows, SPLIT_ROWS) * blocks_for(cols, SPLIT_COLS);
    }

    // Splits a block of the matrix.  A thread loads all its rows before it splits the first.  If ONE, all entries are
    // multiplied by `one`, and *beyond, unless null, becomes 1 if a product exceeds `limit` or is NaN.
    template <bool ONE = false>
    __device__ __forceinline__ void split(
        Index block, T_LOW* hi, T_LOW* lo, Index ld_out, float one = 1, int* beyond = nullptr, float limit = 0
    ) const {
        constexpr int ROWS = SPLIT_ROWS / GROUP;
        const Index across = blocks_for(cols, SPLIT_COLS), row0 = block / across * SPLIT_ROWS + threadIdx.y;
        const Index q = block % across * SPLIT_COLS + threadIdx.x * RUN, left = cols - q;
        if (left <= 0) return;
        Run<unsigned, RUN> tops = {};
        if (!ONE && !by_row) tops.load(top + q, left >= RUN && aligned16(top, 0), left);
        Run<float, RUN> in[ROWS];
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const Index row = row0 + i * GROUP;
            if (row < rows) in[i].load(x + row * ld + q, left >= RUN && aligned16(x, ld), left);
        }
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const Index row = row0 + i * GROUP;
            if (row >= rows) return;
            Words high, low;
            #pragma unroll
            for (int w = 0; w < Words::COUNT; ++w) {
                float x[PER];
                #pragma unroll
                for (int e = 0; e < PER; ++e) {
                    const float given = in[i].at[w * PER + e];
                    x[e] = ONE ? given * one : Scale<T_LOW>(by_row ? top[row] : tops.at[w * PER + e])(given);
                    if (ONE && beyond && !(fabsf(x[e]) <= limit)) *beyond = 1;
                }
                const Parts parts = parts_of<T_LOW, true>(x, 1.0f);
                high.at[w] = parts.hi;
                low.at[w] = parts.lo;
            }
            high.store(hi + row * ld_out + q, left);
            if (lo) low.store(lo + row * ld_out + q, left);
        }
    }
};

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_tops(
    const float* __restrict__ a, Index ld_a, unsigned* top_a, Index by_row_a, Index rows_a, Index cols_a,
    const float* __restrict__ b, Index ld_b, unsigned* top_b, Index by_row_b, Index rows_b, Index cols_b
) {
    const Scaled first = {a, ld_a, top_a, by_row_a, rows_a, cols_a};
    const Index blocks = first.top_blocks(), block = blockIdx.x;
    if (block < blocks) first.find_top(block);
    else Scaled{b, ld_b, top_b, by_row_b, rows_b, cols_b}.find_top(block - blocks);
}

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_split(
    const float* __restrict__ a, Index ld_a, unsigned* __restrict__ top_a, Index by_row_a, Index rows_a, Index cols_a,
    T_LOW* __restrict__ hi_a, T_LOW* __restrict__ lo_a, Index ld_out_a,
    const float* __restrict__ b, Index ld_b, unsigned* __restrict__ top_b, Index by_row_b, Index rows_b, Index cols_b,
    T_LOW* __restrict__ hi_b, T_LOW* __restrict__ lo_b, Index ld_out_b
) {
    const Scaled first = {a, ld_a, top_a, by_row_a, rows_a, cols_a};
    const Index blocks = first.split_blocks(), block = blockIdx.x;
    if (block < blocks) first.split(block, hi_a, lo_a, ld_out_a);
    else Scaled{b, ld_b, top_b, by_row_b, rows_b, cols_b}.split(block - blocks, hi_b, lo_b, ld_out_b);
}

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_split_by(
    const float* __restrict__ a, Index ld_a, Index rows_a, Index cols_a,
    T_LOW* __restrict__ hi_a, T_LOW* __restrict__ lo_a, Index ld_out_a, double scale_a,
    const float* __restrict__ b, Index ld_b, Index rows_b, Index cols_b,
    T_LOW* __restrict__ hi_b, T_LOW* __restrict__ lo_b, Index ld_out_b, const float* __restrict__ scale_b,
    double part_b, int* beyond, double limit, float* __restrict__ found_b, double top_a
) {
    const Scaled first = {a, ld_a, nullptr, 0, rows_a, cols_a};
    const Index blocks = first.split_blocks(), block = blockIdx.x;
    if (block < blocks) {
        first.split<true>(block, hi_a, lo_a, ld_out_a, float(scale_a), beyond, float(limit));
        return;
    }
    const Scaled second = {b, ld_b, nullptr, 0, rows_b, cols_b};
    const float scale = found_b ? second.find_scale() : *scale_b;
    if (found_b && block == blocks && threadIdx.x == 0 && threadIdx.y == 0) {
        found_b[0] = scale;
        found_b[1] = alpha_of(scale, top_a);
    }
    second.split<true>(block - blocks, hi_b, lo_b, ld_out_b, scale * float(part_b), beyond, float(limit));
}

extern "C" __global__ void __launch_bounds__(GROUP * WARP)
tcs_finish(
    void* out, Index ld_out, Index kind, const void* c, Index ld_c, const float* __restrict__ sum, Index ld_sum,
    const float* __restrict__ a, Index row_a, Index col_a, const unsigned* __restrict__ top_a,
    const float* __restrict__ b, Index row_b, Index col_b, const unsigned* __restrict__ top_b,
    Index m, Index n, Index k, double alpha, double beta
) {
    const Target target = {out, c, ld_out, ld_c, m, n, int(kind), alpha, beta};
    const Origin<T_LOW> origin = {a, b, row_a, col_a, row_b, col_b, k, top_a, top_b};
    const bool in_pairs = target.pairs();
    const Index across = blocks_for(n, FINISH_COLS), block = blockIdx.x;
    const Index row = block / across * GROUP + threadIdx.y;
    if (row >= m) return;
    #pragma unroll 1
    for (int e = 0; e < FINISH_COLS / (2 * WARP); ++e) {
        const Index col = block % across * FINISH_COLS + 2 * (e * WARP + threadIdx.x);
        if (col >= n) return;
        const float* from = sum + row * ld_sum + col;
        target.store(origin, in_pairs, row, col, from[0], col + 1 < n ? from[1] : 0.0f);
        target.mend(origin, row, col);
        target.mend(origin, row, col + 1);
    }
}
