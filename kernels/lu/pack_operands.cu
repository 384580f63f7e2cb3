// Operands of the update C -= L U, scaled, rounded to T_LOW, and packed for one tensor-core product P Q^T.
//
//   tcs_pack_l: L (m x k)  ->  P (m x PRODUCTS k)      tcs_pack_u: U (k x r)  ->  Q (r x PRODUCTS k)
//
//   PRODUCTS 1:  P = [hi],            Q = [hi]^T
//   PRODUCTS 3:  P = [hi | lo | hi],  Q = [lo; hi; hi]^T
//
// with hi = rn(s x), lo = rn(s x - hi), where s x and s x - hi are exact in FP32.  With PRODUCTS 3,
// P Q^T = L_hi U_hi + L_lo U_hi + L_hi U_lo in one product with inner dimension 3 k.
// s is a power of two, an argument for L and in device memory for U (see find_operand_scale.cu).
// Everything is row-major: L and U FP32 with leading dimensions lda and ldu, P and Q contiguous.
//
// COMPLEX 1: L and U are the float views (re, im interleaved) of complex64 matrices; k, r, lda and ldu
// count floats, except that k of tcs_pack_u is the rows of U.  P is as before; each part (hi or lo) of Q is r x 2 k,
//   row 2 j:     re u_0j, -im u_0j, re u_1j, -im u_1j, ...
//   row 2 j + 1: im u_0j,  re u_0j, im u_1j,  re u_1j, ...
// so that P Q^T is the float view of the complex product.
//
// Grid and block:  tcs_pack_l (ceil(m / 8), ceil(k / 256)) of (32, 8),
//                  tcs_pack_u (ceil(r / 64), ceil(k / K_ROWS)) of 256, K_ROWS 64, if COMPLEX 32.
// Defines T_LOW (fp16, bf16 or tf32), PRODUCTS (1 or 3), COMPLEX (0 or 1).

#include "common/common.cuh"
#include "common/hi_lo.cuh"

static_assert(PRODUCTS == 1 || PRODUCTS == 3, "one product, or three");

constexpr int RUN = 8;      // entries that a thread rounds together: 16 bytes of a 16-bit format
constexpr int TILE = 64;    // tcs_pack_u: rows and columns of a part of Q that a block writes
constexpr int K_ROWS = COMPLEX ? TILE / 2 : TILE;
constexpr int U_THREADS = 256;

using Split = SplitRun<T_LOW, RUN>;

extern "C" __global__ void __launch_bounds__(256)
tcs_pack_l(T_LOW* __restrict__ p, const float* __restrict__ l, Index lda, Index m, Index k, double scale) {
    const Index row = Index(blockIdx.x) * blockDim.y + threadIdx.y;
    const Index q = (Index(blockIdx.y) * WARP + threadIdx.x) * RUN;
    if (row >= m || q >= k) return;
    Run<float, RUN> x;
    x.load(l + row * lda + q, k % RUN == 0 && aligned16(l, lda), k - q);
    const Split split(x, float(scale));
    const bool vector = k % RUN == 0 && aligned16(p, 0);
    p += row * PRODUCTS * k + q;
    split.hi.store(p, vector, k - q);
    if (PRODUCTS == 3) {
        split.lo.store(p + k, vector, k - q);
        split.hi.store(p + 2 * k, vector, k - q);
    }
}

extern "C" __global__ void __launch_bounds__(U_THREADS)
tcs_pack_u(
    T_LOW* __restrict__ out, const float* __restrict__ u, Index ldu, Index k, Index r,
    const float* __restrict__ scale
) {
    __shared__ float tile[K_ROWS][TILE + 1];  // + 1: columns are read without bank conflicts
    const Index row0 = Index(blockIdx.y) * K_ROWS, col0 = Index(blockIdx.x) * TILE;
    #pragma unroll
    for (int e = threadIdx.x; e < K_ROWS * TILE; e += U_THREADS) {
        const int i = e / TILE, j = e % TILE;
        if (row0 + i < k && col0 + j < r) tile[i][j] = u[(row0 + i) * ldu + col0 + j];
    }
    __syncthreads();

    const Index depth = COMPLEX ? 2 * k : k;
    const bool vector = depth % RUN == 0 && aligned16(out, 0);
    const float s = *scale;
    #pragma unroll
    for (int e = threadIdx.x; e < TILE * TILE / RUN; e += U_THREADS) {
        const int j = e / (TILE / RUN), first = e % (TILE / RUN) * RUN;
        const Index q = Index(blockIdx.y) * TILE + first, left = depth - q;
        if (col0 + j >= r || left <= 0) continue;
        Run<float, RUN> x;
        #pragma unroll
        for (int i = 0; i < RUN; ++i) {
            if (COMPLEX) {
                const float part = tile[(first + i) / 2][j ^ (i & 1)];
                x.at[i] = (i & 1) && !(j & 1) ? -part : part;
            } else {
                x.at[i] = tile[first + i][j];
            }
        }
        const Split split(x, s);
        T_LOW* to = out + (col0 + j) * PRODUCTS * depth + q;
        split.hi.store(to + (PRODUCTS - 1) * depth, vector, left);
        if (PRODUCTS == 3) {
            split.lo.store(to, vector, left);
            split.hi.store(to + depth, vector, left);
        }
    }
}
