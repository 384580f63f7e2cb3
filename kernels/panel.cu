// P A = L U of a strip of columns with partial pivoting, by one thread-block cluster or one cooperative grid.
//
//   a      FP32 m x w, row-major, leading dimension lda, 1 <= w <= STRIP, w <= m <= blocks THREADS ROWS.
//          Becomes L (below the unit diagonal) and U, every row still where it was: `dst` and `src` tell where
//          the rows belong, and tcs_swap_solve (swap_solve.cu) takes them there.
//   order  null, or int[m]: its entries move with the rows, here already.
//   ipiv   int[w]: step j swapped rows j and ipiv[j] - row0.
//   dst, src  int[2 w] and int[2 w + 1]: new[dst[i]] = old[src[i]] does the swaps.  All rows that move are
//          listed, those that become row i < w at i; some pairs occur twice.  src[2 w] is zero if none moves.
//   top    FP32 w x w, leading dimension ld_top: the first w rows of the result, L11 and U11.
//   info   int[1]: becomes min(info, col0 + j + 1) for the first pivot j that is zero or not finite.
//   started  null, or unsigned[17], zero before: where the blocks are, and that all are resident (see gate.cu).
//   board  BLOCKS 0: zeroed global memory for the exchange, else unused.
//
// Grid BLOCKS (a cluster) or, if BLOCKS is 0, any cooperative grid of at most 256; block THREADS + HELPERS; dynamic
// shared memory as PanelShape.shared_bytes has it.
// Defines BLOCKS, THREADS, HELPERS, ROWS, WIDTH, STRIP, DOMINANT: whether strips that need no search are factored
// without one (dominant.cuh), and RESIDENT: whether the whole strip stays in the shared memory of the cluster.
//
// Few warps search, since all they send must be looked at, and those that share a scheduler wait for each other; more,
// with the helpers, move and update what is in memory.  A thread that searches owns ROWS rows and keeps WIDTH columns
// of them, a leaf, in registers.  No row moves: a row knows its `place`, where the swaps so far have put it, and is a
// candidate for pivot j while place >= j.  The largest |a_ij| wins, at equal size the lowest place, which is LAPACK's
// choice; NaN counts as larger than infinity, so it is met and reported.  For every column all send their best rows
// to all, and each picks the winner for itself (exchange_cluster.cuh, exchange_grid.cuh).  After a leaf every block
// solves for the leaf's rows of U in the rest of the strip, and updates its own rows there.
//
// Rounding: l is a times the rounded reciprocal of the pivot; a - l u is one fused multiply-add, all to nearest in
// IEEE FP32 with subnormal numbers.  A zero pivot leaves its (zero) column and the others as they are.

#include "common.cuh"
#include "place.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int ALL = THREADS + HELPERS, ALL_WARPS = ALL / WARP;  // of a block
constexpr int REST = STRIP - WIDTH;  // most columns right of a leaf
constexpr int INFINITE = 0x7f800000;
constexpr int SMALL = 0x01000000, LARGE = 0x7e000000;  // 2^-125 and 2^125, as integers
static_assert(THREADS % WARP == 0 && HELPERS % WARP == 0 && WARPS <= WARP, "one lane for each warp that searches");
static_assert(BLOCKS <= 16, "the hardware's largest cluster");
static_assert(BLOCKS || HELPERS == 0, "in a grid all threads of a block search");
static_assert(!RESIDENT || HELPERS, "helpers load what is not searched yet");
static_assert(WIDTH % 4 == 0 && STRIP % WIDTH == 0 && REST <= ALL, "whole words; a thread for each column");

// Copies 16 bytes to shared memory, or zeros unless they are `wanted`, before cp.async.wait_all returns.
__device__ __forceinline__ void copy_ahead(float* to, const float* from, bool wanted) {
#if __CUDA_ARCH__ >= 800
    const auto address = shared_address(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(from), "r"(wanted ? 16 : 0) : "memory");
#endif
}

constexpr int NO_SIZE = -1, NO_PLACE = 0x7fffff;  // lose against every row

struct Rows {
    float at[ROWS][WIDTH];
    int place[ROWS];
};

__device__ __forceinline__ int largest_of_warp(int v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL_LANES, v);
#else
    #pragma unroll
    for (int d = WARP / 2; d; d /= 2) v = max(v, __shfl_xor_sync(ALL_LANES, v, d));
    return v;
#endif
}

