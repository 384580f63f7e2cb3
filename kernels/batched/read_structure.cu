// Copies of matrices as they are read under a structure, rows of right-hand sides, and Cholesky factors in the form of
// LU factors.
//
//   tcs_read_as  out = a as it is read (reading.cuh), for `count` matrices n x n, and checks of their entries.
//       a      T_A, or pairs if COMPLEX, entry (s, i, j) at s a_step + i a_row + j a_col (steps in entries).
//       out    the same type, contiguous.
//       below, above, mirror  as in reading.cuh.
//       seen   double[5][count], zero before the launch: apart, largest, beyond, spoilt and zero of reading.cuh.
//       Grid count ceil(n / 32)^2, block 32 x 8: a block writes a tile.  With a mirror, it also reads the tile that
//       mirrors this one.
//
//   tcs_rows  rows = the columns of b, followed by `probes` random vectors (see probe.cuh), for `count` systems.
//       b      T_A, or pairs, entry (s, i, c) at s b_step + i b_row + c b_col.
//       rows   double, or pairs, [count][k + probes][n].
//       Grid ceil(count (k + probes) n / 256), block 256.
//
//   tcs_pack_cholesky  L D^-1 and D L^T, D = diag(L), in one matrix: the unit lower and the upper triangle of an LU.
//       p      double n x n, contiguous: before, L^T in its upper triangle; the rest is not read.
//       d      double[n], the diagonal of L.
//       Grid ceil(n / 32)^2, block 32 x 8.
//
// Defines T_A (float or double), COMPLEX (0 or 1).  Rounding: one product or quotient an entry.

#include "batched/reading.cuh"
#include "common/common.cuh"
#include "common/probe.cuh"
#include "common/reduce.cuh"

constexpr int TILE = 32, HEIGHT = 8, THREADS = 256;

struct Entry { T_A part[PARTS]; };
struct Wide { double part[PARTS]; };

// Loads the tile whose first entry is (i0, j0); neighbouring threads read neighbours in memory.
__device__ __forceinline__ void load(
    Entry (*tile)[TILE + 1], const T_A* a, Index a_row, Index a_col, Index i0, Index j0, Index n
) {
    const bool by_rows = a_col <= a_row;
    #pragma unroll
    for (int y = threadIdx.y; y < TILE; y += HEIGHT) {
        const int i = by_rows ? y : threadIdx.x, j = by_rows ? threadIdx.x : y;
        if (i0 + i < n && j0 + j < n) {
            const T_A* from = a + PARTS * ((i0 + i) * a_row + (j0 + j) * a_col);
            #pragma unroll
            for (int c = 0; c < PARTS; ++c) tile[i][j].part[c] = from[c];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_read_as(
    T_A* out, const T_A* a, Index a_step, Index a_row, Index a_col, Index count, Index n, Index below, Index above,
    Index mirror, double* seen
) {
    __shared__ Entry own[TILE][TILE + 1], others[TILE][TILE + 1];
    __shared__ double of_warps[HEIGHT][SEEN];
    const Index tiles = (n + TILE - 1) / TILE;
    const Index slice = blockIdx.x / (tiles * tiles), tile = blockIdx.x % (tiles * tiles);
    const Index i0 = tile / tiles * TILE, j0 = tile % tiles * TILE;
    const Band band = {below, above, mirror};
    a += PARTS * slice * a_step, out += PARTS * slice * n * n;
    load(own, a, a_row, a_col, i0, j0, n);
    if (mirror) load(others, a, a_row, a_col, j0, i0, n);
    __syncthreads();

    Seen found;
    #pragma unroll
    for (int y = threadIdx.y; y < TILE; y += HEIGHT) {
        const Index i = i0 + y, j = j0 + threadIdx.x;
        if (i >= n || j >= n) continue;
        const Number given = number(own[y][threadIdx.x].part, 0);
        const Number other = mirror ? number(others[threadIdx.x][y].part, 0) : Number{0.0, 0.0};
        const Number v = band.stands(i, j, given, other);
        found.note(band, i, j, given, v);
        T_A* to = out + PARTS * (i * n + j);
        to[0] = T_A(v.re);
        if (COMPLEX) to[PARTS - 1] = T_A(v.im);
    }
    tell_warp(found, of_warps[threadIdx.y]);
    __syncthreads();
    const int row = threadIdx.x;
    if (threadIdx.y || row >= SEEN) return;
    double v = 0;
    #pragma unroll
    for (int w = 0; w < HEIGHT; ++w) v = fmax(v, of_warps[w][row]);
    if (v > 0) raise(seen + row * count + slice, v);
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_rows(
    Wide* rows, const Entry* b, Index b_step, Index b_row, Index b_col, Index count, Index n, Index k, Index probes
) {
    const Index at = Index(blockIdx.x) * THREADS + threadIdx.x, all = k + probes;
    if (at >= count * all * n) return;
    const Index i = at % n, row = at / n % all, slice = at / n / all;
    Wide v = {};
    if (row < k) {
        const Entry of_b = b[slice * b_step + i * b_row + row * b_col];
        #pragma unroll
        for (int c = 0; c <= COMPLEX; ++c) v.part[c] = of_b.part[c];
    } else {
        v.part[0] = random_probe(i, unsigned(row - k));
    }
    rows[at] = v;
}

extern "C" __global__ void __launch_bounds__(TILE * HEIGHT)
tcs_pack_cholesky(double* p, const double* __restrict__ d, Index n) {
    __shared__ double of_upper[TILE][TILE + 1];
    const Index tiles = (n + TILE - 1) / TILE, row0 = blockIdx.x / tiles * TILE, col0 = blockIdx.x % tiles * TILE;
    if (row0 > col0) return;
    for (int y = threadIdx.y; y < TILE; y += HEIGHT) {
        const Index i = row0 + y, j = col0 + threadIdx.x;
        if (j < n && i <= j) of_upper[y][threadIdx.x] = p[i * n + j];
    }
    __syncthreads();
    for (int y = threadIdx.y; y < TILE; y += HEIGHT) {
        const Index i = row0 + y, j = col0 + threadIdx.x;
        if (j < n && i <= j) p[i * n + j] = d[i] * of_upper[y][threadIdx.x];
        const Index below = col0 + y, left = row0 + threadIdx.x;
        if (below < n && left < below) p[below * n + left] = of_upper[threadIdx.x][y] / d[left];
    }
}
