// out = c + A B with the sums of any tensor cores, bit for bit, in integers.
//
//   a, b  A (m x k) and B (k x n) by their strides in entries: FP32 numbers that are numbers of the emulated format
//   out, c FP32, row-major with leading dimensions ld_out and ld_c; c is null for zero, and may be out
//
// Grid ceil(n / 32) x ceil(m / 32), block 256: a block makes 32 x 32 results, a thread four of a column.
// Defines BLOCK, FRACTION, LEAST (how the tensor cores add: COUNT, DEPTH and LOWEST of add_block in block_sums.cuh),
// EMIN (the smallest exponent of a normal number of the format).
//
// Each entry of A or B is unpacked once for a tile and serves 32 results.  A result needs about 20 integer operations
// for each product.

#include "common/common.cuh"
#include "gemm/block_sums.cuh"

constexpr int TILE = 32, THREADS = 256, EACH = TILE * TILE / THREADS;

// Reads an entry of A or B; zero outside the matrix.
__device__ __forceinline__ Number read_entry(const float* x, Index at, bool inside) {
    return read_number(inside ? __float_as_uint(x[at]) : 0, OPERAND_FRACTION, EMIN);
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_gemm_emulated(
    float* out, Index ld_out, const float* c, Index ld_c,
    const float* __restrict__ a, Index row_a, Index col_a, const float* __restrict__ b, Index row_b, Index col_b,
    Index m, Index n, Index k
) {
    __shared__ Number left[TILE][BLOCK + 1], right[BLOCK][TILE];
    const Index row0 = Index(blockIdx.y) * TILE, col0 = Index(blockIdx.x) * TILE;
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE * EACH;
    const Index col = col0 + x;
    unsigned sum[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const bool inside = row0 + y + i < m && col < n;
        sum[i] = c && inside ? __float_as_uint(c[(row0 + y + i) * ld_c + col]) : 0;
    }
    for (Index q0 = 0; q0 < k; q0 += BLOCK) {
        for (int e = threadIdx.x; e < TILE * BLOCK; e += THREADS) {
            const Index row = row0 + e / BLOCK, along = q0 + e % BLOCK;
            left[e / BLOCK][e % BLOCK] = read_entry(a, row * row_a + along * col_a, row < m && along < k);
        }
        for (int e = threadIdx.x; e < TILE * BLOCK; e += THREADS) {
            const Index along = q0 + e / TILE, column = col0 + e % TILE;
            right[e / TILE][e % TILE] = read_entry(b, along * row_b + column * col_b, along < k && column < n);
        }
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            sum[i] = add_block<BLOCK, FRACTION, LEAST>(left[y + i], &right[0][x], TILE, sum[i]);
        }
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const Index row = row0 + y + i;
        const unsigned found = (sum[i] & ~SIGN_32) > INF_32 ? NAN_32 : sum[i];  // c may be any NaN if k is 0
        if (row < m && col < n) out[row * ld_out + col] = __uint_as_float(found);
    }
}
