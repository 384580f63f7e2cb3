// Solves and verifies real positive definite systems in one launch, by Cholesky factors in shared memory.  A block
// takes one matrix after the other; small_solve.cuh describes most arguments.
//
//   b_col, k  right-hand sides: entry (s, i, c) of b is at s b_step + i b_row + c b_col.
//   x        [count][n][k].
//   board    its last rows are k rows max |b - A x|, then k rows max |x|.
//
// The lower triangle is kept in row-major tiles of 8 x 8.  Lane l of a warp has the numbers 2 l and 2 l + 1 of a tile.
// A product A B^T takes two instructions: one sums over the even columns of both tiles, the other over the odd ones.
// For both, a lane needs exactly its two numbers of A and of B, and gets its two numbers of the sum.  So a warp loads a
// tile by 16 bytes a lane, without bank conflicts.  Right-hand sides and random vectors are rows of tiles below the
// matrix; the factorization solves with L for them.
//
// Warp w has the rows of tiles w, w + WARPS, ...  Step p makes column p of L.  There is one barrier for each step:
// before it, the warp with row p has made the inverse of the diagonal tile of L, which takes the place of the tile.
//
// Grid: any number of blocks, of THREADS threads.  Shared memory: see `Room`.
// Defines T_A, COMPLEX (0), BANDED (1), THREADS, RESIDENT (blocks on a multiprocessor).

#include "common/tile_product.cuh"

constexpr int WARPS = THREADS / 32;

#include "batched/judge_block.cuh"

static_assert(!COMPLEX && BANDED, "real matrices, of which one triangle is read");

constexpr int TILE = 8, NUMBERS = TILE * TILE;

using Pair = double2;  // the two entries of a tile that a lane has

// c - u v^T for tiles.
__device__ __forceinline__ void subtract_product(Pair& c, Pair u, Pair v) {
    add_tile_product(c.x, c.y, -u.x, v.x), add_tile_product(c.x, c.y, -u.y, v.y);
}

// u v^T for tiles.
__device__ __forceinline__ Pair product(Pair u, Pair v) {
    Pair c = {0.0, 0.0};
    add_tile_product(c.x, c.y, u.x, v.x), add_tile_product(c.x, c.y, u.y, v.y);
    return c;
}

// 1 / sqrt(v) to about the last bits; not finite if v <= 0 or v is subnormal.
__device__ __forceinline__ double inverse_root(double v) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
    const double rest = fma(-v * y, y, 1.0);
    return fma(rest * y, fma(0.375, rest, 0.5), y);  // leaves a relative error of the order of rest^3
}

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

struct Cholesky {
    double *matrix, *sides;
    int rows, below, size;  // rows of tiles of A, and of right-hand sides; rows of A with the appended identity
    int broken;  // the first step, from 1 on, whose pivot is not positive; or 0

    __device__ __forceinline__ static int warp() { return threadIdx.x / WARP; }
    __device__ __forceinline__ static int lane() { return threadIdx.x % WARP; }
    // The first number of row i of tiles.
    __device__ __forceinline__ double* row(int i) const {
        return i < rows ? matrix + i * (i + 1) / 2 * NUMBERS : sides + (i - rows) * rows * NUMBERS;
    }
    __device__ __forceinline__ Pair& at(double* row, int j) const {
        return reinterpret_cast<Pair*>(row + j * NUMBERS)[lane()];
    }
    // The lane's two numbers of the transpose of a tile.  With it as its second factor, `product` gives A B, not A B^T.
    __device__ __forceinline__ Pair turned(const double* row, int j) const {
        const double* v = row + j * NUMBERS + lane() % 4 * 2 * TILE + lane() / 4;
        return {v[0], v[TILE]};
    }

    // Right-hand sides are stored as rows, so entries before and after a solve are in the same place.
    __device__ __forceinline__ Entry& side(int i, int c) const {
        double* tile = sides + (c / TILE * rows + i / TILE) * NUMBERS;
        return *reinterpret_cast<Entry*>(tile + c % TILE * TILE + i % TILE);
    }
    __device__ __forceinline__ Entry& answer(int i, int c) const { return side(i, c); }
    __device__ __forceinline__ int columns() const { return TILE * below; }

