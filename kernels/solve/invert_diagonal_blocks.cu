// Inverses of the diagonal blocks of both triangles of an LU, and the condition of the worst block.
//
//   inverse  T_IN [2][ceil(n / BLOCK)][BLOCK][BLOCK]: of the lower, then of the upper triangle's blocks; zero outside
//            the triangle and beyond n.
//   worst    double[1], zero before the launch: becomes the largest || |D^-1| |D| || (infinity norm) of the blocks D,
//            or a NaN or infinity if one arises.  Null: not stored.
//   lu       T_IN n x n, row-major, leading dimension ld.
//   unit_lower  1 if the lower triangle has ones on its diagonal, which are not stored; 0 if the upper one has.
//   upper    not 0 if the grid is for the upper triangle alone.
//
// tcs_invert_blocks: grid (ceil(n / BLOCK), 2), or (..., 1) for one triangle alone, block THREADS.
//
// tcs_begin_triangle also prepares the right-hand sides that triangular_solve.cu takes, for a single triangle t, whose
// diagonal is stored.  `inverse` has the blocks of this triangle alone.
//
//   rows   T_IN [width][n]: the k columns of b, then `probes` random vectors (see probe.cuh), then zeros.
//   b      T_IN n x k, strides b_row and b_col in entries.
//   done   unsigned[count]: all bits become 1.
//
// Grid ceil(n / BLOCK) + ceil(width n / THREADS), block THREADS.
//
// Defines T_IN (float or double).
//
// An upper triangle is turned by 180 degrees, which makes it and its inverse lower triangles.  Warps invert the
// diagonal tiles; then the inverses of two triangles give that of one twice as large: [A, 0; C, B]^-1 = [A^-1, 0; -B^-1
// C A^-1, B^-1].
//
// Rounding: substitution in the tiles with rounded reciprocals of the diagonal, one lane for each column of the
// inverse; then sums over increasing indices, by fused multiply-adds in T_IN.

#include "common/common.cuh"
#include "common/probe.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int BLOCK = sizeof(T_IN) == 4 ? 128 : 64;
constexpr int TILE = WARP;
constexpr int TILES = BLOCK / TILE;
constexpr int VECTOR = 16 / sizeof(T_IN);

// A lower triangle by tiles, and the sums of the magnitudes in its rows.
struct Triangle {
    T_IN tile[TILES * (TILES + 1) / 2][TILE][TILE];
    T_IN row_sum[BLOCK];

    static __device__ __forceinline__ int place(int i, int j) { return i * (i + 1) / 2 + j; }
    __device__ __forceinline__ T_IN (*at(int i, int j))[TILE] { return tile[place(i, j)]; }
};

// The triangle in global memory, turned if it is an upper one; beyond n it is the identity.
struct Source {
    const T_IN* at;
    Index ld;
    int rows;
    bool lower, unit;

    __device__ __forceinline__ int turned(int i) const { return lower ? i : BLOCK - 1 - i; }

    __device__ __forceinline__ T_IN operator()(int i, int k) const {
        const int row = turned(i), column = turned(k);
        const bool inside = k < i || k == i && !unit;
        if (inside && row < rows && column < rows) return __ldg(at + row * ld + column);
        return k == i ? T_IN(1) : T_IN(0);
    }
};

__device__ __forceinline__ void load(Triangle& x, const Source& d) {
    const int lane = threadIdx.x % WARP;
    T_IN value[BLOCK / WARPS][TILES];
    #pragma unroll
    for (int r = 0; r < BLOCK / WARPS; ++r) {
        const int i = threadIdx.x / WARP + r * WARPS;
        #pragma unroll
        for (int j = 0; j <= r * WARPS / TILE; ++j) value[r][j] = d(i, j * TILE + lane);
    }
    #pragma unroll
    for (int r = 0; r < BLOCK / WARPS; ++r) {
        const int i = threadIdx.x / WARP + r * WARPS;
        T_IN sum = 0;
        #pragma unroll
        for (int j = 0; j <= r * WARPS / TILE; ++j) {
            x.at(i / TILE, j)[i % TILE][lane] = value[r][j];
            sum += fabs(value[r][j]);
        }
        sum = sum_of_lanes(sum);
        if (lane == 0) x.row_sum[i] = sum;
    }
}

// Replaces a tile of the diagonal by its inverse; one warp does it.
__device__ __forceinline__ void invert(T_IN (*tile)[TILE]) {
    const int lane = threadIdx.x % WARP;
    const T_IN reciprocal = T_IN(1) / tile[lane][lane];  // a division in each step would take most of the time
    T_IN x[TILE];
    #pragma unroll
    for (int i = 0; i < TILE; ++i) x[i] = i == lane ? T_IN(1) : T_IN(0);
    #pragma unroll
    for (int k = 0; k < TILE; ++k) {
        x[k] *= __shfl_sync(ALL_LANES, reciprocal, k);
        #pragma unroll
        for (int i = k + 1; i < TILE; ++i) x[i] = fma(-tile[i][k], x[k], x[i]);
    }
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < TILE; ++i) tile[i][lane] = x[i];
}

