// The products of a warp of gemm_wmma.cu with FP32 operands that a block splits for a 16-bit format.
#pragma once

#include "gemm/wmma_tile.cuh"

// A tile of hi or lo; it has half the bytes of the FP32 tile.
template <bool ALONG_K>
struct PartTile {
    static constexpr int BYTES = ALONG_K ? BLOCK_K * 2 : BLOCK_M * 2;

    __device__ __forceinline__ static unsigned offset(int row, int chunk) {
        return unsigned(row) * BYTES + ((chunk ^ (ALONG_K ? row >> 1 & 3 : row & 7)) << 4);
    }
};

// The part of an FP32 operand that a thread splits: RUNS_HELD runs of four entries of a row, in registers.
constexpr int RUNS_HELD = 4;
template <typename T, bool ALONG_K, bool SPLIT>
struct Splitter {
    static constexpr int ACROSS = (ALONG_K ? BLOCK_K : BLOCK_M) / 4, ROWS = THREADS / ACROSS;
    Source<ALONG_K, BLOCK_M> source;
    const T* next;           // this thread's first run of the next tile
    int whole_tiles;         // number of tiles, from the first on, that can be read 16 bytes at a time
    Run<T, 4> in[RUNS_HELD];
    Scale<T_LOW> scale[4];   // of the rows, or of the columns, of this thread
    static_assert((ALONG_K ? BLOCK_M : BLOCK_K) == RUNS_HELD * ROWS, "a tile is what the threads hold");

    __device__ __forceinline__ Splitter(const Source<ALONG_K, BLOCK_M>& source, const unsigned* top)
        : source(source),
          next(source.x + ((ALONG_K ? source.first : 0) + row(0)) * source.ld + (ALONG_K ? 0 : source.first) + col()),
          whole_tiles(source.vector && source.first + BLOCK_M <= source.span ? int(source.k / BLOCK_K) : 0) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const Index i = source.first + (ALONG_K ? row(e) : col() + e);
            scale[e] = Scale<T_LOW>(i < source.span ? top[i] : 0);
        }
    }

    __device__ __forceinline__ static int col() { return threadIdx.x % ACROSS * 4; }
    __device__ __forceinline__ static int row(int u) { return threadIdx.x / ACROSS + u * ROWS; }

    // Run u of a tile; zero outside the matrix.
    __device__ __forceinline__ void load(int u, int tile) {
        if (tile < whole_tiles) {
            in[u].load(next + u * ROWS * source.ld, true, 4);
            return;
        }
        const Index k0 = Index(tile) * BLOCK_K;
        const Index line = (ALONG_K ? source.first : k0) + row(u), at = (ALONG_K ? k0 : source.first) + col();
        const Index lines = ALONG_K ? source.span : source.k, length = ALONG_K ? source.k : source.span;
        in[u].load(source.x + line * source.ld + at, false, line < lines ? length - at : 0);
    }

    __device__ __forceinline__ void advance() { next += ALONG_K ? BLOCK_K : BLOCK_K * source.ld; }

    __device__ __forceinline__ void store(int u, char* hi, char* lo) const {
        unsigned high[2], low[2];
        #pragma unroll
        for (int w = 0; w < 2; ++w) {
            const int e = 2 * w;
            const float x[2] = {scale[ALONG_K ? u : e](in[u].at[e]), scale[ALONG_K ? u : e + 1](in[u].at[e + 1])};
            const Parts parts = parts_of<T_LOW, SPLIT>(x, 1.0f);
            high[w] = parts.hi;
            low[w] = parts.lo;
        }
        const unsigned to = PartTile<ALONG_K>::offset(row(u), col() / 8) + col() % 8 * 2;
        *reinterpret_cast<uint2*>(hi + to) = make_uint2(high[0], high[1]);
        if (SPLIT) *reinterpret_cast<uint2*>(lo + to) = make_uint2(low[0], low[1]);
    }
};

// FP32 operands for a 16-bit format.  While tile s is multiplied, tile s + 1 is split and stored to shared memory, and
// tile s + 2 is loaded into the registers that held tile s + 1.  A thread stores and loads one run after
// every few products, so that the tensor cores and the other units work at the same time.
template <typename T>
struct Split {
    static constexpr int PART_BYTES = BLOCK_M * BLOCK_K * 2, BUFFER_BYTES = 4 * PART_BYTES;
    static_assert(SLICES * TILES_M * sizeof(T) == 2 * RUNS_HELD * sizeof(T_IN), "a run for each row of fragments");
    Acc sum[TILES_M][TILES_N][4];
    Splitter<T, !TRANS_A, SPLITS_A<REFINE>> a;
    Splitter<T, TRANS_B, SPLITS_B<REFINE>> b;