    // Replaces tile p of the diagonal by the inverse of its Cholesky factor.  Every lane computes the factor, and lane
    // c column c of the inverse.  Returns the first step, from 1 on, whose pivot is not positive; or 0.
    __device__ __forceinline__ int invert_diagonal(int p) const {
        double* tile = row(p) + p * NUMBERS;
        double l[TILE][TILE], v[TILE];
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < TILE; ++i) {
            #pragma unroll
            for (int j = 0; j <= i; ++j) l[i][j] = tile[i * TILE + j];
        }
        int bad = 0;
        #pragma unroll
        for (int k = 0; k < TILE; ++k) {
            if (!bad && !(l[k][k] > 0)) bad = p * TILE + k + 1;
            const double inverse = inverse_root(l[k][k]);
            v[k] = k == lane() ? 1.0 : 0.0;
            #pragma unroll
            for (int j = 0; j < k; ++j) v[k] = fma(-l[k][j], v[j], v[k]);
            v[k] *= inverse;
            #pragma unroll
            for (int i = k + 1; i < TILE; ++i) l[i][k] *= inverse;
            #pragma unroll
            for (int i = k + 1; i < TILE; ++i) {
                #pragma unroll
                for (int j = k + 1; j <= i; ++j) l[i][j] = fma(-l[i][k], l[j][k], l[i][j]);
            }
        }
        __syncwarp();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) if (lane() < TILE) tile[k * TILE + lane()] = v[k];
        __syncwarp();
        return bad;
    }

    // Updates tile (i, p), i > p, by the columns 0 to p - 2 of tiles of L.  Column p - 1 is not complete yet;
    // `make_tile` subtracts its product.
    __device__ __forceinline__ void update(int i, int p) const {
        constexpr int CHAINS = 4;  // sums that do not wait for each other
        double *own = row(i), *other = row(p);
        Pair sums[CHAINS] = {};
        sums[0] = at(own, p);
        #pragma unroll 2
        for (int k = 0; k + 1 < p; k += CHAINS / 2) {
            #pragma unroll
            for (int c = 0; c < CHAINS; c += 2) {
                if (c && k + 2 >= p) continue;
                const Pair u = at(own, k + c / 2), v = at(other, k + c / 2);
                add_tile_product(sums[c].x, sums[c].y, -u.x, v.x);
                add_tile_product(sums[c + 1].x, sums[c + 1].y, -u.y, v.y);
            }
        }
        at(own, p) = {
            (sums[0].x + sums[1].x) + (sums[2].x + sums[3].x), (sums[0].y + sums[1].y) + (sums[2].y + sums[3].y)
        };
    }

    // Makes tile (i, p) of L: subtracts the product with column p - 1, and multiplies by the inverse of the diagonal
    // tile.  Then updates the diagonal tile of row i.
    __device__ __forceinline__ void make_tile(int i, int p) const {
        double* own = row(i);
        Pair tile = at(own, p);
        if (p) subtract_product(tile, at(own, p - 1), at(row(p), p - 1));
        tile = product(tile, at(row(p), p));
        at(own, p) = tile;
        if (i < rows) subtract_product(at(own, i), tile, tile);
    }

    // Factors the matrix; the rows of right-hand sides become solutions with L.
    __device__ __forceinline__ void factor(int* first_broken) {
        const int all = rows + below;
        if (threadIdx.x == 0) *first_broken = 0;
        __syncthreads();
        const auto note = [&](int bad) { if (bad && lane() == 0 && !*first_broken) *first_broken = bad; };
        if (warp() == 0) note(invert_diagonal(0));
        for (int p = 0; p < rows; ++p) {
            __syncthreads();
            const int next = p + 1, mine = next + (warp() - next % WARPS + WARPS) % WARPS;  // the first own row
            for (int i = mine; i < all; i += WARPS) {
                make_tile(i, p);
                if (i == next && i < rows) note(invert_diagonal(i));
            }
            if (next == rows) break;
            for (int i = mine == next ? mine + WARPS : mine; i < all; i += WARPS) update(i, next);
        }
        __syncthreads();
        broken = *first_broken;
    }

    // Solves with the transpose of L.
    __device__ __forceinline__ void solve_upper(int tiles) const {
        for (int p = rows - 1; p >= 0; --p) {
            double* last = row(p);
            const Pair inverse = turned(last, p);
            for (int s = 0; s < tiles; ++s) {
                double* own = row(rows + s);
                const Pair solved = product(at(own, p), inverse);
                #pragma unroll 2
                for (int j = warp(); j < p; j += WARPS) subtract_product(at(own, j), solved, turned(last, j));
                __syncthreads();
                if (warp() == 0) at(own, p) = solved;
            }
        }
        __syncthreads();
    }

    // Solves for 8 `tiles` columns.
    __device__ __forceinline__ void solve(int tiles) const {
        for (int p = 0; p < rows; ++p) {
            const Pair inverse = at(row(p), p);
            for (int s = 0; s < tiles; ++s) {
                double* own = row(rows + s);
                const Pair solved = product(at(own, p), inverse);
                for (int j = p + 1 + warp(); j < rows; j += WARPS) subtract_product(at(own, j), solved, at(row(j), p));
                __syncthreads();
                if (warp() == 0) at(own, p) = solved;
            }
        }
        __syncthreads();
        solve_upper(tiles);
    }
};

