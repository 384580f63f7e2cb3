// The rows of a strip that a block of panel.cu owns: their entries in registers and in shared memory, copies between
// the two and global memory, and the choice of a pivot among them.
#pragma once

#include "common/common.cuh"
#include "common/reduce.cuh"
#include "common/sm_addresses.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int ALL = THREADS + HELPERS, ALL_WARPS = ALL / WARP;  // threads and warps of a block
constexpr int REST = STRIP - WIDTH;  // the most columns right of a leaf
constexpr int INFINITE = 0x7f800000;
constexpr int SMALL = 0x01000000, LARGE = 0x7e000000;  // 2^-125 and 2^125, as integers
static_assert(THREADS % WARP == 0 && HELPERS % WARP == 0 && WARPS <= WARP, "one lane for each warp that searches");
static_assert(BLOCKS <= 16, "the hardware's largest cluster");
static_assert(BLOCKS || HELPERS == 0, "in a grid all threads of a block search");
static_assert(!RESIDENT || HELPERS, "helpers load what is not searched yet");
static_assert(WIDTH % 4 == 0 && STRIP % WIDTH == 0 && REST <= ALL, "whole words; a thread for each column");

constexpr int NO_SIZE = -1, NO_PLACE = 0x7fffff;  // size and place if there is no row; every row wins against them

struct Rows {
    float at[ROWS][WIDTH];
    int place[ROWS];
};

// The number of the only bit that is set; __ffs would take one more instruction.
__device__ __forceinline__ int only_lane(unsigned lanes) { return 31 - __clz(lanes); }

// The lanes of a warp that have the largest size: one, unless there is a tie; lane 0 if no lane has a row.
//
// Ties are rare.  Callers may therefore read the row of one of these lanes before they test for a tie.  They break ties
// in a `while` that runs at most once: an `if` would be predicated, and its instructions would take time in every
// column.
struct Vote {
    bool mine;
    unsigned lanes;

    __device__ __forceinline__ int lane() const { return only_lane(lanes); }
    __device__ __forceinline__ bool is_tied() const { return lanes & (lanes - 1); }

    // Keeps only the lane with the lowest place.
    __device__ __forceinline__ void break_tie(int place) {
        const int low = smallest_of_warp(mine ? place : NO_PLACE);
        mine = mine && place == low;
        lanes = __ballot_sync(ALL_LANES, mine);
    }
};

__device__ __forceinline__ Vote vote(int size) {
    const int top = largest_of_warp(size);
    const bool mine = (size != NO_SIZE || threadIdx.x % WARP == 0) && size == top;
    return {mine, __ballot_sync(ALL_LANES, mine)};
}

// The blocks that factor the strip together: their common memory, if they are a grid, and the number of this block.
struct Team {
    struct Board* board;
    int rank;
    unsigned expected;  // in a grid: the value of Board::arrived when all blocks have arrived at the last barrier
};

__device__ __forceinline__ int block_count() {
#if BLOCKS
    return BLOCKS;
#else
    return gridDim.x;
#endif
}

// The number in `a` of row r of this block, and of row i of this thread.
__device__ __forceinline__ Index row_in_block(int r) {
    return (Index(r / THREADS) * block_count() + blockIdx.x) * THREADS + r % THREADS;
}
__device__ __forceinline__ Index row_of(int i) { return row_in_block(i * THREADS + threadIdx.x); }

// A variable in shared memory, by an address that stays in a register.  In a cluster, computing the address takes long,
// and the compiler would repeat it for every column.  It cannot repeat a shuffle, so the result of one is kept.
template <typename T>
__device__ __forceinline__ T& at_hand(T& x) {
    const unsigned address = __shfl_sync(ALL_LANES, shared_address(&x), 0);
    return *static_cast<T*>(__cvta_shared_to_generic(address));
}

// The number of the thread.  Because of the assembly, the compiler does not compute values that depend on this number
// earlier than they are needed, which saves registers.
__device__ __forceinline__ int this_thread() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

// The best of a thread's rows for a pivot.
struct Best { int size, place, slot; };

// For each of a thread's rows: whether it may be the next pivot.
struct Open { bool row[ROWS]; };

__device__ __forceinline__ Open open_rows(const Rows& rows, int column) {
    Open open;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) open.row[i] = rows.place[i] >= column;
    return open;
}

