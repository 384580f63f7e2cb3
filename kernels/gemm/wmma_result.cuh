// How gemm_wmma.cu stores its sums, which a block has collected in shared memory.
#pragma once

#include "gemm/wmma_tile.cuh"

// The place of entry (row, col) of the block's sums; four neighbouring rows of a fragment use different banks.
__device__ __forceinline__ int place(int row, int col) { return row * BLOCK_N + (col ^ (row & 3) << 3); }
constexpr int SHARED_BYTES = (SPLIT_ON_LOAD ? 2 : STAGES) * STAGE_BYTES;
static_assert(BLOCK_M * BLOCK_N * sizeof(Acc) <= SHARED_BYTES, "the sums fit where the tiles were");

// A thread's four columns of the block, and the values that are the same for all rows.
struct Columns {
    static constexpr int ACROSS = BLOCK_N / 4, STEP = THREADS / ACROSS, FLIGHT = 4;
    Index first;
    int exponent[4];
    bool whole;  // the columns are inside C, none is broken, and four results are one store of 16 bytes
    bool add;    // beta is not zero, and four entries of c are one load

    __device__ __forceinline__ Columns(const Target& target, const Origin<T_LOW>& origin, Index first) : first(first) {
        const Index bits = reinterpret_cast<Index>(target.out) | target.ld_out * 4;
        const bool of_4_bytes = target.kind == KIND_FP32 || target.kind == KIND_INT32;
        whole = of_4_bytes && (bits & 15) == 0 && first + 4 <= target.n;
        add = target.beta != 0 && ((reinterpret_cast<Index>(target.c) | target.ld_c * 4) & 15) == 0;
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const unsigned top = whole && origin.top_b ? origin.top_b[first + e] : 0;
            whole = whole && top < INFINITE;
            exponent[e] = fit<T_LOW>(top);
        }
    }

    __device__ __forceinline__ static float unscaled(const Origin<T_LOW>& origin, float x, int e) {
        return origin.top_a ? scaled<T_LOW>(x, -e) : x;
    }
    __device__ __forceinline__ static int unscaled(const Origin<T_LOW>&, int x, int) { return x; }

    __device__ __forceinline__ void store(
        const Target& target, const Origin<T_LOW>& origin, bool in_pairs, Index row,
        const Acc (&x)[4], const Acc (&old)[4]
    ) const {
        if (row >= target.m) return;
        const unsigned top = origin.top_a ? origin.top_a[row] : 0;
        if (!whole || top >= INFINITE) {
            target.store(origin, in_pairs, row, first, x[0], x[1]);
            target.store(origin, in_pairs, row, first + 2, x[2], x[3]);
            return;
        }
        __align__(16) Acc y[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const Acc z = unscaled(origin, x[e], fit<T_LOW>(top) + exponent[e]);
            y[e] = add ? target.combined(z, old[e]) : target.result(z, row, first + e);
        }
        uint4 word;
        memcpy(&word, y, 16);
        static_cast<uint4*>(target.out)[(row * target.ld_out + first) / 4] = word;
    }

    // Stores all rows of these columns; FLIGHT reads of c start before the first result is written.
    __device__ __forceinline__ void store_all(
        const Target& target, const Origin<T_LOW>& origin, bool in_pairs, Index first_row, const Acc* sums, int col
    ) const {
        #pragma unroll 1
        for (int row0 = threadIdx.x / ACROSS; row0 < BLOCK_M; row0 += FLIGHT * STEP) {
            Acc old[FLIGHT][4];
            #pragma unroll
            for (int f = 0; f < FLIGHT; ++f) {
                const Index row = first_row + row0 + f * STEP;
                if (!add || !whole || row >= target.m) continue;
                const uint4 word = static_cast<const uint4*>(target.c)[(row * target.ld_c + first) / 4];
                memcpy(old[f], &word, 16);
            }
            #pragma unroll
            for (int f = 0; f < FLIGHT; ++f) {
                Acc x[4];
                memcpy(x, __builtin_assume_aligned(sums + place(row0 + f * STEP, col), 16), 16);
                store(target, origin, in_pairs, first_row + row0 + f * STEP, x, old[f]);
            }
        }
    }
};

// True if a row or column of the block's tile holds an Inf or NaN.
__device__ __forceinline__ bool any_broken(const Target& target, const Origin<T_LOW>& origin, Index row, Index col) {
    bool found = false;
    if (origin.top_a != nullptr) {
        for (Index i = row + threadIdx.x; i < min(target.m, row + BLOCK_M); i += THREADS) {
            found = found || origin.top_a[i] >= INFINITE;
        }
        for (Index j = col + threadIdx.x; j < min(target.n, col + BLOCK_N); j += THREADS) {
            found = found || origin.top_b[j] >= INFINITE;
        }
    }
    return __syncthreads_or(found);
}
