// Matrices as they are read under a structure, and Cholesky factors as the triangular solves take them.
//
//   tcs_read_as  out = the matrix that is read in a, for `count` matrices n x n, and what is seen in them.
//       a      T_A, or pairs if COMPLEX, entry (s, i, j) at s a_step + i a_row + j a_col (steps in entries).
//       out    the same type, contiguous.
//       An entry with -below <= j - i <= above is read.  Of the others one is zero if mirror is 0, the entry on the other
//       side of the diagonal if it is 1, and its conjugate if it is 2: then the diagonal is real.
//       seen   double[5][count], zero before the launch: the largest |a_ij - mirror of a_ji| that is not read; the largest
//              |a_ij| that is read; 1 if an entry that is not read is not zero; 1 if any entry of a is NaN or Inf; 1 if
//              one on the diagonal is zero.  Where mirror is 2 the imaginary parts of the diagonal are not read.  NaN is
//              passed over by the first three.
//       Grid ceil(count n^2 / 256), block 256.
//
//   tcs_rows  rows = the columns of b, and `probes` random vectors (see probe.cuh) behind them, for `count` systems.
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

#include "common/common.cuh"
#include "common/probe.cuh"

constexpr int TILE = 32, HEIGHT = 8, THREADS = 256;
using Bits = unsigned long long;

struct Entry { T_A part[COMPLEX ? 2 : 1]; };
struct Wide { double part[COMPLEX ? 2 : 1]; };

__device__ __forceinline__ bool is_finite(Entry v) {
    bool yes = true;
    #pragma unroll
    for (T_A part : v.part) yes = yes && isfinite(part);
    return yes;
}

__device__ __forceinline__ double modulus(Entry v) {
    return COMPLEX ? hypot(double(v.part[0]), double(v.part[COMPLEX])) : fabs(double(v.part[0]));
}

__device__ __forceinline__ double distance(Entry u, Entry v) {
    #pragma unroll
    for (int c = 0; c <= COMPLEX; ++c) u.part[c] -= v.part[c];
    return modulus(u);
}

// Raises *place to v, not negative and not NaN.  `together`: all threads of the warp have the same place.
__device__ __forceinline__ void raise(double* place, double v, bool together) {
    if (together) {
        #pragma unroll
        for (int d = WARP / 2; d; d /= 2) v = fmax(v, __shfl_xor_sync(ALL_LANES, v, d));
        if (threadIdx.x % WARP) return;
    }
    // The bits of such numbers are in their order.
    if (v > *static_cast<volatile double*>(place)) {
        atomicMax(reinterpret_cast<Bits*>(place), Bits(__double_as_longlong(v)));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_read_as(
    Entry* out, const Entry* a, Index a_step, Index a_row, Index a_col, Index count, Index n, Index below, Index above,
    Index mirror, double* seen
) {
    const Index number = Index(blockIdx.x) * THREADS + threadIdx.x, all = count * n * n;
    const Index at = min(number, all - 1), slice = at / (n * n), i = at % (n * n) / n, j = at % n;
    const Entry* from = a + slice * a_step;
    const Entry given = from[i * a_row + j * a_col];
    const bool is_read = j - i <= above && i - j <= below, finite = is_finite(given);
    Entry v = given;
    if (!is_read) v = mirror ? from[j * a_row + i * a_col] : Entry{};
    if (COMPLEX && mirror == 2) {
        T_A& im = v.part[COMPLEX];
        im = i == j ? T_A(0) : is_read ? im : -im;
    }
    if (number < all) out[at] = v;

    const bool real_only = COMPLEX && mirror == 2 && i == j;
    double apart = is_read && !real_only ? 0.0 : real_only ? 2 * fabs(double(given.part[COMPLEX])) : distance(given, v);
    double size = is_read ? modulus(given) : 0.0;
    const double beyond = real_only ? fabs(double(given.part[COMPLEX])) : is_read ? 0.0 : modulus(given);
    apart = apart == apart ? apart : 0.0, size = size == size ? size : 0.0;
    // That the matrices are the same at both ends of a warp means that they are so in between.
    const Index warp = number - threadIdx.x % WARP;
    const bool together = min(warp, all - 1) / (n * n) == min(warp + WARP - 1, all - 1) / (n * n);
    double* place = seen + slice;
    raise(place, apart, together);
    raise(place + count, size, together);
    raise(place + 2 * count, beyond > 0 ? 1.0 : 0.0, together);
    raise(place + 3 * count, finite ? 0.0 : 1.0, together);
    raise(place + 4 * count, i == j && modulus(v) == 0 ? 1.0 : 0.0, together);
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_rows(Wide* rows, const Entry* b, Index b_step, Index b_row, Index b_col, Index count, Index n, Index k, Index probes) {
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
