// B := L^-1 P B for a few columns of B, L the unit lower triangle of a wide panel and P its row swaps: one launch.
//
//   b      FP32, the rows of the matrix from the panel's first on, n columns, leading dimension ldb; its first k rows
//          are solved for.  Null: `out` becomes L^-1, and n is k.
//   out    the result, k x n, leading dimension ld_out.  It must be b if rows move.
//   l      FP32 k x k, k <= MOST, leading dimension ldl, rows on 16-byte boundaries: L below its diagonal; other
//          entries are not used.  The argument `order` is k.
//   dst, src  int[2 k], as tcs_merge_swaps makes them: b[dst[i]] = b[src[i]], all reads before any write.  Entry i < k
//          is for the row that becomes row i; for the others see merge_swaps.cu.  Null: no row moves.
//   any    null, or unsigned[1]: zero if all rows stay.
//
// Grid ceil(n / COLUMNS); block THREADS; dynamic shared memory as LowerShape.shared_bytes gives it.
// Defines MOST (256 or 512).
//
// The trailing update of a wide panel waits for this solve, so a single launch solves for all k unknowns (swap_solve.cu
// solves for at most 128).  Each thread block has its own columns, waits for no other block, and copies L for itself, a
// few columns ahead.
//
// WARPS warps, the keepers, hold the rows in registers, in blocks of BLOCK rows.  There are only a few keepers, because
// each of them reads every solved row from shared memory.  One more warp, the solver, receives a block of rows when
// these rows have all earlier updates.  While the solver works, the keepers update later blocks.  The remaining warps
// copy L to shared memory.  The current rows are always the first in the registers, so that the loops are short.
//
// Rounding: fused multiply-adds in FP32, in the order of the substitution.

#include "common/async_copy.cuh"
#include "common/common.cuh"
#include "common/mbarrier.cuh"
#include "common/sm_addresses.cuh"

constexpr int WARPS = 4, SOLVER = WARPS, FETCHERS = 3;  // keepers, the number of the solver, warps that fetch
constexpr int THREADS = (WARPS + 1 + FETCHERS) * WARP, COLUMNS = 8;
constexpr int BLOCK = 16, STAGES = 4;                // rows that are solved for together; blocks of L in memory
constexpr int SLOTS = MOST / (BLOCK * WARPS);        // blocks of rows of a warp
constexpr int HALF = COLUMNS * BLOCK / WARP;         // columns of a row that one lane has
constexpr int PARTS = WARP / COLUMNS;                // lanes that solve for one column
constexpr int EACH = BLOCK / PARTS;                  // rows of such a lane
static_assert(EACH == 4 && HALF == 4, "a word at a time");

// BLOCK columns of a row of L; padded, so that 16-byte reads of eight rows at one column use different banks.
struct RowOfL { float at[BLOCK + 4]; };
// BLOCK rows of the result.
struct Solved { float at[BLOCK][COLUMNS]; };
using Word = Run<float, 4>;

// Copies columns first .. first + BLOCK - 1 of L, from row `first` down; columns from k on become zero.
__device__ __forceinline__ void fetch(RowOfL* to, const float* __restrict__ l, Index ldl, int k, int first) {
    constexpr int WORDS = BLOCK / 4, STEP = FETCHERS * WARP / WORDS;
    const int thread = threadIdx.x - (THREADS - FETCHERS * WARP);
    const int word = thread % WORDS * 4, row = first + thread / WORDS;
    const int count = max(0, min(4, k - first - word));
    const float* from = count ? l + row * ldl + first + word : l;
    float* there = to[row].at + word;
    #pragma unroll 8
    for (int left = k - row; left > 0; left -= STEP) {
#if __CUDA_ARCH__ >= 800
        copy_16(there, from, 4 * count);
#else
        #pragma unroll
        for (int i = 0; i < 4; ++i) there[i] = i < count ? from[i] : 0.0f;
#endif
        if (count) from += STEP * ldl;
        there += STEP * (sizeof(RowOfL) / sizeof(float));
    }
    commit_copies();
}