// The number of the only bit that is set; __ffs takes an instruction more.
__device__ __forceinline__ int only_lane(unsigned lanes) { return 31 - __clz(lanes); }

// The lanes of a warp that have the largest size: one, but for a tie.  Ties are rare, so what the only lane has is on
// its way before they are looked for; and they are broken in a loop of one turn, as an `if` would be predicated and
// cost every column.  Where no lane has a row the first stands for all, or that would be a tie.
struct Vote {
    bool mine;
    unsigned lanes;

    __device__ __forceinline__ int lane() const { return only_lane(lanes); }
    __device__ __forceinline__ bool is_tied() const { return lanes & (lanes - 1); }

    // Leaves the lane with the lowest place.
    __device__ __forceinline__ void break_tie(int place) {
        const int low = -largest_of_warp(mine ? -place : -NO_PLACE);
        mine = mine && place == low;
        lanes = __ballot_sync(ALL_LANES, mine);
    }
};

__device__ __forceinline__ Vote vote(int size) {
    const int top = largest_of_warp(size);
    const bool mine = (size != NO_SIZE || threadIdx.x % WARP == 0) && size == top;
    return {mine, __ballot_sync(ALL_LANES, mine)};
}

// The blocks that work together: what they share in global memory (a grid), and the number of this one.
struct Team {
    struct Board* board;
    int rank;
    unsigned expected;  // arrivals at the next barrier of a grid
};

__device__ __forceinline__ int block_count() {
#if BLOCKS
    return BLOCKS;
#else
    return gridDim.x;
#endif
}

// The row of a that is row r of this block, and the one that is row i of this thread.
__device__ __forceinline__ Index row_in_block(int r) {
    return (Index(r / THREADS) * block_count() + blockIdx.x) * THREADS + r % THREADS;
}
__device__ __forceinline__ Index row_of(int i) { return row_in_block(i * THREADS + threadIdx.x); }

// A variable in shared memory, by an address that stays in a register: that of a block in a cluster takes long to
// find, and the compiler would find it for every column.  It cannot do again what a shuffle has done.
template <typename T>
__device__ __forceinline__ T& at_hand(T& x) {
    const unsigned address = __shfl_sync(ALL_LANES, shared_address(&x), 0);
    return *static_cast<T*>(__cvta_shared_to_generic(address));
}

// The number of a thread; what depends on it is not computed before it is needed, where registers are short.
__device__ __forceinline__ int this_thread() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

// The best of a thread's rows for a pivot.
struct Best { int size, place, slot; };

// Which of a thread's rows may be the next pivot.
struct Open { bool row[ROWS]; };

__device__ __forceinline__ Open open_rows(const Rows& rows, int column) {
    Open open;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) open.row[i] = rows.place[i] >= column;
    return open;
}

// For the pivot whose column's entries are at[.][0].
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

// The rows of a block: their columns of a leaf, on its way between global memory and the registers, or, if RESIDENT,
// of the strip; and their places.
constexpr int STRIDE = (RESIDENT ? STRIP : WIDTH) + 4;  // threads reading their rows meet no bank conflicts
using Columns = float (*)[STRIDE];                      // some of them, of all rows
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

// Copies a leaf of w columns from global memory, or back.  Rows that are pivots already are left out; `done` columns
// are.  Many words of 16 bytes in flight if `vector`: then w is WIDTH.
constexpr int WORDS = WIDTH / 4, EACH = ROWS * THREADS * WORDS / ALL, FLIGHT = EACH % 8 ? EACH % 6 ? 4 : 6 : 8;
static_assert(ROWS * THREADS * WORDS % (FLIGHT * ALL) == 0, "whole turns of all threads");

#if RESIDENT
// Copies columns first .. last - 1 of a strip of w columns from global memory, by as many threads as BY of which
// this is number `thread`; what there is not becomes zero.
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

// By as many threads as BY of which this is number `thread`.
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

// Columns w and on are zero, and so are rows that were pivots before `done`.
__device__ __forceinline__ void fetch(Rows& rows, Columns columns, int done, int w) {
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int n = RESIDENT && rows.place[i] < done ? 0 : w;  // else they were not loaded
        #pragma unroll
        for (int q = 0; q < WIDTH; q += 4) {
            const float4 v = *reinterpret_cast<const float4*>(&columns[i * THREADS + threadIdx.x][q]);
            rows.at[i][q] = q < n ? v.x : 0, rows.at[i][q + 1] = q + 1 < n ? v.y : 0;
            rows.at[i][q + 2] = q + 2 < n ? v.z : 0, rows.at[i][q + 3] = q + 3 < n ? v.w : 0;
        }
    }
}

