// Factors a strip leaf by leaf.  After each leaf every block solves for the leaf's rows of U in the rest of the strip,
// and then updates its own rows there.
//
// The alternative is to update a leaf just before it is factored, in the registers of the threads that search it.  Then
// every column is written only once, and fewer columns are read.  The bits are the same, but it took 15 % longer at
// 8192 to 16384 rows and as long at 32768 (H200, clock64; no results file is kept), because the products, not the
// bytes, determine the time of update_rest.
#pragma once

#include "lu/strip_rows.cuh"

// Both headers define the types Board, Exchange and Search (what a thread keeps from one column to the next), and the
// functions set_up, arrive_all, wait_all, share_sum, sum_of_blocks, prepare, begin and eliminate.
#if BLOCKS
#include "lu/exchange_cluster.cuh"
#else
#include "lu/exchange_grid.cuh"
#endif

// Factors columns first .. first + w - 1 of the strip, the first w of `columns`; home[j] becomes the row of `a` that
// holds pivot j of the leaf.
//
// The column that is eliminated is always the first in the registers, so that one short loop serves all columns.
// Unrolled over the leaf, the code would not fit in the instruction cache, and a column would wait longer for its
// instructions than for its pivot.
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

// The leaf's rows of U in the rest of the strip, and the leaf's triangle L11 by columns: below[j][d] is the entry of
// column j that is d + 1 rows below the diagonal, or 0 if the leaf has no such row.
struct __align__(16) BlockRow {
    float u[WIDTH][REST];
    float below[WIDTH][WIDTH];
};

// Entry q, counted from the leaf's first column, of row `row` of `a`, as the block that owns the row has left it.
__device__ __forceinline__ float entry(const float* a, Index lda, Columns columns, int row, int q) {
#if RESIDENT
    const int block = row / THREADS % BLOCKS, r = row / (THREADS * BLOCKS) * THREADS + row % THREADS;
    return __uint_as_float(load_from(&columns[r][q], block));
#else
    return __ldcg(a + row * lda + q);
#endif
}

// Computes the leaf's rows of U in the `rest` columns right of the leaf, with one thread for each column.  `a` points
// to the leaf's first column.
//
// The row that is solved for is the first in the registers, for a short loop as in factor_leaf.
__device__ __forceinline__ void solve_block_row(
    BlockRow& row, Team& team, const float* a, Index lda, Columns columns, const int* home, int rest
) {
    constexpr int TURNS = WIDTH / ALL_WARPS, PARTS = (REST + WARP - 1) / WARP;
    static_assert(WIDTH % ALL_WARPS == 0 && WIDTH <= WARP, "whole turns of all warps, a lane for each column of L11");
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float l[TURNS], u[TURNS][PARTS];  // all loads start before the first value is needed
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
        Run<float, WIDTH> column[2];  // of L11: the next is read while one is used
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

// c -= l u.  c has M rows of N words, 16 columns apart; l has M rows and 4 columns; the four rows of u are `pitch`
// entries apart.
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

// a -= L u for the rows that are not pivots yet, in the `rest` columns right of the leaf.  L is in `columns`; the
// columns to update follow it there if RESIDENT, else `a` points to the first of them.
//
// A warp takes tiles of 64 rows times COLUMNS columns, a thread TILE_ROWS rows and 4 or 8 columns of a tile, so that
// neighbouring threads share the cache lines of `a` and the words of L and U.  The code is short (see factor_leaf).
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

#if RESIDENT
// Stores the leaf that ends before column `first`, while other threads search the leaf that begins there.  leaf.place
// does not change during this search: it has the places after the swaps of the stored leaf.
__device__ __forceinline__ void store_before(Leaf& leaf, float* a, Index lda, int first, int thread) {
    const int before = first - WIDTH;
    store<HELPERS>(leaf, columns_from(leaf, before), a + before, lda, before, WIDTH, aligned16(a, lda), thread);
}
#endif

// Factors the strip with a search for the pivot of every column.
__device__ __forceinline__ void factor_by_search(
    Exchange& x, Team& team, Rows& rows, Leaf& leaf, BlockRow& row, int* home, float* a, Index lda, Index m, int w,
    int* ipiv, int* info, int row0, int col0
) {
    // The shuffle tells the compiler that the number is the same in all lanes of the warp.  Otherwise the compiler adds
    // code before each vote of the search that brings the lanes together.
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
        wait_all(team);  // the leaf is complete in all blocks
        if (rest <= 0) break;
        solve_block_row(row, team, here, lda, columns, home + first, rest);
        update_rest(leaf, columns, row, here + WIDTH, lda, rest, first + WIDTH, vector && rest % 4 == 0);
        wait_all(team);  // all blocks have read the pivot rows, which now become rows of U
        for (int i = blockIdx.x; i < WIDTH; i += block_count()) {
            float* to = here + home[first + i] * lda + WIDTH;
            for (int q = threadIdx.x; q < rest; q += ALL) to[q] = row.u[i][q];
        }
        __syncthreads();  // all warps have finished with the leaf
    }
}