// Tells the solver that a block of rows is ready; the keepers hand over one block after the other.
struct Handover {
    unsigned long long barrier;

    __device__ __forceinline__ void set_up() {
#if __CUDA_ARCH__ >= 800
        init_barrier<WARP>(shared_address(&barrier));
#endif
    }

    // Says that the next block is ready; all lanes of a warp call it.
    __device__ __forceinline__ void say() {
#if __CUDA_ARCH__ >= 800
        arrive_at(shared_address(&barrier));
#else
        asm volatile("barrier.cta.arrive 1, %0;" :: "n"(2 * WARP) : "memory");
#endif
    }

    // Waits for block `number`: 0, 1, ...
    __device__ __forceinline__ void await(int number) const {
#if __CUDA_ARCH__ >= 800
        while (!__all_sync(ALL_LANES, is_over_now(shared_address(&barrier), number & 1))) {}
#else
        asm volatile("barrier.cta.sync 1, %0;" :: "n"(2 * WARP) : "memory");
#endif
    }
};

// x -= l y for COUNT blocks of a warp's rows, and BLOCK columns of L.
template <int COUNT>
__device__ __forceinline__ void subtract(Word* x, const RowOfL* l, const Word (&y)[BLOCK]) {
    #pragma unroll
    for (int q = 0; q < BLOCK; q += 4) {
        Word row[COUNT];
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) row[i].load(l[i * WARPS * BLOCK].at + q, true, 4);
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            #pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                #pragma unroll
                for (int c = 0; c < 4; ++c) x[i].at[c] = fmaf(-row[i].at[e], y[q + e].at[c], x[i].at[c]);
            }
        }
    }
}