// 1 / x correctly rounded for x of normal size with a normal reciprocal: the short half of the library's.
__device__ __forceinline__ float reciprocal_of(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return fmaf(r, fmaf(-x, r, 1.0f), r);
}

// A pivot whose reciprocal is no normal number is brought to one by an exact power of two.
__device__ __forceinline__ float scale_of(int size) {
    return size < SMALL ? 0x1p64f : size > LARGE ? 0x1p-64f : 1.0f;
}

// A pivot: |a_ij| as an ordered integer, the place of its row before the swap, and the row of a it lies in.
struct Pivot { int size, place, home; };

// Swaps the places of a pivot's row and of row `column`, and returns the multiplier of a thread's row i, whose entry
// is `scaled` as the pivot was, or zero: rows that are pivots keep their entries, which are rows of U, unless a pivot
// is not finite.  `kept` becomes what belongs in the column, `open` whether the row is below the pivot's then.
__device__ __forceinline__ float divide(
    Rows& rows, int i, int size, int pivot_place, float scaled, float reciprocal, int column, float& kept, bool& open
) {
    const int place = rows.place[i];
    open = place >= column && place != pivot_place;  // known sooner than by the place after the swap
    rows.place[i] = place == pivot_place ? column : place == column ? pivot_place : place;
    const bool divides = open && size != 0;
    const float l = divides ? scaled * reciprocal : 0.0f;
    kept = divides ? l : rows.at[i][0];
    return l;
}

// Each has an Exchange, what a thread knows between two columns (Search), and prepare, begin and eliminate.
#if BLOCKS
#include "exchange_cluster.cuh"
#else
#include "exchange_grid.cuh"
#endif

// Factors columns first .. first + w - 1 of the strip, the first of `columns`; home[j] becomes the row of a that holds
// pivot j of the leaf.
//
// The column at hand is always the first in the registers, so that one short piece of code serves all: unrolled over
// the leaf it would not fit in the instruction cache, and a column would wait for its instructions longer than for
// its pivot.
__device__ __forceinline__ void factor_leaf(
    Exchange& x, Team& team, Rows& rows, Columns columns, int first, int w, int* ipiv, int* info, int row0, int col0,
    int* home
) {
    fetch(rows, columns, first, w);
    Pivot mine = {};  // the pivot with this thread's number
    Search search = begin(x, team, rows, first, w);
    #pragma unroll 1
    for (int j = 0; j < w; ++j) {
        const Pivot pivot = eliminate(x, team, rows, columns, search, j, w, first + j);
        if (int(threadIdx.x) == j) mine = pivot;
    }
    if (int(threadIdx.x) >= w) return;
    const int column = first + threadIdx.x;
    home[threadIdx.x] = mine.home;
    if (blockIdx.x == 0) {
        ipiv[column] = row0 + mine.place;
        if (mine.size == 0 || mine.size >= INFINITE) atomicMin(info, col0 + column + 1);
    }
}

// Rows of U right of a leaf, and the L11 they are solved with, by columns: below[j][d] = L_ij for i = j + 1 + d, or 0.
struct __align__(16) BlockRow {
    float u[WIDTH][REST];
    float below[WIDTH][WIDTH];  // follows u: a last tile of the update may read past its columns
};

// Column q of row `row` of a, counted from the leaf's first, as the block that has the row has left it.
__device__ __forceinline__ float entry(const float* a, Index lda, Columns columns, int row, int q) {
#if RESIDENT
    const int block = row / THREADS % BLOCKS, r = row / (THREADS * BLOCKS) * THREADS + row % THREADS;
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address_in(&columns[r][q], block)) : "memory");
    return v;
#else
    return __ldcg(a + row * lda + q);
#endif
}

