// Solves and verifies real positive definite systems in one launch, by Cholesky factors in shared memory.  A block
// takes one matrix after the other; small_solve.cuh describes most arguments.
//
//   b_col    right-hand sides: entry (s, i, c) of b is at s b_step + i b_row + c b_col.
//   columns  k, the number of right-hand sides of a system.
//   x        [count][n][k].
//   board    its last rows are k rows max |b - A x|, then k rows max |x|.
//
// cholesky.cuh describes the factors.  Right-hand sides and random vectors are further rows below the matrix.
//
// Grid: any number of blocks, of THREADS threads.  Shared memory: see `Room`.
// Defines T_A, COMPLEX (0), BANDED (1), THREADS, RESIDENT (blocks on a multiprocessor).

constexpr int WARPS = THREADS / 32;

#include "batched/cholesky.cuh"
#include "batched/judge_block.cuh"

static_assert(!COMPLEX && BANDED, "real matrices, of which one triangle is read");

// Shared memory of a matrix of `rows` rows of tiles, with `below` rows of tiles for right-hand sides.
struct Room {
    double *matrix, *sides;
    Scratch scratch;
    int* broken;

    __device__ __forceinline__ Room(char* at, int rows, int below) {
        matrix = reinterpret_cast<double*>(at), sides = matrix + rows * (rows + 1) / 2 * NUMBERS;
        scratch.answer = reinterpret_cast<Entry*>(sides + below * rows * NUMBERS);
        scratch.rests = scratch.answer[rows * TILE].part, scratch.sizes = scratch.rests + TILE * below;
        broken = reinterpret_cast<int*>(scratch.sizes + TILE * below);
    }
};

// Factors, and what judge_block.cuh needs of them.
struct Factors : Cholesky {
    int size;    // rows of A with the appended identity
    int broken;  // the first step, from 1 on, whose pivot is not positive; or 0

    // Right-hand sides are stored as rows, so entries before and after a solve are in the same place.
    __device__ __forceinline__ Entry& side(int i, int c) const {
        double* tile = sides + (c / TILE * rows + i / TILE) * NUMBERS;
        return *reinterpret_cast<Entry*>(tile + c % TILE * TILE + i % TILE);
    }
    __device__ __forceinline__ Entry& answer(int i, int c) const { return side(i, c); }
    __device__ __forceinline__ int columns() const { return TILE * below; }

    // Solves with the transpose of L.
    __device__ __forceinline__ void solve_upper(int tiles) const {
        for (int p = rows - 1; p >= 0; --p) {
            double* last = row(p);
            const Pair inverse = turned(last, p);
            for (int s = 0; s < tiles; ++s) {
                double* own = row(rows + s);
                const Pair solved = product(tile_of(own, p), inverse);
                #pragma unroll 2
                for (int j = warp(); j < p; j += WARPS) subtract_product(tile_of(own, j), solved, turned(last, j));
                __syncthreads();
                if (warp() == 0) tile_of(own, p) = solved;
            }
        }
        __syncthreads();
    }

    // Solves for 8 `tiles` columns.
    __device__ __forceinline__ void solve(int tiles) const {
        for (int p = 0; p < rows; ++p) {
            const Pair inverse = tile_of(row(p), p);
            for (int s = 0; s < tiles; ++s) {
                double* own = row(rows + s);
                const Pair solved = product(tile_of(own, p), inverse);
                for (int j = p + 1 + warp(); j < rows; j += WARPS) {
                    subtract_product(tile_of(own, j), solved, tile_of(row(j), p));
                }
                __syncthreads();
                if (warp() == 0) tile_of(own, p) = solved;
            }
        }
        __syncthreads();
        solve_upper(tiles);
    }
};