// Solves for the block of rows that is handed over as `number`, by one warp; `l` holds the triangle.  PARTS lanes share
// a column, EACH rows to a lane.  The part inside the matrix, `rows` x `columns`, is also stored to `out`.
__device__ __forceinline__ void solve(
    Solved& block, const Handover& handover, int number, const RowOfL* l, float* out, Index ld_out, int rows,
    Index columns
) {
    const int lane = threadIdx.x % WARP, column = lane % COLUMNS, part = lane / COLUMNS;
    Word row[EACH][PARTS];
    float x[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        #pragma unroll
        for (int p = 0; p < PARTS; ++p) row[i][p].load(l[part * EACH + i].at + p * EACH, true, 4);
    }
    handover.await(number);
    #pragma unroll
    for (int i = 0; i < EACH; ++i) x[i] = block.at[part * EACH + i][column];
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        float y[EACH];  // the solution for the rows of part p
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            y[i] = x[i];
            #pragma unroll
            for (int e = 0; e < i; ++e) y[i] = fmaf(-row[i][p].at[e], y[e], y[i]);
        }
        #pragma unroll
        for (int i = 0; i < EACH; ++i) y[i] = __shfl_sync(ALL_LANES, y[i], p * COLUMNS + column);
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            float below = x[i];
            #pragma unroll
            for (int e = 0; e < EACH; ++e) below = fmaf(-row[i][p].at[e], y[e], below);
            x[i] = part > p ? below : part == p ? y[i] : x[i];
        }
    }
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        block.at[part * EACH + i][column] = x[i];
        if (part * EACH + i < rows && column < columns) out[(part * EACH + i) * ld_out + column] = x[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_lower_solve(
    float* b, Index ldb, float* out, Index ld_out, Index n, const float* __restrict__ l, Index ldl, Index order,
    const int* __restrict__ dst, const int* __restrict__ src, const unsigned* __restrict__ any
) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    __shared__ __align__(16) Solved solved[2];  // in turns
    __shared__ Handover handover;
    RowOfL* const rows_of_l = reinterpret_cast<RowOfL*>(dynamic);
    const int k = int(order), blocks = (k + BLOCK - 1) / BLOCK;
    const int first = b ? 0 : int(blockIdx.x) * COLUMNS / BLOCK;  // the rows of L^-1 above are zero
    const auto stage = [&](int number) { return rows_of_l + number % STAGES * (blocks * BLOCK); };
    // The shuffle tells the compiler that the number is the same in all lanes of the warp.  Otherwise the compiler adds
    // code before each shuffle that brings the lanes together.
    const int warp = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP;
    const Index start = Index(blockIdx.x) * COLUMNS;
    const bool keeps = warp < WARPS, fetches = warp > SOLVER;
    const auto fetch_block = [&](int number) { fetch(stage(number), l, ldl, k, number * BLOCK); };
    if (threadIdx.x == 0) handover.set_up();
    if (fetches) {
        fetch_block(first);
        fetch_block(first + 1);
        wait_for_groups<1>();
    }

    const int in_block = lane % BLOCK, side = lane / BLOCK * HALF;
    const Index column0 = start + side, count = min(Index(HALF), n - column0);
    const bool moves = any == nullptr ? src != nullptr : *any != 0;
    const bool vector = count == HALF && aligned16(b + column0, ldb);
    int done = max(0, first - warp + WARPS - 1) / WARPS;  // blocks of this warp that are solved for, or that are zero
    const auto block_of = [&](int s) { return (done + s) * WARPS + warp; };
    const auto row_of = [&](int s) { return block_of(s) * BLOCK + in_block; };
    Word x[SLOTS], displaced[SLOTS];
    int place[SLOTS];
    if (keeps && b == nullptr) {
        #pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            #pragma unroll
            for (int c = 0; c < HALF; ++c) x[s].at[c] = row_of(s) == column0 + c ? 1.0f : 0.0f;
        }
        for (int row = threadIdx.x / COLUMNS; row < first * BLOCK; row += WARPS * WARP / COLUMNS) {
            const Index column = start + threadIdx.x % COLUMNS;
            if (column < n) out[row * ld_out + column] = 0.0f;
        }
    } else if (keeps) {
        // In place of a row beyond the last one, a lane loads the last row, and does not use the result.  So several
        // lanes store the row that changes places with the last row, all with the same values.  All loads start before
        // the first value is needed.
        int from[SLOTS], out_of[SLOTS];
        #pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            const int i = min(row_of(s), k - 1);
            from[s] = moves ? src[i] : i, out_of[s] = moves ? src[k + i] : i, place[s] = moves ? dst[k + i] : 0;
        }
        #pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            x[s].load(b + from[s] * ldb + column0, vector, count);
            if (moves) displaced[s].load(b + out_of[s] * ldb + column0, vector, count);
        }
    }
    __syncthreads();  // all rows have been read before one is overwritten
    if (keeps && b && moves) {
        #pragma unroll
        for (int s = 0; s < SLOTS; ++s) {
            if (place[s] >= k) displaced[s].store(b + place[s] * ldb + column0, vector, count);
        }
    }
    #pragma unroll 1
    for (int number = first;; ++number) {
        if (fetches) {
            fetch_block(number + 2);
            wait_for_groups<1>();  // the next block of L has arrived
        } else if (!keeps) {
            const int row = number * BLOCK;
            float* const to = out + row * ld_out + start;
            solve(solved[number % 2], handover, number - first, stage(number) + row, to, ld_out, k - row, n - start);
        } else {
            // Update by the block before this one, which has been solved for.
            const bool mine = block_of(0) == number;
            const RowOfL* const before = stage(number + STAGES - 1);  // the stage of number - 1
            Word y[BLOCK];
            if (number > first) {
                #pragma unroll
                for (int q = 0; q < BLOCK; ++q) y[q].load(solved[(number - 1) % 2].at[q] + side, true, HALF);
                if (mine) subtract<1>(x, before + row_of(0), y);
            }
            if (mine) {
                x[0].store(solved[number % 2].at[in_block] + side, true, HALF);
                handover.say();
                ++done;
                #pragma unroll
                for (int s = 0; s + 1 < SLOTS; ++s) x[s] = x[s + 1];
            }
            if (number > first) {
                #pragma unroll
                for (int s = 0; s < SLOTS; s += 2) if (block_of(s) < blocks) subtract<2>(x + s, before + row_of(s), y);
            }
        }
        if (number + 1 >= blocks) return;
        __syncthreads();
    }
}