// Solves for them in the pivot rows: a thread to each of the `rest` columns.  a is at the leaf's first column.
//
// The row at hand is the first in the registers, for short code as in factor_leaf.
__device__ __forceinline__ void solve_block_row(
    BlockRow& row, Team& team, const float* a, Index lda, Columns columns, const int* home, int rest
) {
    constexpr int TURNS = WIDTH / ALL_WARPS, PARTS = (REST + WARP - 1) / WARP;
    static_assert(WIDTH % ALL_WARPS == 0 && WIDTH <= WARP, "whole turns of all warps, a lane for each column of L11");
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float l[TURNS], u[TURNS][PARTS];  // all on their way before the first has come
    #pragma unroll
    for (int e = 0; e < TURNS; ++e) {
        const int i = warp + e * ALL_WARPS, pivot = home[i];
        l[e] = lane < i ? entry(a, lda, columns, pivot, lane) : 0.0f;
        #pragma unroll
        for (int v = 0; v < PARTS; ++v) {
            const int q = lane + v * WARP;
            u[e][v] = q < rest ? entry(a, lda, columns, pivot, WIDTH + q) : 0.0f;
        }
    }
    #pragma unroll
    for (int e = 0; e < TURNS; ++e) {
        const int i = warp + e * ALL_WARPS;
        if (lane < WIDTH) row.below[lane][lane < i ? i - lane - 1 : WIDTH - 1 - (lane - i)] = l[e];
        #pragma unroll
        for (int v = 0; v < PARTS; ++v) if (lane + v * WARP < rest) row.u[i][lane + v * WARP] = u[e][v];
    }
    __syncthreads();
    arrive_all(team);  // the pivot rows have been read
    if (int(threadIdx.x) < rest) {
        float x[WIDTH];
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i) x[i] = row.u[i][threadIdx.x];
        Run<float, WIDTH> column[2];  // of L11: one is read while that before it is used
        const auto eliminate_by = [&](const Run<float, WIDTH>& below, int j) {
            const float pivot = x[0];
            row.u[j][threadIdx.x] = pivot;
            #pragma unroll
            for (int i = 0; i + 1 < WIDTH; ++i) x[i] = fmaf(-below.at[i], pivot, x[i + 1]);
        };
        column[0].load(row.below[0], true, WIDTH);
        #pragma unroll 1
        for (int j = 0; j < WIDTH; j += 2) {
            column[1].load(row.below[j + 1], true, WIDTH);
            eliminate_by(column[0], j);
            column[0].load(row.below[min(j + 2, WIDTH - 1)], true, WIDTH);
            eliminate_by(column[1], j + 1);
        }
    }
    __syncthreads();
}

// c -= l u for a few rows, 4 columns of L, and as many words, 16 columns apart, of rows of U that are `pitch` apart.
template <int M, int N>
__device__ __forceinline__ void subtract_products(
    float4 (&c)[M][N], const Run<float, 4> (&l)[M], const float* rows_of_u, int pitch
) {
    #pragma unroll
    for (int h = 0; h < 4; ++h) {
        float4 u[N];
        #pragma unroll
        for (int v = 0; v < N; ++v) u[v] = *reinterpret_cast<const float4*>(rows_of_u + h * pitch + 16 * v);
        #pragma unroll
        for (int i = 0; i < M; ++i) {
            #pragma unroll
            for (int v = 0; v < N; ++v) {
                float4& to = c[i][v];
                to.x = fmaf(-l[i].at[h], u[v].x, to.x), to.y = fmaf(-l[i].at[h], u[v].y, to.y);
                to.z = fmaf(-l[i].at[h], u[v].z, to.z), to.w = fmaf(-l[i].at[h], u[v].w, to.w);
            }
        }
    }
}