    __device__ __forceinline__ Split(const Feed& feed, const unsigned* top_a, const unsigned* top_b, int, int)
        : sum{}, a(feed.a, top_a), b(feed.b, top_b) {}

    // Run u, counted over both operands: first the runs of op(A), then those of op(B).
    __device__ __forceinline__ void load(int u, int tile) {
        if (u < RUNS_HELD) a.load(u, tile);
        else b.load(u - RUNS_HELD, tile);
    }
    __device__ __forceinline__ void store(int u, char* buffer) const {
        if (u < RUNS_HELD) a.store(u, buffer, buffer + PART_BYTES);
        else b.store(u - RUNS_HELD, buffer + 2 * PART_BYTES, buffer + 3 * PART_BYTES);
    }

    // Fragments of op(A): 16 rows and a slice.
    __device__ __forceinline__ static void load_row(
        unsigned (&hi)[4], unsigned (&lo)[4], const char* buffer, int row0, int step
    ) {
        using TileA = PartTile<!TRANS_A>;
        const int row = row0 + 16 * (step % TILES_M), slice = step / TILES_M;
        load_fragment<TileA, !TRANS_A, true>(hi, buffer, row, slice);
        if (SPLITS_A<REFINE>) load_fragment<TileA, !TRANS_A, true>(lo, buffer + PART_BYTES, row, slice);
    }

    __device__ __forceinline__ void multiply_row(
        Acc (&part)[TILES_N][4], const unsigned (&a_hi)[4], const unsigned (&a_lo)[4],
        const unsigned (&b_hi)[TILES_N / 2][4], const unsigned (&b_lo)[TILES_N / 2][4]
    ) {
        // All columns of one term, then the next, so that no product waits for the sum of the one before.
        #pragma unroll
        for (int term = 0; term < TERMS; ++term) {
            if (!has_term<REFINE>(term)) continue;
            #pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const unsigned (&pair)[4] = (term % 2 ? b_hi : b_lo)[j / 2];
                const unsigned word[2] = {pair[j % 2 * 2], pair[j % 2 * 2 + 1]};
                mma(T_LOW{}, part[j], term < 2 ? a_lo : a_hi, word);
            }
        }
    }

    // Multiplies tile `tile`, which is in `buffer`, and stores the next one to `other`.
    __device__ __forceinline__ void multiply(const char* buffer, char* other, int tile, int row0, int col0) {
        using TileB = PartTile<TRANS_B>;
        Acc part[TILES_M][TILES_N][4] = {};
        unsigned a_hi[2][4], a_lo[2][4] = {};
        load_row(a_hi[0], a_lo[0], buffer, row0, 0);
        #pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            unsigned b_hi[TILES_N / 2][4], b_lo[TILES_N / 2][4] = {};
            #pragma unroll
            for (int j = 0; j < TILES_N / 2; ++j) {
                const char* const hi = buffer + 2 * PART_BYTES;
                load_fragment<TileB, TRANS_B, false>(b_hi[j], hi, col0 + 16 * j, slice);
                if (!SPLITS_B<REFINE>) continue;
                load_fragment<TileB, TRANS_B, false>(b_lo[j], hi + PART_BYTES, col0 + 16 * j, slice);
            }
            #pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
                const int step = slice * TILES_M + i;
                const int now = step % 2, then = 1 - now;
                if (step + 1 < SLICES * TILES_M) load_row(a_hi[then], a_lo[then], buffer, row0, step + 1);
                multiply_row(part[i], a_hi[now], a_lo[now], b_hi, b_lo);
                store(step, other);
                load(step, tile + 2);
                if (slice < SLICES - 1) continue;
                #pragma unroll
                for (int e = 0; e < 4 * TILES_N; ++e) sum[i][e / 4][e % 4] += part[i][e / 4][e % 4];
            }
        }
    }

    __device__ __forceinline__ void advance() {
        a.advance();
        b.advance();
    }

    __device__ __forceinline__ void run(char* buffers, Feed feed, int row0, int col0) {
        #pragma unroll
        for (int u = 0; u < 2 * RUNS_HELD; ++u) {
            load(u, 0);
            store(u, buffers);
        }
        advance();
        #pragma unroll
        for (int u = 0; u < 2 * RUNS_HELD; ++u) load(u, 1);
        advance();
        #pragma unroll 1
        for (int s = 0; s < feed.tiles; ++s) {
            __syncthreads();  // tile s is complete, and all warps have finished tile s - 1
            multiply(buffers + s % 2 * BUFFER_BYTES, buffers + (s + 1) % 2 * BUFFER_BYTES, s, row0, col0);
            advance();
        }
    }
};
