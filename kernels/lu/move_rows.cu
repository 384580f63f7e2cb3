// a[dst[i], :] = a[src[i], :] for i < count, in place; all reads come before any write.
//
//   a         FP32 (or any 4-byte type), row-major, leading dimension lda; dst and src count from its first row.
//   n         columns that move.
//   dst, src  int[count]; a destination may occur twice, with the same source.
//   any       null, or unsigned[1]: zero if all rows stay.
//
// Grid any; blocks beyond the first ceil(n / CHUNK) have no work.  Block 256, dynamic shared memory 4 count CHUNK
// bytes.
// Defines CHUNK (4, 8, 16 or 32): the number of neighbouring columns that a block moves at a time.
// Values are copied, not rounded.  If no row moves, only `any`, or dst and src, are read.

#include "common/common.cuh"

constexpr int THREADS = 256;

// Moves the rows of a chunk of columns in words of T; each thread has a column of words.
template <typename T>
__device__ __forceinline__ void move(
    unsigned* a, Index lda, Index words, T* stage, const int* dst, const int* src, int count
) {
    constexpr int LENGTH = sizeof(T) / sizeof(unsigned), COLUMNS = CHUNK / LENGTH, STEP = THREADS / COLUMNS;
    const int q = threadIdx.x % COLUMNS;
    const bool mine = q * LENGTH < words;
    a += q * LENGTH;
    #pragma unroll 8
    for (int i = threadIdx.x / COLUMNS; i < count; i += STEP) {
        if (mine) stage[i * COLUMNS + q] = *reinterpret_cast<const T*>(a + src[i] * lda);
    }
    __syncthreads();
    #pragma unroll 8
    for (int i = threadIdx.x / COLUMNS; i < count; i += STEP) {
        if (mine) *reinterpret_cast<T*>(a + dst[i] * lda) = stage[i * COLUMNS + q];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_move_rows(
    unsigned* a, Index lda, Index n, const int* __restrict__ dst, const int* __restrict__ src, Index count,
    const unsigned* __restrict__ any
) {
    extern __shared__ __align__(16) unsigned stage[];
    if (any && !*any) return;
    int moved = any != nullptr;
    for (int i = threadIdx.x; i < count && !any; i += THREADS) moved |= src[i] ^ dst[i];
    if (!__syncthreads_or(moved)) return;
    for (Index start = Index(blockIdx.x) * CHUNK; start < n; start += Index(gridDim.x) * CHUNK) {
        const Index words = min(Index(CHUNK), n - start);
        if (words == CHUNK && aligned16(a, lda)) {
            move(a + start, lda, words, reinterpret_cast<uint4*>(stage), dst, src, int(count));
        } else {
            move(a + start, lda, words, stage, dst, src, int(count));
        }
        __syncthreads();  // all have read `stage`, which the next chunk overwrites
    }
}