// a -= L u for the rows not yet pivots, a at the first column right of the leaf, L in `columns`; if RESIDENT, for
// what follows those.
//
// A warp takes tiles of a few rows times COLUMNS columns, a thread TILE_ROWS rows and 4 or 8 columns of one, so that
// neighbouring threads share the lines of a and the words of L and U.  The code is short (see factor_leaf).
__device__ __forceinline__ void update_rest(
    const Leaf& leaf, Columns columns, const BlockRow& row, float* a, Index lda, int rest, int done, bool vector
) {
    constexpr int COLUMNS = WIDTH < 32 ? 16 : 32, PARTS = COLUMNS / 16, ACROSS = 4, DOWN = WARP / ACROSS;
    constexpr int ALL_ROWS = ROWS * THREADS, TILE_ROWS = 8, TILES_DOWN = ALL_ROWS / (DOWN * TILE_ROWS);
    static_assert(ALL_ROWS % (DOWN * TILE_ROWS) == 0, "whole tiles");
    const auto row_at = [&](int r) { return RESIDENT ? columns[r] + WIDTH : a + row_in_block(r) * lda; };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (!RESIDENT && !vector) {
        #pragma unroll 1
        for (int e = threadIdx.x; e < ALL_ROWS * rest; e += ALL) {
            const int r = e / rest, q = e % rest;
            if (leaf.place[r] < done) continue;
            float c = a[row_in_block(r) * lda + q];
            #pragma unroll 4
            for (int k = 0; k < WIDTH; ++k) c = fmaf(-columns[r][k], row.u[k][q], c);
            a[row_in_block(r) * lda + q] = c;
        }
        return;
    }
    #pragma unroll 1
    for (int e = warp; e < TILES_DOWN * ((rest + COLUMNS - 1) / COLUMNS); e += ALL_WARPS) {
        const int r0 = e % TILES_DOWN * DOWN * TILE_ROWS + lane / ACROSS;
        const int q0 = e / TILES_DOWN * COLUMNS + lane % ACROSS * 4;
        float4 c[TILE_ROWS][PARTS];
        bool open[TILE_ROWS][PARTS];
        #pragma unroll
        for (int i = 0; i < TILE_ROWS; ++i) {
            const float* at = row_at(r0 + i * DOWN) + q0;
            #pragma unroll
            for (int v = 0; v < PARTS; ++v) {
                open[i][v] = leaf.place[r0 + i * DOWN] >= done && q0 + 16 * v < rest;
                if (open[i][v]) c[i][v] = *reinterpret_cast<const float4*>(at + 16 * v);
            }
        }
        #pragma unroll 1
        for (int k = 0; k < WIDTH; k += 4) {
            Run<float, 4> l[TILE_ROWS];
            #pragma unroll
            for (int i = 0; i < TILE_ROWS; ++i) l[i].load(&columns[r0 + i * DOWN][k], true, 4);
            subtract_products(c, l, &row.u[k][q0], REST);
        }
        #pragma unroll
        for (int i = 0; i < TILE_ROWS; ++i) {
            float* at = row_at(r0 + i * DOWN) + q0;
            #pragma unroll
            for (int v = 0; v < PARTS; ++v) if (open[i][v]) *reinterpret_cast<float4*>(at + 16 * v) = c[i][v];
        }
    }
}

#if DOMINANT
#include "dominant.cuh"
#endif

#if RESIDENT
// Stores the leaf before column `first`, while others search: until that is over, leaf.place is as that leaf left it.
__device__ __forceinline__ void store_before(Leaf& leaf, float* a, Index lda, int first, int thread) {
    const int before = first - WIDTH;
    store<HELPERS>(leaf, columns_from(leaf, before), a + before, lda, before, WIDTH, aligned16(a, lda), thread);
}
#endif

// Factors the strip, searching every column for its pivot.
__device__ __forceinline__ void factor_by_search(
    Exchange& x, Team& team, Rows& rows, Leaf& leaf, BlockRow& row, int* home, float* a, Index lda, Index m, int w,
    int* ipiv, int* info, int row0, int col0
) {
    // As a number of the whole warp: else each vote of the search asks whether the lanes have met.
    const bool searches = HELPERS == 0 || __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0) < WARPS;
    if (searches) keep(rows, leaf);
#if RESIDENT
    load<ALL>(leaf, a, lda, m, 0, min(w, WIDTH), w, threadIdx.x);
#endif
    __syncthreads();
    #pragma unroll 1
    for (int first = 0; first < w; first += WIDTH) {
        float* here = a + first;
        const Columns columns = columns_from(leaf, first);
        const int left = w - first, width = min(left, WIDTH);
        const bool vector = aligned16(a, lda) && width == WIDTH;
#if !RESIDENT
        load(leaf, here, lda, first, width, vector);
#endif
        prepare(x);
        __syncthreads();
        if (searches) factor_leaf(x, team, rows, columns, first, width, ipiv, info, row0, col0, home + first);
#if RESIDENT
        else if (first == 0) load<HELPERS>(leaf, a, lda, m, WIDTH, w, w, threadIdx.x - THREADS);
        else store_before(leaf, a, lda, first, threadIdx.x - THREADS);
#endif
        __syncthreads();
        const int rest = left - WIDTH;
#if RESIDENT
        if (searches) keep(rows, leaf);
        __syncthreads();
        arrive_all(team);
        if (rest <= 0) store<ALL>(leaf, columns, here, lda, first, width, vector, threadIdx.x);
        __syncwarp();
#else
        store<ALL>(leaf, columns, here, lda, first, width, vector, threadIdx.x);
        __syncthreads();
        if (searches) keep(rows, leaf);
        arrive_all(team);
#endif
        wait_all(team);  // the leaf is complete, everywhere
        if (rest <= 0) break;
        solve_block_row(row, team, here, lda, columns, home + first, rest);
        update_rest(leaf, columns, row, here + WIDTH, lda, rest, first + WIDTH, vector && rest % 4 == 0);
        wait_all(team);  // all have read the pivot rows that become rows of U
        for (int i = blockIdx.x; i < WIDTH; i += block_count()) {
            float* to = here + home[first + i] * lda + WIDTH;
            for (int q = threadIdx.x; q < rest; q += ALL) to[q] = row.u[i][q];
        }
        __syncthreads();  // all warps are done with the leaf
    }
}

