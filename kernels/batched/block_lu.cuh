// The LU of a matrix by a block of threads, and solutions with its factors.
//
// The matrix is divided into block columns of WIDTH columns.  A block column is copied to x in shared memory, updated
// by all block columns to its left, factored there, and written to w in global memory (left-looking).  It is factored
// in panels of PANEL columns, whose rows are in registers.  Updates are products of 8 x 8 tiles.
//
// Rows are not moved.  order[i] is the row of the matrix at position i; the first pivot row is at position 0.  Row r of
// x and row r of w belong to row r of the matrix.  In the finished row of w at position i:
//
//   the diagonal has the reciprocal of the pivot, and U is to the right of it;
//   L is to the left of it, without its unit diagonal;
//   but in the PANEL x PANEL block on the diagonal, the inverse of this block of L takes its place.
//
// The number of rows is a multiple of PANEL here; the caller appends an identity.
//
// The file that includes this one defines WIDTH (of a block column, a multiple of 8 that divides THREADS), THREADS,
// MOST (largest number of rows; a thread has MOST / THREADS of them, rounded up), and the macros of small_solve.cuh.
#pragma once

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"
#include "common/tile_product.cuh"

constexpr int PANEL = 8, WARPS = THREADS / WARP, EACH = (MOST + THREADS - 1) / THREADS;
constexpr int LD = WIDTH + 4;  // of x and of a block on the diagonal; few bank conflicts
static_assert(THREADS % WIDTH == 0, "a block copies whole rows of a block column");
constexpr unsigned KEY_ROWS = MOST <= 128 ? 128 : 1024;

// Starts to copy an entry from global to shared memory.
__device__ __forceinline__ void copy_entry(Entry* to, const Entry* from) {
#if __CUDA_ARCH__ >= 800
    copy_cached<sizeof(Entry)>(to, from);
#else
    *to = *from;
#endif
}

// The lane's two entries of an 8 x 8 tile: row lane / 4, columns 2 (lane % 4) and the next.
struct Tile {
    Number at[2] = {};

    // Subtracts the product of 8 x 4 and 4 x 8 entries, as in add_tile_product.
    __device__ __forceinline__ void subtract(Number a, Number b) {
        add_tile_product(at[0].re, at[1].re, -a.re, b.re);
        if (COMPLEX) {
            add_tile_product(at[0].re, at[1].re, a.im, b.im);
            add_tile_product(at[0].im, at[1].im, -a.re, b.im);
            add_tile_product(at[0].im, at[1].im, -a.im, b.re);
        }
    }
    __device__ __forceinline__ void read(const Entry* from) { at[0] = load(from[0]), at[1] = load(from[1]); }
    __device__ __forceinline__ void write(Entry* to) const { save(to[0], at[0]), save(to[1], at[1]); }
};

// Rows in memory, by their positions.
struct Rows {
    const Entry* first;
    const int* order;
    Index pitch;

    __device__ __forceinline__ const Entry* operator()(int position) const { return first + order[position] * pitch; }
};

struct BlockLU {
    Entry *x, *diagonal;                 // shared memory: rows of a block column; a block on the diagonal
    Entry* candidates;                   // [2][WARPS][PANEL]: rows that may be the pivot row
    unsigned* keys;                      // [2][WARPS]: their keys
    int* order;
    Entry* w;                            // global memory, `size` entries a row
    int size;
    Index kind;
    int broken;                          // the first step, from 1 on, whose pivot is not allowed; or 0

    __device__ __forceinline__ int lane() const { return threadIdx.x % WARP; }
    __device__ __forceinline__ int warp() const { return threadIdx.x / WARP; }
    __device__ __forceinline__ Entry* row_of_x(int position) const { return x + order[position] * LD; }
    __device__ __forceinline__ Entry& side(int i, int c) const { return x[i * LD + c]; }
    __device__ __forceinline__ Entry& answer(int i, int c) const { return row_of_x(i)[c]; }
    __device__ __forceinline__ static constexpr int columns() { return WIDTH; }
    __device__ __forceinline__ Entry* row_of_w(int position) const { return w + Index(order[position]) * size; }

    // ---- a panel

