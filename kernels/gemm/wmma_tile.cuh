// The tiles of gemm_wmma.cu in shared memory, their copies from global memory, and the fragments that warps read.
#pragma once

#include "common/async_copy.cuh"
#include "gemm/gemm.cuh"
#include "gemm/load_blocks.cuh"

constexpr bool SCALED = SAME<T_IN, float>;
static_assert(SCALED || (SAME<T_IN, T_LOW> && REFINE == 0), "only FP32 operands are rounded");
using Acc = typename Accumulator<T_LOW>::type;

constexpr bool SMALL = TILE == 0, WIDE = TILE == 2;
static_assert(!(SCALED && WIDE), "FP32 operands leave no registers for wide tiles");
static_assert(!(SCALED && SMALL), "FP32 operands have no small tiles");

constexpr int BLOCK_M = SMALL ? 64 : 128, BLOCK_N = WIDE ? 256 : BLOCK_M;  // rows and columns of a tile of C
constexpr int ROW_BYTES = 128;                        // of a tile whose rows run along k
constexpr int BLOCK_K = ROW_BYTES / int(sizeof(T_IN));
constexpr int BYTES_A = BLOCK_M * ROW_BYTES, BYTES_B = BLOCK_N * ROW_BYTES, STAGE_BYTES = BYTES_A + BYTES_B;
constexpr int CHUNK = 16 / int(sizeof(T_IN));         // entries of a 16-byte chunk
constexpr int WORD = PER_WORD<T_LOW>;
constexpr int SLICES = BLOCK_K / (SLICE_WORDS * WORD);
constexpr int WARP_ROWS = SMALL ? 32 : 64, WARP_COLS = SCALED || SMALL ? 32 : 64;
constexpr int WARPS_ACROSS = BLOCK_N / WARP_COLS, WARPS = BLOCK_M / WARP_ROWS * WARPS_ACROSS;
constexpr int THREADS = WARPS * WARP;
constexpr int TILES_M = WARP_ROWS / 16, TILES_N = WARP_COLS / 8;
constexpr bool SPLIT_ON_LOAD = SCALED && WORD == 2;   // FP32 for a 16-bit format
static_assert(!SPLIT_ON_LOAD || REFINE > 0, "one product of 16-bit operands needs no split");
#if __CUDA_ARCH__ >= 900
constexpr int STAGES = WIDE || SMALL ? 4 : 3;
#elif __CUDA_ARCH__ >= 800
constexpr int STAGES = SMALL ? 4 : 3;
#else
constexpr int STAGES = 2;
#endif

// `ALONG_K`: the contiguous entries of the operand run along k, else along m (or n).  A tile has SPAN rows of
// ROW_BYTES, or BLOCK_K rows of SPAN entries.
template <bool ALONG_K, int SPAN>
struct Tile {
    static constexpr int BYTES = ALONG_K ? ROW_BYTES : SPAN * int(sizeof(T_IN));
    static constexpr int CHUNKS = BYTES / 16;

    // The offset of chunk `chunk` of a row.  Chunks are permuted so that the rows (and words) that the lanes read for a
    // fragment use different banks.
    __device__ __forceinline__ static unsigned offset(int row, int chunk) {
        int turn = 0;
        if (SWIZZLE) {
            if (SCALED && WORD == 2) turn = (ALONG_K ? row & 3 : row >> 1 & 3) << 1;
            else if (SCALED) turn = ALONG_K ? row & 7 : (row & 3) << 1;
            else if (SAME<T_IN, int8>) turn = ALONG_K ? row & 7 : row >> 2 & 7;
            else turn = row & 7;
        }
        // Rows of INT8 along m or n have four chunks in small tiles.
        return unsigned(row) * BYTES + ((chunk ^ turn % CHUNKS) << 4);
    }

    // Byte offset of the entry at (i along m or n, q along k).
    __device__ __forceinline__ static unsigned entry(int i, int q) {
        const int row = ALONG_K ? i : q, col = ALONG_K ? q : i;
        return offset(row, col / CHUNK) + col % CHUNK * int(sizeof(T_IN));
    }
};

// Copies 16 bytes to shared memory.  Only the first `bytes` exist; the others become zero.
__device__ __forceinline__ void copy_chunk(char* to, const T_IN* from, int bytes) {
#if __CUDA_ARCH__ >= 800
    copy_16<void, void>(to, from, bytes);
#else
    Run<T_IN, CHUNK> run;
    run.load(from, bytes == 16, bytes / int(sizeof(T_IN)));
    run.store(reinterpret_cast<T_IN*>(to), true, CHUNK);
#endif
}

// One operand in global memory: `span` entries along m or n, `k` along k.
template <bool ALONG_K, int SPAN>
struct Source {
    const T_IN* x;
    Index ld, first, span, k;
    bool vector;