extern "C" __global__ void
#if BLOCKS
__cluster_dims__(BLOCKS, 1, 1)
#endif
__launch_bounds__(ALL, 1)
tcs_panel(
    float* a, Index lda, Index m, Index w, int* order, int* ipiv, int* dst, int* src, float* top, Index ld_top,
    int* info, Index row0, Index col0, unsigned* started, Board* board
) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    Leaf& leaf = *reinterpret_cast<Leaf*>(dynamic);
    __shared__ __align__(16) Exchange exchange;
    // Where a register is left for it.
    constexpr bool AT_HAND = BLOCKS && (RESIDENT || !HELPERS);
    Exchange& x = AT_HAND ? at_hand(exchange) : exchange;
    __shared__ BlockRow row;
    __shared__ int home[STRIP];
    Team team = {board, 0, 0};
    asm volatile("mov.u32 %0, %ctaid.x;" : "=r"(team.rank));  // kept, as reading it takes long
    set_up(x);
    if (started && threadIdx.x == 0) {
        const unsigned here = multiprocessor();
        atomicOr(started + 1 + here / WARP % 8, 1u << here % WARP);
        __threadfence();
    }
    bool dominant = false;
#if DOMINANT
    Dominant& s = *reinterpret_cast<Dominant*>(dynamic);
    dominant = w == STRIP && aligned16(a, lda) && may_dominate(a, lda, m);
#endif
    arrive_all(team);
    wait_all(team);  // no block may send before all have set up their barriers
    if (started && blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<volatile unsigned*>(started) = 1;
#if DOMINANT
    dominant = dominant && dominates(s, team, a, lda, m);
    if (dominant) {
        team = factor_dominant(s, team, a, lda, m);
        if (threadIdx.x < STRIP) {
            home[threadIdx.x] = threadIdx.x;
            if (blockIdx.x == 0) ipiv[threadIdx.x] = int(row0) + threadIdx.x;
        }
    }
#endif
    Rows rows;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) rows.place[i] = row_of(i) < m ? int(row_of(i)) : -1;  // -1: never a candidate
    if (!dominant) {
        factor_by_search(x, team, rows, leaf, row, home, a, lda, m, int(w), ipiv, info, int(row0), int(col0));
    }

    const int thread = this_thread();
    Index here[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) here[i] = HELPERS == 0 || thread < THREADS ? row_in_block(i * THREADS + thread) : m;
    int index[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) index[i] = order && here[i] < m ? order[here[i]] : 0;
    // All of `order` has been read, and no block leaves while another may still send to it.
    arrive_all(team);
    wait_all(team);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const Index place = rows.place[i];
        if (here[i] >= m) continue;
        if (order) order[place] = index[i];
        if (place < w) dst[place] = int(place), src[place] = int(here[i]);
        if (here[i] < w) dst[w + here[i]] = int(place), src[w + here[i]] = int(here[i]);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) src[2 * w] = !dominant;
    // A warp for each row of the result, all its words on their way at once.
    constexpr int PARTS = (STRIP + WARP - 1) / WARP;
    const int lane = thread % WARP;
    for (int i = blockIdx.x * ALL_WARPS + thread / WARP; i < w; i += block_count() * ALL_WARPS) {
        float v[PARTS];
        #pragma unroll
        for (int k = 0; k < PARTS; ++k) {
            const int q = lane + k * WARP;
            v[k] = q < w ? __ldcg(a + home[i] * lda + q) : 0.0f;
        }
        #pragma unroll
        for (int k = 0; k < PARTS; ++k) if (lane + k * WARP < w) top[i * ld_top + lane + k * WARP] = v[k];
    }
}
