// LU without a search for pivots of a strip whose diagonal dominates its columns: |a_jj| > sum of |a_ij| over i != j.
// Elimination preserves the dominance, every multiplier is less than one, and partial pivoting would swap no rows
// (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 9.9).  Every block factors the rows
// of the diagonal; then each warp solves for 32 rows of L at a time, without waiting for others.
//
// The results are those of the search: each entry has the same fused multiply-adds in the same order.  Only zeros of U
// may differ in sign, because the search also subtracts zeros from rows that are already rows of U.
#pragma once

#include "common/async_copy.cuh"
#include "lu/strip.cuh"

// A diagonal entry dominates if the magnitudes of the other entries of its column sum to less than this share of it.
// The share is so much smaller than one that the rounding errors of the sums and of the elimination do not matter.
constexpr float DOMINATED = 1.0f - 0x1p-6f;
// Between these sizes of diagonal entries the reciprocals of the pivots are normal numbers.
constexpr float LEAST = 0x1p-100f, MOST = 0x1p100f;

constexpr int EDGE = WARP;  // columns that a warp solves for at a time
static_assert(STRIP % EDGE == 0 && STRIP <= ALL, "a warp's 32 rows are all rows of the diagonal, or none is");

// Rows of L that a warp solves for.  They are padded, so that lanes that read one row each have no bank conflicts.
struct Slab { float at[WARP][STRIP + 4]; };

struct Dominant {
    union {
        float u[STRIP][STRIP];  // the rows of the diagonal
        float sums[BLOCKS ? BLOCKS : 1][STRIP];  // of the columns, by each block of a cluster
    };
    union {
        Slab slab[ALL_WARPS];
        float of_warp[ALL_WARPS][STRIP];
        struct { float column[2][STRIP], row[2][STRIP]; } cross;  // of each pivot: its column and its row
    };
    float reciprocal[STRIP];
};

// Whether |a_00| is larger than the magnitudes of the entries below it.  Each thread compares one entry, so only the
// first THREADS + HELPERS rows are tested.  Most strips fail this test, for which a thread reads only two entries.
// Every block gets the same result.
__device__ __forceinline__ bool may_dominate(const float* a, Index lda, Index m) {
    const Index row = threadIdx.x;
    const bool open = row == 0 || row >= m || fabsf(a[row * lda]) < fabsf(a[0]);
    return __syncthreads_and(open);
}

// Sums |a_ij| over a block's rows without the diagonal, for each column, and sends the sums to all blocks.
__device__ __forceinline__ void add_columns(Dominant& s, Team& team, const float* a, Index lda, Index m) {
    constexpr int WORDS_ACROSS = STRIP / 4, ROWS_DOWN = WARP / WORDS_ACROSS, AHEAD = 16;
    static_assert(WARP % (AHEAD * ROWS_DOWN) == 0, "a warp's rows are read in whole turns");
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int q = lane % WORDS_ACROSS * 4;
    const bool reads = lane < ROWS_DOWN * WORDS_ACROSS;
    float4 sum = {};
    #pragma unroll 1
    for (int i = warp; i < ROWS * WARPS; i += ALL_WARPS) {
        const Index first = row_in_block(i * WARP);
        #pragma unroll 1
        for (int r = lane / WORDS_ACROSS; r < WARP; r += AHEAD * ROWS_DOWN) {
            float4 v[AHEAD];
            #pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                const Index row = first + r + k * ROWS_DOWN;
                v[k] = reads && row < m ? *reinterpret_cast<const float4*>(a + row * lda + q) : float4{};
            }
            #pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                const Index column = first + r + k * ROWS_DOWN - q;  // the column of the diagonal entry, counted from q
                sum.x += column == 0 ? 0 : fabsf(v[k].x), sum.y += column == 1 ? 0 : fabsf(v[k].y);
                sum.z += column == 2 ? 0 : fabsf(v[k].z), sum.w += column == 3 ? 0 : fabsf(v[k].w);
            }
        }
    }
    #pragma unroll
    for (int d = WORDS_ACROSS; d < ROWS_DOWN * WORDS_ACROSS; d *= 2) {
        sum.x += of_partner(sum.x, d), sum.y += of_partner(sum.y, d);
        sum.z += of_partner(sum.z, d), sum.w += of_partner(sum.w, d);
    }
    if (lane < WORDS_ACROSS) *reinterpret_cast<float4*>(&s.of_warp[warp][q]) = sum;
    __syncthreads();
    if (threadIdx.x >= STRIP) return;
    float total = 0;
    #pragma unroll
    for (int i = 0; i < ALL_WARPS; ++i) total += s.of_warp[i][threadIdx.x];
    share_sum(team, s.sums, threadIdx.x, total);
}