// sum += rows of a tile `a` times a tile `b`; each lane has a column of b.
template <int ROWS>
__device__ __forceinline__ void multiply(T_IN (&sum)[ROWS], const T_IN (*a)[TILE], const T_IN (*b)[TILE]) {
    const int lane = threadIdx.x % WARP;
    #pragma unroll 2
    for (int k = 0; k < TILE; k += VECTOR) {
        T_IN down[VECTOR];
        #pragma unroll
        for (int v = 0; v < VECTOR; ++v) down[v] = b[k + v][lane];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            Run<T_IN, VECTOR> across;
            across.load(a[r] + k, true, VECTOR);
            #pragma unroll
            for (int v = 0; v < VECTOR; ++v) sum[r] = fma(across.at[v], down[v], sum[r]);
        }
    }
}

// Makes inverses of triangles of 2 SIZE tiles from those of SIZE tiles.  Two triangles of SIZE tiles begin at
// tiles `left` and `top`.  Every warp computes ROWS rows of a tile (i, j) of the square block between them:
// i >= top > j >= left.
template <int SIZE>
__device__ __forceinline__ void join(Triangle& x) {
    constexpr int BETWEEN = TILES / 2 * SIZE;          // tiles
    constexpr int ROWS = TILE * BETWEEN / WARPS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int tile = warp * ROWS / TILE, row = warp * ROWS % TILE;
    const int left = tile / (SIZE * SIZE) * 2 * SIZE, top = left + SIZE;
    const int i = top + tile % (SIZE * SIZE) / SIZE, j = left + tile % SIZE;
    auto replace = [&](const T_IN (&sum)[ROWS], T_IN sign) {
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) x.at(i, j)[row + r][lane] = sign * sum[r];
        __syncthreads();
    };
    T_IN right[ROWS] = {};
    for (int k = j; k < top; ++k) multiply(right, x.at(i, k) + row, x.at(k, j));
    replace(right, T_IN(1));
    T_IN both[ROWS] = {};
    for (int k = top; k <= i; ++k) multiply(both, x.at(i, k) + row, x.at(k, j));
    replace(both, T_IN(-1));
}

// Writes the inverse x, and returns the bits of the largest row sum of |x| |D| over the rows of this warp.
__device__ __forceinline__ unsigned long long store(T_IN* out, Triangle& x, const Source& d) {
    const int lane = threadIdx.x % WARP;
    unsigned long long worst = 0;
    #pragma unroll 4
    for (int i = threadIdx.x / WARP; i < BLOCK; i += WARPS) {
        const int row = d.turned(i);
        T_IN sum = 0;
        #pragma unroll
        for (int j = 0; j < TILES; ++j) {
            const int k = j * TILE + lane, column = d.turned(k);
            const bool inside = k <= i && row < d.rows && column < d.rows;
            const T_IN value = inside ? x.at(i / TILE, j)[i % TILE][lane] : T_IN(0);
            out[row * BLOCK + column] = value;
            sum += fabs(value) * x.row_sum[k];
        }
        // As integers, the bits of positive numbers compare like the numbers, and NaN is above them all.
        const auto bits = static_cast<unsigned long long>(__double_as_longlong(fabs(double(sum_of_lanes(sum)))));
        worst = bits > worst ? bits : worst;
    }
    return worst;
}

// Writes the inverse of block `number` of a triangle to `out`, and returns the result of `store`.
__device__ __forceinline__ unsigned long long invert_block(
    T_IN* out, const T_IN* lu, Index ld, Index n, Index number, bool lower, bool unit
) {
    __shared__ __align__(16) Triangle x;
    const Index first = number * BLOCK;
    const Source d = {lu + first * (ld + 1), ld, int(min(n - first, Index(BLOCK))), lower, unit};
    const int warp = threadIdx.x / WARP;

    load(x, d);
    __syncthreads();
    if (warp < TILES) invert(x.at(warp, warp));
    __syncthreads();
    join<1>(x);
    if (TILES > 2) join<TILES / 2>(x);
    return store(out, x, d);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_invert_blocks(
    T_IN* inverse, unsigned long long* worst, const T_IN* __restrict__ lu, Index ld, Index n, Index unit_lower,
    Index upper
) {
    const Index which = upper ? 1 : blockIdx.y, number = blockIdx.x;
    const bool lower = which == 0, unit = lower == bool(unit_lower);
    T_IN* out = inverse + (which * gridDim.x + number) * BLOCK * BLOCK;
    const unsigned long long condition = invert_block(out, lu, ld, n, number, lower, unit);
    if (worst && threadIdx.x % WARP == 0) atomicMax(worst, condition);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_begin_triangle(
    T_IN* inverse, const T_IN* __restrict__ t, Index ld, Index n, Index upper, T_IN* rows, const T_IN* b, Index b_row,
    Index b_col, Index k, Index probes, Index width, unsigned* done, Index count
) {
    const Index blocks = (n + BLOCK - 1) / BLOCK, block = blockIdx.x;
    if (block < blocks) {
        invert_block(inverse + block * BLOCK * BLOCK, t, ld, n, block, !upper, false);
        return;
    }
    const Index at = (block - blocks) * THREADS + threadIdx.x;
    if (at < width * n) {
        const Index row = at / n, i = at % n;
        T_IN v = 0;
        if (row < k) v = b[i * b_row + row * b_col];
        else if (row < k + probes) v = T_IN(random_probe(i, unsigned(row - k)));
        rows[at] = v;
    }
    for (Index e = at; e < count; e += (gridDim.x - blocks) * THREADS) done[e] = ~0u;
}