// Copies to tiles the lower triangle of the matrix as it is read; beyond row n it is the identity.
__device__ __forceinline__ Seen copy_matrix(const Factors& of, const Reading& read, int n) {
    constexpr int AHEAD = WARPS > 4 ? 4 : 2;  // tiles of a warp that are loaded at the same time
    const int line = lane() / 4, pair = lane() % 4 * 2, count = of.rows * (of.rows + 1) / 2;
    // Entry (i, j) with i >= j is read at i row + j col, and its mirror image at i col + j row.
    const bool reads_lower = read.band.below > 0;
    const Index row = reads_lower ? read.row : read.col, col = reads_lower ? read.col : read.row;
    Glance glance;
    int p = 0, q = warp();  // of the next tile
    for (int t = warp(); t < count; t += AHEAD * WARPS) {
        double given[AHEAD][2], other[AHEAD][2];
        int first[AHEAD], second[AHEAD];
        #pragma unroll
        for (int u = 0; u < AHEAD; ++u, q += WARPS) {
            for (; q > p; ++p) q -= p + 1;
            const int i = TILE * p + line, j = TILE * q + pair;
            first[u] = i, second[u] = j;
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const bool inside = i < n && j + h < n;
                given[u][h] = inside ? double(read.at[i * row + (j + h) * col]) : double(i == j + h);
                other[u][h] = inside ? double(read.at[i * col + (j + h) * row]) : double(i == j + h);
            }
        }
        #pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (t + u * WARPS >= count) break;
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int i = first[u], j = second[u] + h;
                if (i < j) given[u][h] = other[u][h];  // on the other side of the diagonal of the matrix
                else if (i < n) glance.note(given[u][h], other[u][h], i == j);
            }
            tile_of(of.row(first[u] / TILE), second[u] / TILE) = {given[u][0], given[u][1]};
        }
    }
    return glance.seen();
}

// The largest sum of |a_ij| of a row.
__device__ __forceinline__ double norm_of(const Factors& of, int n) {
    double norm = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const int p = i / TILE, line = i % TILE;
        const double* own = of.row(p) + line * TILE;
        double sum = 0;
        for (int q = 0; q <= p; ++q) {
            #pragma unroll
            for (int c = 0; c < TILE; ++c) sum += fabs(own[q * NUMBERS + (c + line) % TILE]);  // few bank conflicts
        }
        for (int q = p + 1; q < of.rows; ++q) {
            const double* other = of.row(q) + p * NUMBERS + line;
            #pragma unroll
            for (int r = 0; r < TILE; ++r) sum += fabs(other[r * TILE]);
        }
        norm = larger(norm, sum);
    }
    return over_block<WARPS>(norm, larger);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_cholesky(
    T_A* x, double* board, char* doubtful, int* doubt, const T_A* a, Index a_step, Index a_row, Index a_col,
    const T_A* b, Index b_step, Index b_row, Index b_col, Index below, Index above, Index mirror, Index kind,
    double bound, double near, double least, double safe, double agrees, Index count, Index unknowns, Index columns
) {
    extern __shared__ __align__(16) char memory[];
    const int n = int(unknowns), k = int(columns), rows = (n + TILE - 1) / TILE, tiles = (k + PROBES + 7) / 8;
    const int size = rows * TILE, probes = 8 * tiles - k;  // the random vectors fill the last tile
    const Room room(memory, rows, tiles);

    for (Index slice = blockIdx.x; slice < count; slice += gridDim.x) {
        const Reading read = {a + slice * a_step, a_row, a_col, {below, above, mirror}};
        const Sides sides = {b + slice * b_step, b_row, b_col};
        Factors factors = {{room.matrix, room.sides, rows, tiles}, size, 0};
        Seen seen = copy_matrix(factors, read, n);
        for (int e = threadIdx.x; e < size * 8 * tiles; e += THREADS) {
            const int i = e % size, c = e / size;
            Number v = {0.0, 0.0};
            if (i < n) v.re = c < k ? sides(i, c).re : random_probe(i, c - k);
            save(factors.side(i, c), v);
        }
        __syncthreads();
        const double inf = norm_of(factors, n);
        factors.broken = max(0, factors.factor<WARPS>(room.broken));  // x is NaN if this number is negative
        factors.solve_upper(tiles);
        const Limits limits = {kind, bound, least, safe, agrees};
        judge_answers(
            factors, read, sides, x + slice * n * k, room.scratch, {n, k, probes}, limits, near,
            {board, doubtful, doubt, count}, slice, inf, inf, seen
        );
    }
}