// Whether the diagonal dominates all columns; every block gets the same result.  False for a NaN or an infinity.
__device__ __forceinline__ bool dominates(Dominant& s, Team& team, const float* a, Index lda, Index m) {
    add_columns(s, team, a, lda, m);
    arrive_all(team);
    wait_all(team);
    bool open = true;
    const int column = threadIdx.x;
    if (column < STRIP) {
        const float size = fabsf(a[column * lda + column]), others = sum_of_blocks(team, s.sums, column);
        open = others < DOMINATED * size && size > LEAST && size < MOST;
    }
    return __syncthreads_and(open);
}

// The rows of the diagonal in the registers of a block: a thread has every DOWN-th row and every ACROSS-th column.
constexpr int ACROSS = 16, DOWN = ALL / ACROSS, HEIGHT = STRIP / DOWN, BREADTH = STRIP / ACROSS;
static_assert(ACROSS % DOWN == 0, "DOWN successive pivots have their columns in the same registers");
struct Square { float at[HEIGHT][BREADTH]; };

__device__ __forceinline__ void load(Square& square, const float* a, Index lda) {
    #pragma unroll
    for (int i = 0; i < HEIGHT; ++i) {
        #pragma unroll
        for (int k = 0; k < BREADTH; ++k) {
            square.at[i][k] = a[(threadIdx.x / ACROSS + i * DOWN) * lda + threadIdx.x % ACROSS + k * ACROSS];
        }
    }
}

// Factors the square column by column, and leaves it and the reciprocals of the pivots in shared memory.
__device__ __forceinline__ void factor_diagonal(Dominant& s, Square& square) {
    const int y = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS;
    #pragma unroll
    for (int h = 0; h < HEIGHT; ++h) {
        const int c = h * DOWN / ACROSS;  // the registers that hold the columns of these pivots
        #pragma unroll 1
        for (int t = 0; t < DOWN; ++t) {
            const int j = h * DOWN + t, parity = t & 1;
            float* column = s.cross.column[parity];
            float* row = s.cross.row[parity];
            if (x == j % ACROSS) {
                #pragma unroll
                for (int i = h; i < HEIGHT; ++i) column[y + i * DOWN] = square.at[i][c];
            }
            if (y == t) {
                #pragma unroll
                for (int k = c; k < BREADTH; ++k) row[x + k * ACROSS] = square.at[h][k];
            }
            __syncthreads();
            const float reciprocal = reciprocal_of(row[j]);
            if (threadIdx.x == 0) s.reciprocal[j] = reciprocal;
            float u[BREADTH];
            #pragma unroll
            for (int k = c; k < BREADTH; ++k) u[k] = row[x + k * ACROSS];
            #pragma unroll
            for (int i = h; i < HEIGHT; ++i) {
                const float l = column[y + i * DOWN] * reciprocal;
                const bool below = i > h || y > t;
                #pragma unroll
                for (int k = c; k < BREADTH; ++k) {
                    float& to = square.at[i][k];
                    const int q = x + k * ACROSS;
                    if (below && (k > c || q > j)) to = fmaf(-l, u[k], to);
                    if (below && k == c && q == j) to = l;
                }
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < HEIGHT; ++i) {
        #pragma unroll
        for (int k = 0; k < BREADTH; ++k) s.u[y + i * DOWN][x + k * ACROSS] = square.at[i][k];
    }
}

// Subtracts L U from the next EDGE columns of a slab, where L has the `done` columns that are already known.
__device__ __forceinline__ void eliminate_before(Slab& slab, const Dominant& s, int done) {
    constexpr int LANES = 4, APART = WARP / LANES, EACH = WARP / APART, PARTS = EDGE / (4 * LANES);
    const int lane = threadIdx.x % WARP, r = lane / LANES, q = done + lane % LANES * 4;
    float4 c[EACH][PARTS];
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        #pragma unroll
        for (int v = 0; v < PARTS; ++v) {
            c[i][v] = *reinterpret_cast<const float4*>(&slab.at[r + i * APART][q + 4 * LANES * v]);
        }
    }
    #pragma unroll 1
    for (int k = 0; k < done; k += 4) {
        Run<float, 4> l[EACH];
        #pragma unroll
        for (int i = 0; i < EACH; ++i) l[i].load(&slab.at[r + i * APART][k], true, 4);
        subtract_products(c, l, &s.u[k][q], STRIP);
    }
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        #pragma unroll
        for (int v = 0; v < PARTS; ++v) {
            *reinterpret_cast<float4*>(&slab.at[r + i * APART][q + 4 * LANES * v]) = c[i][v];
        }
    }
    __syncwarp();
}

