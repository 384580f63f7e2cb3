// Cholesky factors of a stack of real positive definite matrices, each by many multiprocessors, and solves with them.
//
//   l      double[count][rows (rows + 1) / 2][64][64]: lower triangles of `count` matrices, in squares of 64 x 64.
//          Square (i, j), j <= i < rows = ceil(n / 64), of a matrix has the number i (i + 1) / 2 + j.  A square is
//          8 x 8 tiles (cholesky.cuh), row by row.  The matrices continue with the identity.
//
//   tcs_pack_squares  l = the lower triangles of symmetric matrices n x n.
//       a      T_A, entry (s, i, j) at s a_step + i a_row + j a_col (steps count entries).
//       lower  whether the lower triangle of a is read, or the upper one.
//       seen   double[5][count], zero before the launch: apart, largest, beyond, spoilt and zero of reading.cuh.  If it
//              is null, the triangle that is not read is not checked.
//       Grid count rows (rows + 1) / 2, block 256.
//   tcs_factor_square  step j: factors square (j, j) of each matrix, and updates other columns.
//       Columns are columns of squares here.  Column c gets the updates by columns 0 to c - 2 of L in the steps
//       j = c - 1, c - 1 - period, c - 1 - 2 period and so on: in step j those by columns j - period to j - 1 of L
//       (fewer at the start).  The update by column c - 1 of L follows in step c.  So a square is loaded once for
//       `period` columns, and the steps take similar times.
//       info   int[count]: becomes the number, from 1 on, of the first row of A whose pivot is zero or negative; or 0.
//              A subnormal pivot makes the rest of L NaN.
//       others the number of squares of a matrix that the step updates, besides square (j, j).
//       After the step, the diagonal tiles of square (j, j) are the inverses of those of L.
//       Grid count (1 + others): first one block for each square (j, j), then blocks for other squares; block 256;
//       RING bytes of shared memory.
//   tcs_finish_column  makes column j of squares of L, below square (j, j).
//       Grid count 2 (rows - 1 - j), block 128: half a square.
//   tcs_solve_squares  x := A^-1 x for each row of x.
//       x      double[count][columns][n].
//       Grid count ceil(columns / 8), block 288; 4096 (rows + 9) bytes of shared memory.
//
// Defines T_A (float or double), COMPLEX (0).
// Rounding: all sums in FP64; multiplications by the inverses of the diagonal tiles of L.

#include "batched/cholesky.cuh"
#include "batched/reading.cuh"
#include "common/async_copy.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;

constexpr int SIDE = 64, TILES = SIDE / TILE, ENTRIES = SIDE * SIDE;
static_assert(WARPS == TILES, "one warp for each row of tiles of a square");

__device__ __forceinline__ Index squares_of(Index rows) { return rows * (rows + 1) / 2; }

// The squares of one matrix.
struct Squares {
    double* at;

    // Row i of tiles of square (row, column).
    __device__ __forceinline__ double* operator()(int row, int column, int i) const {
        return at + (squares_of(row) + column) * ENTRIES + i * TILES * NUMBERS;
    }
};

// The part of a square that a warp sums: HIGH x WIDE tiles.
constexpr int HIGH = 4, WIDE = 2;

// The tiles of two squares whose product is summed, CHUNK columns of tiles at a time, in a ring of shared memory.
constexpr int CHUNK = 4, STAGES = 3, STAGE = 2 * TILES * CHUNK * NUMBERS, RING = STAGES * STAGE * sizeof(double);
static_assert(RING == 3 << 15, "the host knows this number");

struct Ring {
    double* at;
    const double *own, *other;  // the first squares of two rows

    // Starts to copy a chunk.  The numbers of the chunks run through all squares of a row, from left to right.
    __device__ __forceinline__ void copy(int chunk) const {
        const Index first = chunk * CHUNK / TILES * ENTRIES + chunk * CHUNK % TILES * NUMBERS;
        double* to = at + chunk % STAGES * STAGE;
        constexpr int PIECES = CHUNK * NUMBERS / 2;  // of a row, 16 bytes each
        #pragma unroll
        for (int e = threadIdx.x; e < 2 * TILES * PIECES; e += THREADS) {
            const int row = e / PIECES, piece = e % PIECES;
            const double* from = (row < TILES ? own : other) + first + row % TILES * TILES * NUMBERS;
            copy_16(to + 2 * e, from + 2 * piece, 16);
        }
    }
    // Row r of a chunk.
    __device__ __forceinline__ const double* own_row(int chunk, int r) const {
        return at + chunk % STAGES * STAGE + r * CHUNK * NUMBERS;
    }
    __device__ __forceinline__ const double* other_row(int chunk, int r) const { return own_row(chunk, TILES + r); }
};