    __device__ __forceinline__ Source(const T_IN* x, Index ld, Index first, Index span, Index k)
        : x(x), ld(ld), first(first), span(span), k(k), vector(aligned16(x, ld)) {}

    // Copies the tile that starts at k0, zero outside the matrix.
    __device__ __forceinline__ void copy(char* tile, Index k0) const {
        using T = Tile<ALONG_K, SPAN>;
        constexpr int STEPS = SPAN * ROW_BYTES / 16 / THREADS, ROWS = THREADS / T::CHUNKS;
        static_assert(THREADS % T::CHUNKS == 0, "a thread keeps its column of chunks");
        const int row0 = threadIdx.x / T::CHUNKS, chunk = threadIdx.x % T::CHUNKS;
        const Index line = (ALONG_K ? first : k0) + row0, at = (ALONG_K ? k0 : first) + chunk * CHUNK;
        const T_IN* from = x + line * ld + at;
        if (vector && first + SPAN <= span && k0 + BLOCK_K <= k) {
            #pragma unroll
            for (int u = 0; u < STEPS; ++u) {
                copy_chunk(tile + T::offset(row0 + u * ROWS, chunk), from + u * ROWS * ld, 16);
            }
            return;
        }
        const Index lines = ALONG_K ? span : k, length = ALONG_K ? k : span;
        const int inside = int(max(Index(0), min(Index(CHUNK), length - at)));
        #pragma unroll 1
        for (int u = 0; u < STEPS; ++u) {
            const int count = line + u * ROWS < lines ? inside : 0;
            char* to = tile + T::offset(row0 + u * ROWS, chunk);
            if (vector) {
                copy_chunk(to, count ? from + u * ROWS * ld : x, count * int(sizeof(T_IN)));
            } else {
                Run<T_IN, CHUNK> run;
                run.load(from + u * ROWS * ld, false, count);
                run.store(reinterpret_cast<T_IN*>(to), true, CHUNK);
            }
        }
    }
};

// The copies of tiles into the ring of stages.
struct Feed {
    Source<!TRANS_A, BLOCK_M> a;
    Source<TRANS_B, BLOCK_N> b;
    char* stages;
    int tile, tiles;  // the next tile to copy, and the number of tiles

    __device__ __forceinline__ void start() {
        #pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) next();
    }

    __device__ __forceinline__ void next() {
        if (tile < tiles) {
            char* const stage = stages + tile % STAGES * STAGE_BYTES;
            a.copy(stage, Index(tile) * BLOCK_K);
            b.copy(stage + BYTES_A, Index(tile) * BLOCK_K);
        }
        commit_copies();  // also without a tile, because `arrived` counts groups
        ++tile;
    }

    // Waits for the next tile in order, and for the other warps.
    __device__ __forceinline__ void arrived() {
        wait_for_groups<STAGES - 2>();
        __syncthreads();
    }
};

// Loads word `word` of slice `slice` in row (column) i of the operand.
template <typename T, bool ALONG_K>
__device__ __forceinline__ void load_word(T_IN (&x)[WORD], const char* tile, int i, int slice, int word) {
    const int q = (slice * SLICE_WORDS + word) * WORD;
    if (ALONG_K) {
        memcpy(x, __builtin_assume_aligned(tile + T::entry(i, q), WORD * sizeof(T_IN)), WORD * sizeof(T_IN));
    } else {
        #pragma unroll
        for (int e = 0; e < WORD; ++e) x[e] = *reinterpret_cast<const T_IN*>(tile + T::entry(i, q + e));
    }
}

// Loads the fragment of 16 rows of op(A) from row i0 on, or two fragments of 8 columns of op(B).
// The four blocks of load_blocks.cuh are, for A, (rows 0, words 0), (rows 8, words 0), (0, 4), (8, 4); for B
// (columns 0, words 0), (0, 4), (8, 0), (8, 4).
template <typename T, bool ALONG_K, bool IS_A>
__device__ __forceinline__ void load_fragment(unsigned (&r)[4], const char* tile, int i0, int slice) {
    const int lane = threadIdx.x % WARP, row = lane % 8, low = lane >> 3 & 1, high = lane >> 4;
    const int across = 8 * (IS_A ? low : high), half = IS_A ? high : low;  // along m or n; along k
    if constexpr (ALONG_K) {
        load_blocks<false>(r, tile + T::offset(i0 + across + row, 2 * slice + half));
    } else if constexpr (WORD == 2) {
        load_blocks<true>(r, tile + T::offset(16 * slice + 8 * half + row, (i0 + across) / 8));
    } else {
        const int g = lane / 4, t = lane % 4;
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            T_IN x[WORD];
            const int shift = IS_A ? e % 2 : e / 2, word = t + 4 * (IS_A ? e / 2 : e % 2);
            load_word<T, ALONG_K>(x, tile, i0 + 8 * shift + g, slice, word);
            memcpy(&r[e], x, 4);
        }
    }
}