// Collects the same as Seen, by fewer operations.
struct Glance {
    double apart = 0, largest = 0;
    unsigned top = 0, beyond = 0;  // the largest upper half of a modulus; bits of entries that are not read
    bool zero = false;

    // Notes an entry that is read, and its mirror image.
    __device__ __forceinline__ void note(double read, double mirrored, bool on_diagonal) {
        apart = fmax(apart, fabs(read - mirrored)), largest = fmax(largest, fabs(read));
        const unsigned high = __double2hiint(mirrored) & 0x7fffffff;
        top = max(top, max(high, __double2hiint(read) & 0x7fffffff));
        if (on_diagonal) zero = zero || read == 0;
        else if (mirrored == mirrored) beyond |= high | unsigned(__double2loint(mirrored));
    }
    __device__ __forceinline__ Seen seen() const { return {apart, largest, beyond != 0, top >= 0x7ff00000u, zero}; }
};

// Copies to tiles the lower triangle of the matrix as it is read; beyond row n it is the identity.
__device__ __forceinline__ Seen copy_matrix(const Cholesky& of, const Reading& read, int n) {
    constexpr int AHEAD = WARPS > 4 ? 4 : 2;  // tiles of a warp that are loaded at the same time
    const int line = Cholesky::lane() / 4, pair = Cholesky::lane() % 4 * 2, count = of.rows * (of.rows + 1) / 2;
    // Entry (i, j) with i >= j is read at i row + j col, and its mirror image at i col + j row.
    const bool reads_lower = read.band.below > 0;
    const Index row = reads_lower ? read.row : read.col, col = reads_lower ? read.col : read.row;
    Glance glance;
    int p = 0, q = Cholesky::warp();  // of the next tile
    for (int t = Cholesky::warp(); t < count; t += AHEAD * WARPS) {
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
            of.at(of.row(first[u] / TILE), second[u] / TILE) = {given[u][0], given[u][1]};
        }
    }
    return glance.seen();
}

// The largest sum of |a_ij| of a row.
__device__ __forceinline__ double norm_of(const Cholesky& of, int n) {
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
        Cholesky factors = {room.matrix, room.sides, rows, tiles, size, 0};
        Seen seen = copy_matrix(factors, read, n);
        for (int e = threadIdx.x; e < size * 8 * tiles; e += THREADS) {
            const int i = e % size, c = e / size;
            Number v = {0.0, 0.0};
            if (i < n) v.re = c < k ? sides(i, c).re : random_probe(i, c - k);
            save(factors.side(i, c), v);
        }
        __syncthreads();
        const double inf = norm_of(factors, n);
        factors.factor(room.broken);
        factors.solve_upper(tiles);
        const Limits limits = {kind, bound, least, safe, agrees};
        judge_answers(
            factors, read, sides, x + slice * n * k, room.scratch, {n, k, probes}, limits, near,
            {board, doubtful, doubt, count}, slice, inf, inf, seen
        );
    }
}