// Solves for EDGE columns of L from `done` on; each lane has a row.
__device__ __forceinline__ void solve_edge(Slab& slab, const Dominant& s, int done) {
    float* row = &slab.at[threadIdx.x % WARP][done];
    float x[EDGE];
    #pragma unroll
    for (int q = 0; q < EDGE; q += 4) {
        const float4 v = *reinterpret_cast<const float4*>(row + q);
        x[q] = v.x, x[q + 1] = v.y, x[q + 2] = v.z, x[q + 3] = v.w;
    }
    #pragma unroll
    for (int j = 0; j < EDGE; ++j) {
        x[j] *= s.reciprocal[done + j];
        #pragma unroll
        for (int q = j / 4 * 4; q < EDGE; q += 4) {
            const float4 u = *reinterpret_cast<const float4*>(&s.u[done + j][done + q]);
            if (q > j) x[q] = fmaf(-x[j], u.x, x[q]);
            if (q + 1 > j) x[q + 1] = fmaf(-x[j], u.y, x[q + 1]);
            if (q + 2 > j) x[q + 2] = fmaf(-x[j], u.z, x[q + 2]);
            if (q + 3 > j) x[q + 3] = fmaf(-x[j], u.w, x[q + 3]);
        }
    }
    #pragma unroll
    for (int q = 0; q < EDGE; q += 4) {
        *reinterpret_cast<float4*>(row + q) = make_float4(x[q], x[q + 1], x[q + 2], x[q + 3]);
    }
    __syncwarp();
}

// Solves for the block's rows of L below the diagonal.
__device__ __forceinline__ void solve_rows(Dominant& s, float* a, Index lda, Index m) {
    constexpr int SLAB_WORDS = WARP * STRIP / 4;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Slab& slab = s.slab[warp];
    #pragma unroll 1
    for (int i = warp; i < ROWS * WARPS; i += ALL_WARPS) {
        const Index first = row_in_block(i * WARP);
        if (first < STRIP || first >= m) continue;
        #pragma unroll 8
        for (int e = lane; e < SLAB_WORDS; e += WARP) {
            const int r = e / (STRIP / 4), q = e % (STRIP / 4) * 4;
            float* to = &slab.at[r][q];
            copy_or_zero(to, a + (first + r) * lda + q, first + r < m);
        }
        wait_for_copies();
        __syncwarp();
        #pragma unroll 1
        for (int done = 0; done < STRIP; done += EDGE) {
            if (done) eliminate_before(slab, s, done);
            solve_edge(slab, s, done);
        }
        #pragma unroll 8
        for (int e = lane; e < SLAB_WORDS; e += WARP) {
            const int r = e / (STRIP / 4), q = e % (STRIP / 4) * 4;
            if (first + r < m) {
                *reinterpret_cast<float4*>(a + (first + r) * lda + q) =
                    *reinterpret_cast<const float4*>(&slab.at[r][q]);
            }
        }
        __syncwarp();
    }
}

// Factors a strip of STRIP columns with 16-byte aligned rows.  It is not inlined, and takes a copy of `team`, so that
// it takes no registers from the search.
__device__ __noinline__ Team factor_dominant(Dominant& s, Team team, float* a, Index lda, Index m) {
    Square square;
    load(square, a, lda);
    arrive_all(team);  // this block has read the rows of the diagonal
    factor_diagonal(s, square);
    __syncthreads();
    solve_rows(s, a, lda, m);
    wait_all(team);
    for (int r = blockIdx.x; r < STRIP; r += block_count()) {
        if (threadIdx.x < STRIP) a[r * lda + threadIdx.x] = s.u[r][threadIdx.x];
    }
    return team;
}
