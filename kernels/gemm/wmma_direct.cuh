// The products of a warp of gemm_wmma.cu whose operands are multiplied as they are.
#pragma once

#include "gemm/wmma_tile.cuh"

// Operands in their own format.  The fragments of a slice are loaded while the slice before is multiplied.
struct Direct {
    Acc sum[TILES_M][TILES_N][4];
    unsigned a[2][TILES_M][4], b[2][TILES_N / 2][4];

    __device__ __forceinline__ Direct(const Feed&, const unsigned*, const unsigned*, int, int) : sum{} {}

    __device__ __forceinline__ void load(const char* stage, int row0, int col0, int slice) {
        #pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            load_fragment<Tile<!TRANS_A, BLOCK_M>, !TRANS_A, true>(a[slice % 2][i], stage, row0 + 16 * i, slice);
        }
        #pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) {
            using T = Tile<TRANS_B, BLOCK_N>;
            load_fragment<T, TRANS_B, false>(b[slice % 2][j], stage + BYTES_A, col0 + 16 * j, slice);
        }
    }

    // Columns are taken forwards and backwards in turn, so that the next row begins with the fragment used last.
    __device__ __forceinline__ void multiply(int slice) {
        #pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            #pragma unroll
            for (int step = 0; step < TILES_N; ++step) {
                const int j = i % 2 ? TILES_N - 1 - step : step;
                const unsigned (&pair)[4] = b[slice % 2][j / 2];
                const unsigned part[2] = {pair[j % 2 * 2], pair[j % 2 * 2 + 1]};
                mma(T_LOW{}, sum[i][j], a[slice % 2][i], part);
            }
        }
    }

    __device__ __forceinline__ void run(char* stages, Feed feed, int row0, int col0) {
        static_assert(SLICES % 2 == 0, "the first slice of every tile goes to the same registers");
        feed.start();
        feed.arrived();
        load(stages, row0, col0, 0);
        for (int s = 0; s < feed.tiles; ++s) {
            const char* const stage = stages + s % STAGES * STAGE_BYTES;
            const char* const next = stages + (s + 1) % STAGES * STAGE_BYTES;
            #pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) {
                if (slice == 0) feed.next();  // overwrites tile s - 1
                if (slice + 1 < SLICES) {
                    load(stage, row0, col0, slice + 1);
                } else {
                    feed.arrived();  // tile s + 1, if it exists, has arrived, and all warps have read tile s
                    load(next, row0, col0, 0);
                }
                multiply(slice);
            }
        }
    }
};
