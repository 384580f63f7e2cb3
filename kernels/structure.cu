// Matrices as they are read under a structure, and Cholesky factors as the triangular solves take them.
//
//   tcs_read_as  out = the matrix that is read in a, for `count` matrices n x n.
//       a      T_A, or pairs if COMPLEX, entry (s, i, j) at s a_step + i a_row + j a_col (steps in entries).
//       out    the same type, contiguous.
//       An entry with -below <= j - i <= above is read.  Of the others one is zero if mirror is 0, the entry on the other
//       side of the diagonal if it is 1, and its conjugate if it is 2: then the diagonal is real.
//       found  int, zero before the launch: 1 if any entry of a, read or not, is NaN or Inf.
//       Grid count ceil(n / 32)^2.
//
//   tcs_pack_cholesky  L D^-1 and D L^T, D = diag(L), in one matrix: the unit lower and the upper triangle of an LU.
//       p      double n x n, contiguous: before, L^T in its upper triangle; the rest is not read.
//       d      double[n], the diagonal of L.
//       Grid ceil(n / 32)^2.
//
// Blocks of 32 x 8.  Defines T_A (float or double), COMPLEX (0 or 1).  Rounding: one product or quotient an entry.

#include "common.cuh"

constexpr int TILE = 32, HEIGHT = 8;

struct Entry { T_A part[COMPLEX ? 2 : 1]; };

__device__ __forceinline__ bool is_finite(Entry v) {
    bool yes = true;
    #pragma unroll
    for (T_A part : v.part) yes = yes && isfinite(part);
    return yes;
}

extern "C" __global__ void __launch_bounds__(TILE * HEIGHT)
tcs_read_as(
    Entry* out, const Entry* a, Index a_step, Index a_row, Index a_col, Index n, Index below, Index above, Index mirror,
    int* found
) {
    __shared__ Entry other_side[TILE][TILE + 1];
    const Index tiles = (n + TILE - 1) / TILE, tile = blockIdx.x % (tiles * tiles);
    const Index slice = blockIdx.x / (tiles * tiles), row0 = tile / tiles * TILE, col0 = tile % tiles * TILE;
    a += slice * a_step, out += slice * n * n;
    const bool all_read = col0 + TILE - 1 - row0 <= above && row0 + TILE - 1 - col0 <= below;
    if (mirror && !all_read) {
        for (int y = threadIdx.y; y < TILE; y += HEIGHT) {
            const Index i = col0 + y, j = row0 + threadIdx.x;
            if (i < n && j < n) other_side[y][threadIdx.x] = a[i * a_row + j * a_col];
        }
        __syncthreads();
    }
    bool finite = true;
    for (int y = threadIdx.y; y < TILE; y += HEIGHT) {
        const Index i = row0 + y, j = col0 + threadIdx.x;
        if (i >= n || j >= n) continue;
        Entry v = a[i * a_row + j * a_col];
        finite = finite && is_finite(v);
        const bool is_read = j - i <= above && i - j <= below;
        if (!is_read) v = mirror ? other_side[threadIdx.x][y] : Entry{};
        if (COMPLEX && mirror == 2) {
            T_A& im = v.part[COMPLEX];
            im = i == j ? T_A(0) : is_read ? im : -im;
        }
        out[i * n + j] = v;
    }
    if (!finite) *found = 1;
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
