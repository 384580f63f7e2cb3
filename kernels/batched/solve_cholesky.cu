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

// Goes through the tiles of the lower triangle row by row.  A lane has the addresses of entry (line, pair) of each tile
// and of its mirror image.
struct TileWalk {
    const T_A *at, *image;
    Index down, right;                      // from a tile to the one below it and to the one on its right
    int p = 0, q = 0;                       // the tile
    Index back = right, image_back = down;  // from `at` at the end of row p to its start, and the same for `image`

    __device__ __forceinline__ void advance(int tiles) {
        q += tiles, at += tiles * right, image += tiles * down;
        for (; q > p; ++p) {
            q -= p + 1;
            at += down - back, image += right - image_back;
            back += right, image_back += down;
        }
    }
};

// Notes an entry; above the diagonal, its mirror image takes its place.  `below` is its row minus its column.
__device__ __forceinline__ void note_or_replace(Glance& glance, double& given, double other, bool inside, int below) {
    if (below < 0) given = other;
    else if (inside && below) glance.note(given, other);
    else if (inside) glance.note_diagonal(given);
}

// Copies to tiles the lower triangle of the matrix as it is read; beyond row n it is the identity.
__device__ __forceinline__ Seen copy_matrix(const Factors& of, const Reading& read, int n) {
    constexpr int AHEAD = 4;  // tiles of a warp that are loaded at the same time
    const int line = lane() / 4, pair = lane() % 4 * 2, count = of.rows * (of.rows + 1) / 2;
    // Entry (i, j) with i >= j is read at i row + j col, and its mirror image at i col + j row.
    const bool reads_lower = read.band.below > 0;
    const Index row = reads_lower ? read.row : read.col, col = reads_lower ? read.col : read.row;
    TileWalk walk = {read.at + (line * row + pair * col), read.at + (line * col + pair * row), TILE * row, TILE * col};
    walk.advance(warp());
    Glance glance;
    for (int t = warp(); t < count; t += AHEAD * WARPS) {
        Pair given[AHEAD], other[AHEAD];
        int start[AHEAD], apart[AHEAD];  // the first row of a tile, and this row minus the first column
        #pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            start[u] = TILE * walk.p, apart[u] = start[u] - TILE * walk.q;
            const int i = start[u] + line, j = i - line - apart[u] + pair;
            if (start[u] + TILE <= n) {
                given[u] = {double(walk.at[0]), double(walk.at[col])};
                other[u] = {double(walk.image[0]), double(walk.image[row])};
            } else {
                given[u] = other[u] = {double(i == j), double(i == j + 1)};
                if (i < n && j < n) given[u].x = double(walk.at[0]), other[u].x = double(walk.image[0]);
                if (i < n && j + 1 < n) given[u].y = double(walk.at[col]), other[u].y = double(walk.image[row]);
            }
            walk.advance(WARPS);
        }
        #pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            if (t + u * WARPS >= count) break;
            if (apart[u] && start[u] + TILE <= n) {
                glance.note(given[u].x, other[u].x), glance.note(given[u].y, other[u].y);
            } else {
                const int i = start[u] + line, below = apart[u] + line - pair;  // row minus column
                note_or_replace(glance, given[u].x, other[u].x, i < n, below);
                note_or_replace(glance, given[u].y, other[u].y, i < n, below - 1);
            }
            tile_of(of.matrix, t + u * WARPS) = given[u];
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
        for (int c = warp(); c < 8 * tiles; c += WARPS) {
            for (int i = lane(); i < size; i += WARP) {
                Number v = {0.0, 0.0};
                if (i < n) v.re = c < k ? sides(i, c).re : random_probe(i, c - k);
                save(factors.side(i, c), v);
            }
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
