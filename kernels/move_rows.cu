// a[dst[i], :] = a[src[i], :] for i < count, in place; all reads come before any write.
//
//   a         FP32 (or any 4-byte type), row-major, leading dimension lda; dst and src count from its first row.
//   columns   [0, n) without [skip_start, skip_stop): the panel whose rows have moved already.
//   dst, src  int[count]; a destination may occur twice, with the same source.
//
// Grid ceil((n - (skip_stop - skip_start)) / CHUNK), block 256, dynamic shared memory 4 count CHUNK bytes.
// Defines CHUNK (8, 16 or 32): the columns a block owns, and so the bytes in one row it reads at once.
// Values are copied, not rounded.

#include "common.cuh"

constexpr int THREADS = 256;
constexpr int STEP = THREADS / CHUNK;

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_move_rows(
    unsigned* a, Index lda, Index n, Index skip_start, Index skip_stop,
    const int* __restrict__ dst, const int* __restrict__ src, Index count
) {
    extern __shared__ unsigned stage[];
    const int q = threadIdx.x % CHUNK;
    Index column = Index(blockIdx.x) * CHUNK + q;
    if (column >= skip_start) column += skip_stop - skip_start;
    const bool mine = column < n;
    a += column;

    #pragma unroll 4
    for (int i = threadIdx.x / CHUNK; i < count; i += STEP) {
        if (mine) stage[i * CHUNK + q] = a[src[i] * lda];
    }
    __syncthreads();
    #pragma unroll 4
    for (int i = threadIdx.x / CHUNK; i < count; i += STEP) {
        if (mine) a[dst[i] * lda] = stage[i * CHUNK + q];
    }
}