// The best row for the pivot of the column in at[.][0].
__device__ __forceinline__ Best best_of_rows(const Rows& rows, const Open& open) {
    Best best = {NO_SIZE, NO_PLACE, 0};
    int size[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        size[i] = open.row[i] ? __float_as_int(fabsf(rows.at[i][0])) : NO_SIZE;
        best.size = i ? max(best.size, size[i]) : size[i];
    }
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) best.place = min(best.place, size[i] == best.size ? rows.place[i] : NO_PLACE);
    #pragma unroll
    for (int i = 1; i < ROWS; ++i) if (rows.place[i] == best.place) best.slot = i;
    if (best.size == NO_SIZE) best.place = NO_PLACE;
    return best;
}

// The rows of a block in shared memory: their columns of the leaf, or, if RESIDENT, of the whole strip; and their
// places.
constexpr int STRIDE = (RESIDENT ? STRIP : WIDTH) + 4;  // without bank conflicts when each thread reads its own row
using Columns = float (*)[STRIDE];                      // all rows, from some column on
struct Leaf {
    float at[ROWS * THREADS][STRIDE];
    int place[ROWS * THREADS];
};
__device__ __forceinline__ Columns columns_from(Leaf& leaf, int first) {
    return reinterpret_cast<Columns>(&leaf.at[0][RESIDENT ? first : 0]);
}

__device__ __forceinline__ void keep(const Rows& rows, Leaf& leaf) {
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) leaf.place[i * THREADS + threadIdx.x] = rows.place[i];
}

// `store` copies a leaf of w columns to global memory.  Unless RESIDENT, `load` copies it from there.  The first `done`
// columns of the strip have their pivots: load makes the rows of these pivots zero, and store leaves them out.  If
// `vector`, w is WIDTH, and FLIGHT words of 16 bytes of a thread are in flight at a time.
constexpr int WORDS = WIDTH / 4, EACH = ROWS * THREADS * WORDS / ALL, FLIGHT = EACH % 8 ? EACH % 6 ? 4 : 6 : 8;
static_assert(ROWS * THREADS * WORDS % (FLIGHT * ALL) == 0, "whole turns of all threads");

#if RESIDENT
// Copies columns first .. last - 1 of a strip of w columns from global memory.  BY threads call it, each with its
// number `thread`.  Entries outside the matrix become zero.
template <int BY>
__device__ __forceinline__ void load(
    Leaf& leaf, const float* a, Index lda, Index m, int first, int last, int w, int thread
) {
    constexpr int TURN = 4;
    static_assert(ROWS * THREADS * WORDS % (TURN * BY) == 0, "whole turns of all threads");
    const bool vector = aligned16(a, lda);
    #pragma unroll 1
    for (; first < last; first += WIDTH) {
        #pragma unroll 1
        for (int e = thread; e < ROWS * THREADS * WORDS; e += TURN * BY) {
            Run<float, 4> v[TURN];
            #pragma unroll
            for (int i = 0; i < TURN; ++i) {
                const Index row = row_in_block((e + i * BY) / WORDS), q = first + (e + i * BY) % WORDS * 4;
                const Index count = row < m ? w - q : 0;
                v[i].load(a + row * lda + q, vector && count >= 4, count);
            }
            #pragma unroll
            for (int i = 0; i < TURN; ++i) {
                v[i].store(&leaf.at[(e + i * BY) / WORDS][first + (e + i * BY) % WORDS * 4], true, 4);
            }
        }
    }
}
#else
__device__ __forceinline__ void load(Leaf& leaf, const float* a, Index lda, int done, int w, bool vector) {
    if (!vector) {
        #pragma unroll 1
        for (int e = threadIdx.x; e < ROWS * THREADS * w; e += ALL) {
            const int r = e / w, q = e % w;
            leaf.at[r][q] = leaf.place[r] >= done ? a[row_in_block(r) * lda + q] : 0.0f;
        }
        return;
    }
    #pragma unroll 1
    for (int e = threadIdx.x; e < ROWS * THREADS * WORDS; e += FLIGHT * ALL) {
        float4 v[FLIGHT];
        #pragma unroll
        for (int i = 0; i < FLIGHT; ++i) {
            const int r = (e + i * ALL) / WORDS, q = (e + i * ALL) % WORDS * 4;
            v[i] = make_float4(0, 0, 0, 0);
            if (leaf.place[r] >= done) v[i] = *reinterpret_cast<const float4*>(a + row_in_block(r) * lda + q);
        }
        #pragma unroll
        for (int i = 0; i < FLIGHT; ++i) {
            const int r = (e + i * ALL) / WORDS, q = (e + i * ALL) % WORDS * 4;
            *reinterpret_cast<float4*>(&leaf.at[r][q]) = v[i];
        }
    }
}
#endif