    // Chooses the pivot row of step K of a panel, and returns its position; `pivots` becomes this row, from column K of
    // the panel on.  `own` are the rows of this thread, at `positions`.
    template <int K>
    __device__ __forceinline__ int pivot(
        const Number (&own)[EACH][PANEL], const int (&positions)[EACH], const bool (&is_left)[EACH],
        Number (&pivots)[PANEL]
    ) const {
        unsigned of_row[EACH], key = 0;
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            const unsigned low = KEY_ROWS - 1 - positions[r];
            of_row[r] = is_left[r] ? key_of<KEY_ROWS>(own[r][K], low) + KEY_ROWS : 0;
            key = max(key, of_row[r]);
        }
        const unsigned of_warp = largest_of_warp(int(key));
        Entry* place = candidates + (K % 2 * WARPS + warp()) * PANEL;
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            if (of_row[r] != of_warp || !of_warp) continue;
            #pragma unroll
            for (int c = K; c < PANEL; ++c) save(place[c], own[r][c]);
        }
        if (lane() == 0) keys[K % 2 * WARPS + warp()] = of_warp;
        __syncthreads();
        const unsigned seen = keys[K % 2 * WARPS + (lane() < WARPS ? lane() : 0)];
        const unsigned best = largest_of_warp(int(seen));
        const int from = __ffs(__ballot_sync(ALL_LANES, seen == best)) - 1;
        #pragma unroll
        for (int c = K; c < PANEL; ++c) pivots[c] = load(candidates[(K % 2 * WARPS + from) * PANEL + c]);
        return KEY_ROWS - 1 - int(best % KEY_ROWS);
    }

    template <int K>
    __device__ __forceinline__ void eliminate(
        int p, Number (&own)[EACH][PANEL], int (&positions)[EACH], bool (&is_left)[EACH]
    ) {
        if constexpr (K < PANEL) {
            Number pivots[PANEL];
            const int chosen = pivot<K>(own, positions, is_left, pivots);
            const Number inverse = inverse_of(pivots[K]);
            if (!broken && is_broken(pivots[K], kind)) broken = p + K + 1;
            #pragma unroll
            for (int r = 0; r < EACH; ++r) {
                if (positions[r] == chosen) {
                    positions[r] = p + K, is_left[r] = false, own[r][K] = inverse;
                    continue;
                }
                if (positions[r] == p + K) positions[r] = chosen;
                const Number l = is_left[r] ? times(own[r][K], inverse) : Number{0.0, 0.0};
                if (is_left[r]) own[r][K] = l;
                #pragma unroll
                for (int c = K + 1; c < PANEL; ++c) own[r][c] = less(own[r][c], l, pivots[c]);
            }
            eliminate<K + 1>(p, own, positions, is_left);
        }
    }

    // As `eliminate`, but the row at position p + K is the pivot row of step K, so that no warp waits for another one.
    // Each warp also eliminates the block on the diagonal: row i of it is `block` in lane i.
    template <int K>
    __device__ __forceinline__ void eliminate_in_order(
        int p, Number (&own)[EACH][PANEL], const bool (&is_row)[EACH], Number (&block)[PANEL]
    ) {
        if constexpr (K < PANEL) {
            const Number pivot = of_lane(block[K], K), inverse = inverse_of(pivot);
            if (!broken && is_broken(pivot, kind)) broken = p + K + 1;
            Number l[EACH];
            bool is_pivot[EACH];
            #pragma unroll
            for (int r = 0; r < EACH; ++r) {
                const int after = int(threadIdx.x) + THREADS * r - K;  // positions after that of the pivot row
                is_pivot[r] = after == 0, l[r] = {0.0, 0.0};
                if (is_row[r] && after > 0) own[r][K] = l[r] = times(own[r][K], inverse);
                if (is_pivot[r]) own[r][K] = inverse;
            }
            const Number of_block = times(block[K], inverse);
            #pragma unroll
            for (int c = K + 1; c < PANEL; ++c) {
                const Number u = of_lane(block[c], K);
                block[c] = less(block[c], of_block, u);  // changes finished rows, too, which are not read again
                #pragma unroll
                for (int r = 0; r < EACH; ++r) if (!is_pivot[r]) own[r][c] = less(own[r][c], l[r], u);
            }
            eliminate_in_order<K + 1>(p, own, is_row, block);
        }
    }

    // Factors the panel at position p, in the columns of x from `column` on.
    __device__ __forceinline__ void factor_panel(int p, int column) {
        Number own[EACH][PANEL];
        int positions[EACH], rows[EACH];
        bool is_left[EACH];
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            positions[r] = p + threadIdx.x + THREADS * r;
            is_left[r] = positions[r] < size;
            rows[r] = order[is_left[r] ? positions[r] : 0];
            if (!is_left[r]) positions[r] = KEY_ROWS;
            #pragma unroll
            for (int c = 0; c < PANEL; ++c) {
                own[r][c] = is_left[r] ? load(x[rows[r] * LD + column + c]) : Number{0.0, 0.0};
            }
        }
        if (kind == GENERAL) {
            eliminate<0>(p, own, positions, is_left);
        } else {
            Number block[PANEL];
            #pragma unroll
            for (int c = 0; c < PANEL; ++c) block[c] = load(row_of_x(p + lane() % PANEL)[column + c]);
            __syncthreads();  // all have read the block before it is written
            eliminate_in_order<0>(p, own, is_left, block);
        }
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            if (positions[r] >= size) continue;
            order[positions[r]] = rows[r];
            #pragma unroll
            for (int c = 0; c < PANEL; ++c) save(x[rows[r] * LD + column + c], own[r][c]);
        }
        __syncthreads();
    }

    // Solves with the block of L of the panel at position p, which is in x from `column` on: for the later columns of
    // x, in place, and for the identity.  The second solution, the inverse of the block, then takes the block's place.
    __device__ __forceinline__ void solve_panel(int p, int column, int width) const {
        const int c = column + int(threadIdx.x), of_identity = threadIdx.x;
        const bool inverts = of_identity < PANEL, solves = c < width;
        Number u[PANEL];
        if (solves) {
            #pragma unroll
            for (int k = 0; k < PANEL; ++k) {
                const Entry* row = row_of_x(p + k);
                u[k] = inverts ? Number{double(k == of_identity), 0.0} : load(row[c]);
                #pragma unroll
                for (int m = 0; m < k; ++m) u[k] = less(u[k], load(row[column + m]), u[m]);
            }
            #pragma unroll
            for (int k = 1; k < PANEL; ++k) if (!inverts) save(row_of_x(p + k)[c], u[k]);
        }
        __syncthreads();
        if (inverts) {  // no later step of this block column reads the block of L
            #pragma unroll
            for (int k = 1; k < PANEL; ++k) if (k > of_identity) save(row_of_x(p + k)[c], u[k]);
        }
    }

    // ---- updates

    // Subtracts A X from tiles of x; rows and columns are counted in tiles.  X are the rows of x at the `depth`
    // positions from `from` on, and a_rows(i)[k] is the entry of A for the row at position i and the row of X at
    // position k.  A warp takes two by two tiles.  If the number of rows or columns of tiles is odd, it computes the
    // last one twice.
    __device__ __forceinline__ void update(
        const Rows& a_rows, int first_row, int last_row, int first_column, int last_column, int from, int depth
    ) const {
        const int pair = 2 * (lane() % 4), line = lane() / 4;
        for (int row = first_row + 2 * warp(); row < last_row; row += 2 * WARPS) {
            const bool two_rows = row + 1 < last_row;
            const Entry* factor[2];
            Entry* place[2];
            #pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int position = 8 * (row + (two_rows ? r : 0)) + line;
                factor[r] = a_rows(position) + from + pair, place[r] = row_of_x(position) + pair;
            }
            for (int column = first_column; column < last_column; column += 2) {
                const bool two_columns = column + 1 < last_column;
                const int columns[2] = {8 * column, two_columns ? 8 * column + 8 : 8 * column};
                Tile c[2][2];
                #pragma unroll
                for (int r = 0; r < 2; ++r) {
                    #pragma unroll
                    for (int s = 0; s < 2; ++s) c[r][s].read(place[r] + columns[s]);
                }
                #pragma unroll (COMPLEX ? 1 : 4)
                for (int k = 0; k < depth; k += 8) {
                    #pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const Entry* solved = row_of_x(from + k + pair + h) + line;
                        const Number a[2] = {load(factor[0][k + h]), load(factor[1][k + h])};
                        const Number b[2] = {load(solved[columns[0]]), load(solved[columns[1]])};
                        #pragma unroll
                        for (int r = 0; r < 2; ++r) {
                            #pragma unroll
                            for (int s = 0; s < 2; ++s) c[r][s].subtract(a[r], b[s]);
                        }
                    }
                }
                __syncwarp();  // tiles that are computed twice are read by all before they are written
                #pragma unroll
                for (int r = 0; r < 2; ++r) {
                    #pragma unroll
                    for (int s = 0; s < 2; ++s) {
                        if ((r == 0 || two_rows) && (s == 0 || two_columns)) c[r][s].write(place[r] + columns[s]);
                    }
                }
            }
        }
        __syncthreads();
    }

    // Calls of_row(i) for this thread's part of the rows 0 ... count - 1; the thread takes column own_column().
    template <typename OfRow>
    __device__ __forceinline__ static void for_rows(int count, OfRow of_row) {
        #pragma unroll 4
        for (int i = int(threadIdx.x) / WIDTH; i < count; i += THREADS / WIDTH) of_row(i);
    }
    __device__ __forceinline__ static int own_column() { return threadIdx.x % WIDTH; }

    // Copies the block of w on the diagonal at position p, with `width` columns, to shared memory.
    __device__ __forceinline__ void stage_diagonal(int p, int width) const {
        const int j = own_column();
        if (j < width) for_rows(width, [&](int i) { copy_entry(diagonal + i * LD + j, row_of_w(p + i) + p + j); });
        wait_for_copies();
        __syncthreads();
    }

    // X_t := X_t - D_ts X_s, where D is the block on the diagonal at position p, in tiles, and X_s is tile s of the
    // rows of x from p on, in the columns of tile `column`.
    __device__ __forceinline__ void update_tile(int p, int t, int s, int column) const {
        const int pair = 2 * (lane() % 4), line = lane() / 4;
        Entry* place = row_of_x(p + 8 * t + line) + 8 * column + pair;
        Tile c;
        c.read(place);
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Entry* factor = row_of_x(p + 8 * s + pair + h) + 8 * column + line;
            c.subtract(load(diagonal[(8 * t + line) * LD + 8 * s + pair + h]), load(*factor));
        }
        c.write(place);
    }

    // Solves with the block of L on the diagonal at position p, for tile `column` of x, by one warp.
    __device__ __forceinline__ void solve_lower(int p, int width, int column) const {
        const int pair = 2 * (lane() % 4), line = lane() / 4;
        for (int s = 0; s < width / 8; ++s) {
            Tile product;
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int i = line, j = pair + h;
                const Number inverse = load(diagonal[(8 * s + i) * LD + 8 * s + j]);
                const Number b = load(row_of_x(p + 8 * s + j)[8 * column + line]);
                const Number a = i == j ? Number{1.0, 0.0} : j < i ? inverse : Number{0.0, 0.0};
                product.subtract({-a.re, -a.im}, b);
            }
            __syncwarp();
            product.write(row_of_x(p + 8 * s + line) + 8 * column + pair);
            __syncwarp();
            for (int t = s + 1; t < width / 8; ++t) update_tile(p, t, s, column);
            __syncwarp();
        }
    }

    // Solves with the block of U on the diagonal at position p, for tile `column` of x, by one warp.
    __device__ __forceinline__ void solve_upper(int p, int width, int column) const {
        for (int s = width / 8 - 1; s >= 0; --s) {
            if (lane() < 8) {
                const Entry* block = diagonal + 8 * s * LD + 8 * s;
                Number v[PANEL];
                #pragma unroll
                for (int k = 0; k < PANEL; ++k) v[k] = load(row_of_x(p + 8 * s + k)[8 * column + lane()]);
                #pragma unroll
                for (int k = PANEL - 1; k >= 0; --k) {
                    v[k] = times(v[k], load(block[k * LD + k]));
                    #pragma unroll
                    for (int m = 0; m < k; ++m) v[m] = less(v[m], load(block[m * LD + k]), v[k]);
                }
                #pragma unroll
                for (int k = 0; k < PANEL; ++k) save(row_of_x(p + 8 * s + k)[8 * column + lane()], v[k]);
            }
            __syncwarp();
            for (int t = 0; t < s; ++t) update_tile(p, t, s, column);
            __syncwarp();
        }
    }

    // ---- block columns

    // Updates x with the finished block column at position p; x has `tiles` tiles of columns.
    __device__ __forceinline__ void forward(int p, int tiles) const {
        const int width = min(WIDTH, size - p), next = p + width;
        stage_diagonal(p, width);
        for (int column = warp(); column < tiles; column += WARPS) solve_lower(p, width, column);
        __syncthreads();
        if (next < size) update({w, order, size}, next / 8, size / 8, 0, tiles, p, width);
    }

    // Factors the block column at position p, which is in x and has been updated, and writes it to w.
    __device__ __forceinline__ void factor(int p) {
        const int width = min(WIDTH, size - p);
        for (int column = 0; column < width; column += PANEL) {
            const int here = p + column, next = column + PANEL;
            factor_panel(here, column);
            solve_panel(here, column, width);
            if (next < width) update({x - p, order, LD}, here / 8 + 1, size / 8, next / 8, width / 8, here, PANEL);
        }
        __syncthreads();
        const int j = own_column();
        if (j < width) for_rows(size, [&](int i) { w[Index(i) * size + p + j] = x[i * LD + j]; });
        __syncthreads();
    }

    // x := A^-1 x, with `tiles` tiles of columns; x_i is then in the row of position i.
    __device__ __forceinline__ void solve(int tiles) const {
        for (int p = 0; p < size; p += WIDTH) forward(p, tiles);
        for (int p = (size - 1) / WIDTH * WIDTH; p >= 0; p -= WIDTH) {
            const int width = min(WIDTH, size - p);
            stage_diagonal(p, width);
            for (int column = warp(); column < tiles; column += WARPS) solve_upper(p, width, column);
            __syncthreads();
            if (p) update({w, order, size}, 0, p / 8, 0, tiles, p, width);
        }
    }
};
