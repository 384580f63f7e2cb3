// A matrix of at most MOST rows that a block reads several times, in chunks of CHUNK columns in shared memory.
//
// If CHUNK is MOST, the only chunk stays in shared memory.  Else each pass over the matrix copies all chunks again,
// mostly from the second-level cache.  A block then needs less shared memory, so that another block fits on the
// multiprocessor, or so that a matrix larger than shared memory can be read at all.  While threads read a chunk, the
// next one is copied.
//
// The file that includes this one defines MOST, HIGH (1 or 2), CHUNK (a multiple of 16 that divides MOST), and the
// macros of small_solve.cuh.  A block has THREADS threads.  Needs compute capability 8.
#pragma once

#include "batched/small_solve.cuh"

constexpr int THREADS = 2 * MOST / HIGH, WARPS = THREADS / WARP;
constexpr bool WHOLE = CHUNK == MOST;
constexpr int STAGES = WHOLE ? 1 : 2;                      // chunks in shared memory
constexpr int WIDE = WHOLE ? 1 : 16 / int(sizeof(Given));  // entries that a thread reads at once
constexpr int LD = CHUNK + WIDE;                           // few bank conflicts
static_assert(CHUNK % 16 == 0 && MOST % CHUNK == 0 && HIGH <= 2, "chunks");

__device__ __forceinline__ void wait_for_block() {
    if (WARPS == 1) __syncwarp();
    else __syncthreads();
}

struct alignas(WIDE * sizeof(Given)) Several { Given entries[WIDE]; };

__device__ __forceinline__ Number number_of(const Given& v) {
    return {double(v.part[0]), COMPLEX ? double(v.part[PARTS - 1]) : 0.0};
}

// Entry (i, c) of a chunk.
__device__ __forceinline__ Number entry(const Given* chunk, int i, int c) { return number_of(chunk[i * LD + c]); }

// Starts to copy EACH neighbouring entries, of which only the first `left` are read; the others become zero.
template <int EACH>
__device__ __forceinline__ void copy_entries(Given* to, const T_A* from, int left) {
#if __CUDA_ARCH__ >= 800
    copy_cached<EACH * sizeof(Given)>(to, from, max(min(left, EACH), 0) * int(sizeof(Given)));
#endif
}

struct Chunks {
    Given* buffers;  // [STAGES][MOST][LD]
    const T_A* from;
    Index row, col;
    int n, ahead = 0;  // `ahead` is the first column of the next chunk that is copied
    int slot = 0;      // the buffer of the next chunk that is read

    // Starts to copy.  If there is a single chunk, it waits for it.
    __device__ __forceinline__ Chunks(Given* buffers, const T_A* from, int n, Index row, Index col)
        : buffers(buffers), from(from), row(row), col(col), n(n) {
        copy(0);
        if (!WHOLE) return;
        wait_for_copies();
        wait_for_block();
    }

    // Waits for the next chunk; after the last one comes the first one.  A thread must not read the previous chunk any
    // more, because its buffer is overwritten.
    __device__ __forceinline__ const Given* next() {
        if (WHOLE) return buffers;
        wait_for_copies();
        wait_for_block();
        const int read = slot;
        slot = (slot + 1) % STAGES;
        copy(slot);
        return buffers + read * MOST * LD;
    }

    // Calls take(first, chunk) for all chunks; column c of a chunk is column first + c of the matrix.
    template <typename Take>
    __device__ __forceinline__ void for_all(Take take) {
        #pragma unroll 1
        for (int first = 0; first < n; first += CHUNK) take(first, next());
    }

private:
    // Starts to copy a chunk; beyond row and column n it gets zeros.  Neighbouring lanes copy neighbours in memory.
    __device__ __forceinline__ void copy(int to) {
        Given* const chunk = buffers + to * MOST * LD;
        const bool aligned = (reinterpret_cast<Index>(from) | row * Index(sizeof(Given))) % 16 == 0;
        if (col > row) copy_columns(chunk);
        else if (WIDE > 1 && col == 1 && aligned) copy_rows<WIDE>(chunk);
        else copy_rows<1>(chunk);
        ahead = ahead + CHUNK < n ? ahead + CHUNK : 0;
    }

    // Copies EACH entries of a row at a time.
    template <int EACH>
    __device__ __forceinline__ void copy_rows(Given* chunk) const {
        constexpr int LANES = CHUNK / EACH, STEP = THREADS / LANES;
        const int i = threadIdx.x / LANES, c = threadIdx.x % LANES * EACH, left = n - ahead - c;
        const T_A* at = from + PARTS * (i * row + (ahead + c) * col);
        #pragma unroll 8
        for (int e = 0; e < MOST; e += STEP, at += PARTS * STEP * row) {
            copy_entries<EACH>(chunk + (i + e) * LD + c, at, i + e < n ? left : 0);
        }
    }

    __device__ __forceinline__ void copy_columns(Given* chunk) const {
        constexpr int STEP = THREADS / MOST;
        const int i = threadIdx.x % MOST, c = threadIdx.x / MOST, left = i < n ? n - ahead - c : 0;
        const T_A* at = from + PARTS * (i * row + (ahead + c) * col);
        #pragma unroll 8
        for (int e = 0; e < CHUNK; e += STEP, at += PARTS * STEP * col) {
            copy_entries<1>(chunk + i * LD + c + e, at, left - e);
        }
    }
};