struct Part {
    Pair at[HIGH][WIDE];

    __device__ __forceinline__ static int top() { return warp() / (TILES / WIDE) * HIGH; }
    __device__ __forceinline__ static int left() { return warp() % (TILES / WIDE) * WIDE; }

    __device__ __forceinline__ void load(const Squares& l, int row, int column) {
        #pragma unroll
        for (int r = 0; r < HIGH; ++r) {
            #pragma unroll
            for (int c = 0; c < WIDE; ++c) at[r][c] = tile_of(l(row, column, top() + r), left() + c);
        }
    }

    __device__ __forceinline__ void save(const Squares& l, int row, int column) const {
        #pragma unroll
        for (int r = 0; r < HIGH; ++r) {
            #pragma unroll
            for (int c = 0; c < WIDE; ++c) tile_of(l(row, column, top() + r), left() + c) = at[r][c];
        }
    }

    // Subtracts the products of the squares (row, k) and (column, k)^T for first <= k < last, where first < last.
    // All threads of the block call it.
    __device__ __forceinline__ void subtract_products(
        double* room, const Squares& l, int row, int column, int first, int last
    ) {
        const Ring ring = {room, l(row, 0, 0), l(column, 0, 0)};
        constexpr int EACH = TILES / CHUNK;  // chunks of a square
        #pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (EACH * first + s < EACH * last) ring.copy(EACH * first + s);
            commit_copies();
        }
        for (int chunk = EACH * first; chunk < EACH * last; ++chunk) {
            wait_for_groups<STAGES - 2>();
            __syncthreads();  // the copies of all threads have arrived, and all have used the chunk before
            if (chunk + STAGES - 1 < EACH * last) ring.copy(chunk + STAGES - 1);
            commit_copies();
            #pragma unroll
            for (int t = 0; t < CHUNK; ++t) {
                Pair u[HIGH], v[WIDE];
                #pragma unroll
                for (int r = 0; r < HIGH; ++r) u[r] = tile_of(ring.own_row(chunk, top() + r), t);
                #pragma unroll
                for (int c = 0; c < WIDE; ++c) v[c] = tile_of(ring.other_row(chunk, left() + c), t);
                #pragma unroll
                for (int e = 0; e < HIGH * WIDE; ++e) subtract_even(at[e / WIDE][e % WIDE], u[e / WIDE], v[e % WIDE]);
                #pragma unroll
                for (int e = 0; e < HIGH * WIDE; ++e) subtract_odd(at[e / WIDE][e % WIDE], u[e / WIDE], v[e % WIDE]);
            }
        }
        __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_pack_squares(
    double* l, const T_A* a, Index a_step, Index a_row, Index a_col, Index rows, Index n, Index lower, double* seen,
    Index count
) {
    __shared__ T_A mirrored[SIDE][SIDE + 1];
    __shared__ double of_warps[WARPS][SEEN];
    const Index slice = blockIdx.x / squares_of(rows);
    Index row = 0, column = blockIdx.x % squares_of(rows);
    for (; column > row; ++row) column -= row + 1;
    l += blockIdx.x * Index(ENTRIES), a += slice * a_step;
    const bool both = seen || !lower;
    if (both) {
        #pragma unroll
        for (int e = threadIdx.x; e < ENTRIES; e += THREADS) {
            const Index i = column * SIDE + e / SIDE, j = row * SIDE + e % SIDE;
            mirrored[e / SIDE][e % SIDE] = i < n && j < n ? a[i * a_row + j * a_col] : T_A(i == j);
        }
        __syncthreads();
    }
    Glance glance;
    #pragma unroll
    for (int e = threadIdx.x; e < ENTRIES; e += THREADS) {
        const int y = e / SIDE, x = e % SIDE;
        const Index i = row * SIDE + y, j = column * SIDE + x;
        const bool inside = i < n && j < n;
        const double own = inside ? double(a[i * a_row + j * a_col]) : double(i == j);
        const double other = both ? double(mirrored[x][y]) : own, v = lower ? own : other;
        if (inside && j < i) glance.note(v, lower ? other : own);
        else if (inside && j == i) glance.note_diagonal(v);
        l[(y / TILE * TILES + x / TILE) * NUMBERS + y % TILE * TILE + x % TILE] = v;
    }
    if (!seen) return;
    tell_warp(glance.seen(), of_warps[warp()]);
    __syncthreads();
    if (threadIdx.x >= SEEN) return;
    double v = 0;
    #pragma unroll
    for (int w = 0; w < WARPS; ++w) v = fmax(v, of_warps[w][threadIdx.x]);
    if (v > 0) raise(seen + threadIdx.x * count + slice, v);
}

// Updates the square that a block has in step j.
__device__ __forceinline__ void update_square(double* room, const Squares& l, int block, int rows, int j, int period) {
    // `below` is the number of squares of the column that these blocks update; another block has square (j, j).
    int column = j, below = rows - 1 - j;
    for (; block >= below; below = rows - column) {
        block -= below, column += column == j ? 1 : period;
    }
    const int row = rows - below + block, first = column == j ? j - 1 : max(0, j - period);
    Part part;
    part.load(l, row, column);
    part.subtract_products(room, l, row, column, first, j);
    part.save(l, row, column);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
tcs_factor_square(double* l, int* info, Index count, Index others, Index rows, Index j, Index period) {
    extern __shared__ __align__(16) double room[];
    __shared__ int broken;
    const bool factors = blockIdx.x < count;
    const Index slice = factors ? blockIdx.x : (blockIdx.x - count) / others;
    const Squares of = {l + slice * squares_of(rows) * ENTRIES};
    if (!factors) {
        update_square(room, of, int((blockIdx.x - count) % others), int(rows), int(j), int(period));
        return;
    }
    const Cholesky square = {room, nullptr, TILES, 0};
    Part part;
    part.load(of, j, j);
    if (j) part.subtract_products(room, of, j, j, j - 1, j);
    #pragma unroll
    for (int r = 0; r < HIGH; ++r) {
        #pragma unroll
        for (int c = 0; c < WIDE; ++c) {
            const int i = part.top() + r, k = part.left() + c;
            if (k <= i) tile_of(square.row(i), k) = part.at[r][c];
        }
    }
    __syncthreads();
    const int bad = square.factor<WARPS>(&broken);
    for (int k = 0; k <= warp(); ++k) tile_of(of(j, j, warp()), k) = tile_of(square.row(warp()), k);
    if (threadIdx.x == 0 && (j == 0 || bad > 0 && !info[slice])) info[slice] = bad > 0 ? int(j * SIDE) + bad : 0;
}

// v := v L^-T, or v L^-1 if UPPER, for a row v of tiles and a square L on the diagonal; row(c) is its row c of tiles.
// v has the tiles in the order of the solve: from the last to the first if UPPER.
template <bool UPPER, typename Row>
__device__ __forceinline__ void solve_tiles(Pair (&v)[TILES], Row row) {
    const auto tile = [](int q) { return UPPER ? TILES - 1 - q : q; };
    #pragma unroll
    for (int q = 0; q < TILES; ++q) {
        const double* own = row(tile(q));
        v[q] = product(v[q], UPPER ? turned(own, tile(q)) : tile_of(own, tile(q)));
        Pair of_l[TILES];
        #pragma unroll
        for (int r = q + 1; r < TILES; ++r) of_l[r] = UPPER ? turned(own, tile(r)) : tile_of(row(r), q);
        #pragma unroll
        for (int r = q + 1; r < TILES; ++r) subtract_even(v[r], v[q], of_l[r]);
        #pragma unroll
        for (int r = q + 1; r < TILES; ++r) subtract_odd(v[r], v[q], of_l[r]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS / 2)
tcs_finish_column(double* l, Index rows, Index j) {
    const Index halves = 2 * (rows - 1 - j), slice = blockIdx.x / halves, half = blockIdx.x % halves;
    const Squares of = {l + slice * squares_of(rows) * ENTRIES};
    double* own = of(j + 1 + half / 2, j, half % 2 * (TILES / 2) + warp());
    Pair mine[TILES];
    #pragma unroll
    for (int c = 0; c < TILES; ++c) mine[c] = tile_of(own, c);
    solve_tiles<false>(mine, [&](int c) { return of(j, j, c); });
    #pragma unroll
    for (int c = 0; c < TILES; ++c) tile_of(own, c) = mine[c];
}

// Lower triangles of tiles of two squares on the diagonal, for one warp, which copies one while it uses the other.
constexpr int TRIANGLE = TILES * (TILES + 1) / 2 * NUMBERS;

struct Diagonals {
    double* at;

    __device__ __forceinline__ const double* row(int step, int c) const {
        return at + step % 2 * TRIANGLE + c * (c + 1) / 2 * NUMBERS;
    }
    // Starts to copy square (j, j), for a step.
    __device__ __forceinline__ void copy(const Squares& l, int j, int step) const {
        #pragma unroll
        for (int c = 0; c < TILES; ++c) {
            for (int d = 0; d <= c; ++d) {
                copy_16(&tile_of(const_cast<double*>(row(step, c)), d), &tile_of(l(j, j, c), d), 16);
            }
        }
        commit_copies();
    }
};

// Solves with L, or L^T if UPPER, for 8 right-hand sides, the rows of x in shared memory.  The 64 columns of x that
// belong to a row of squares of L are called a square of x.
//
// Step s solves for square of_step(s) of x.  Meanwhile warp w < TILES works on tile w of the square of step s + 1: it
// subtracts the products of L with the squares of earlier steps.
template <bool UPPER>
__device__ __forceinline__ void solve_row(const Squares& l, double* x, const Diagonals& diagonals, int rows) {
    const auto of_step = [&](int s) { return UPPER ? rows - 1 - s : s; };
    const auto square = [&](int s) { return x + of_step(s) * TILES * NUMBERS; };
    const bool solves = warp() == TILES;
    if (solves) diagonals.copy(l, of_step(0), 0);
    for (int s = 0; s < rows; ++s) {
        const int j = of_step(s + 1);
        Pair now[TILES], next[TILES], sums[4] = {};
        const auto load = [&](Pair (&v)[TILES], int k) {
            const double* of = UPPER ? l(of_step(k), j, 0) : l(j, of_step(k), warp());
            #pragma unroll
            for (int t = 0; t < TILES; ++t) v[t] = UPPER ? turned(of, t * TILES + warp()) : tile_of(of, t);
        };
        const auto subtract = [&](int k) {
            #pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const Pair known = tile_of(square(k), t);
                subtract_even(sums[2 * t % 4], known, now[t]), subtract_odd(sums[2 * t % 4 + 1], known, now[t]);
            }
        };
        const bool sums_up = !solves && s + 1 < rows;
        if (sums_up) {
            sums[0] = tile_of(square(s + 1), warp());
            load(now, 0);
            #pragma unroll 2
            for (int k = 0; k < s; ++k) {
                load(next, k + 1);
                subtract(k);
                #pragma unroll
                for (int t = 0; t < TILES; ++t) now[t] = next[t];
            }
        } else if (solves) {
            if (s + 1 < rows) diagonals.copy(l, j, s + 1);
            else commit_copies();
            wait_for_groups<1>();
            __syncwarp();
            const auto tile = [](int q) { return UPPER ? TILES - 1 - q : q; };
            Pair solved[TILES];
            #pragma unroll
            for (int q = 0; q < TILES; ++q) solved[q] = tile_of(square(s), tile(q));
            solve_tiles<UPPER>(solved, [&](int c) { return diagonals.row(s, c); });
            #pragma unroll
            for (int q = 0; q < TILES; ++q) tile_of(square(s), tile(q)) = solved[q];
        }
        __syncthreads();
        if (sums_up) {
            subtract(s);
            tile_of(square(s + 1), warp()) = {
                (sums[0].x + sums[1].x) + (sums[2].x + sums[3].x), (sums[0].y + sums[1].y) + (sums[2].y + sums[3].y)
            };
        }
        __syncthreads();
    }
}

constexpr int SOLVE_THREADS = THREADS + WARP;

extern "C" __global__ void __launch_bounds__(SOLVE_THREADS, 2)
tcs_solve_squares(double* x, const double* l, Index rows, Index n, Index columns) {
    extern __shared__ __align__(16) double room[];
    const Index groups = (columns + TILE - 1) / TILE, slice = blockIdx.x / groups, first = blockIdx.x % groups * TILE;
    const Squares of = {const_cast<double*>(l) + slice * squares_of(rows) * ENTRIES};
    x += (slice * columns + first) * n;
    const int size = int(rows) * SIDE, some = int(min(Index(TILE), columns - first));
    const Diagonals diagonals = {room + TILE * size};
    for (int e = threadIdx.x; e < TILE * size; e += SOLVE_THREADS) {
        const int r = e / size, i = e % size;
        room[i / TILE * NUMBERS + r * TILE + i % TILE] = r < some && i < n ? x[r * n + i] : 0.0;
    }
    __syncthreads();
    solve_row<false>(of, room, diagonals, int(rows));
    solve_row<true>(of, room, diagonals, int(rows));
    for (int e = threadIdx.x; e < some * size; e += SOLVE_THREADS) {
        const int r = e / size, i = e % size;
        if (i < n) x[r * n + i] = room[i / TILE * NUMBERS + r * TILE + i % TILE];
    }
}