// BY threads call `store`, each with its number `thread`.
template <int BY>
__device__ __forceinline__ void store(
    const Leaf& leaf, Columns columns, float* a, Index lda, int done, int w, bool vector, int thread
) {
    static_assert(ROWS * THREADS * WORDS % (FLIGHT * BY) == 0, "whole turns of all threads");
    if (!vector) {
        #pragma unroll 1
        for (int e = thread; e < ROWS * THREADS * w; e += BY) {
            const int r = e / w, q = e % w;
            if (leaf.place[r] >= done) a[row_in_block(r) * lda + q] = columns[r][q];
        }
        return;
    }
    #pragma unroll 1
    for (int e = thread; e < ROWS * THREADS * WORDS; e += FLIGHT * BY) {
        float4 v[FLIGHT];
        #pragma unroll
        for (int i = 0; i < FLIGHT; ++i) {
            const int r = (e + i * BY) / WORDS, q = (e + i * BY) % WORDS * 4;
            v[i] = *reinterpret_cast<const float4*>(&columns[r][q]);
        }
        #pragma unroll
        for (int i = 0; i < FLIGHT; ++i) {
            const int r = (e + i * BY) / WORDS, q = (e + i * BY) % WORDS * 4;
            if (leaf.place[r] >= done) *reinterpret_cast<float4*>(a + row_in_block(r) * lda + q) = v[i];
        }
    }
}

// Takes a thread's rows of a leaf of w columns into registers.  Columns from w on become zero, and so do the rows of
// the first `done` pivots.
__device__ __forceinline__ void fetch(Rows& rows, Columns columns, int done, int w) {
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int n = RESIDENT && rows.place[i] < done ? 0 : w;  // unless RESIDENT, these rows are zero in the leaf
        #pragma unroll
        for (int q = 0; q < WIDTH; q += 4) {
            const float4 v = *reinterpret_cast<const float4*>(&columns[i * THREADS + threadIdx.x][q]);
            rows.at[i][q] = q < n ? v.x : 0, rows.at[i][q + 1] = q + 1 < n ? v.y : 0;
            rows.at[i][q + 2] = q + 2 < n ? v.z : 0, rows.at[i][q + 3] = q + 3 < n ? v.w : 0;
        }
    }
}

// 1 / x, correctly rounded, if x and 1 / x are normal numbers.  The library's division handles all x, but is slower.
__device__ __forceinline__ float reciprocal_of(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return fmaf(r, fmaf(-x, r, 1.0f), r);
}

// The power of two by which a pivot of this size is multiplied before its reciprocal is computed.  The product is
// exact, and its reciprocal is a normal number.
__device__ __forceinline__ float scale_of(int size) {
    return size < SMALL ? 0x1p64f : size > LARGE ? 0x1p-64f : 1.0f;
}

// A pivot: the bits of |a_ij|, which as integers compare like |a_ij|; the place of its row before the swap; and the
// number of its row in `a`.
struct Pivot { int size, place, home; };

// Swaps the pivot's row with the row whose place is `column`: updates the place of a thread's row i, and returns its
// multiplier.  `scaled` is the entry of the row times the power of two that scales the pivot.  The multiplier is zero
// for the row of this pivot and of those before: they are rows of U and do not change, as long as all pivots are
// finite.  `kept` becomes the entry of the factors in this column; `open` tells whether the row stays a candidate.
__device__ __forceinline__ float divide(
    Rows& rows, int i, int size, int pivot_place, float scaled, float reciprocal, int column, float& kept, bool& open
) {
    const int place = rows.place[i];
    // `open` is computed from the place before the swap, so it need not wait for the new place.
    open = place >= column && place != pivot_place;
    rows.place[i] = place == pivot_place ? column : place == column ? pivot_place : place;
    const bool divides = open && size != 0;
    const float l = divides ? scaled * reciprocal : 0.0f;
    kept = divides ? l : rows.at[i][0];
    return l;
}
