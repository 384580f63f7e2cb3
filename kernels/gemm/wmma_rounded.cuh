// The products of a warp of gemm_wmma.cu with FP32 operands that are rounded to TF32 in registers.
#pragma once

#include "gemm/wmma_tile.cuh"

// FP32 operands for TF32: scaled, rounded, and split if REFINE > 0, on the way from shared memory to the registers.
template <typename T>
struct Rounded {
    Acc sum[TILES_M][TILES_N][4];
    unsigned scale_a[TILES_M / 2], scale_b[TILES_N / 4];  // exponents, four to a register

    __device__ __forceinline__ Rounded(
        const Feed& feed, const unsigned* top_a, const unsigned* top_b, int row0, int col0
    ) : sum{}, scale_a{}, scale_b{} {
        const int g = threadIdx.x % WARP / 4;
        #pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i) {
            const Index row = feed.a.first + row0 + 8 * i + g;
            scale_a[i / 4] |= exponent(top_a, row, feed.a.span) << 8 * (i % 4);
        }
        #pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const Index col = feed.b.first + col0 + 8 * j + g;
            scale_b[j / 4] |= exponent(top_b, col, feed.b.span) << 8 * (j % 4);
        }
    }

    // The exponent of the scale as in the bits of an FP32 number, 127 for a scale of 1.
    __device__ __forceinline__ static unsigned exponent(const unsigned* top, Index i, Index count) {
        return 127 + (i < count ? fit<T_LOW>(top[i]) : 0);
    }

    __device__ __forceinline__ static float scale(const unsigned* exponents, int i) {
        return __uint_as_float((exponents[i / 4] >> 8 * (i % 4) & 0xff) << 23);
    }

    template <bool ALONG_K, bool SPLIT>
    __device__ __forceinline__ static Parts parts(const char* tile, int i, int slice, int word, float scale) {
        T x[WORD];
        load_word<Tile<ALONG_K, 128>, ALONG_K>(x, tile, i, slice, word);
        return parts_of<T_LOW, SPLIT>(x, scale);
    }

    __device__ __forceinline__ void multiply(const char* tile_a, const char* tile_b, int row0, int col0) {
        const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        #pragma unroll 1  // unrolled, it would not fit into 128 registers
        for (int slice = 0; slice < SLICES; ++slice) {
            unsigned b_hi[TILES_N][2], b_lo[TILES_N][2];
            #pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                #pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const Parts p = parts<TRANS_B, SPLITS_B<REFINE>>(
                        tile_b, col0 + 8 * j + g, slice, t + 4 * r, scale(scale_b, j));
                    b_hi[j][r] = p.hi;
                    b_lo[j][r] = p.lo;
                }
            }
            #pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
                unsigned a_hi[4], a_lo[4];
                #pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const Parts p = parts<!TRANS_A, SPLITS_A<REFINE>>(
                        tile_a, row0 + 16 * i + 8 * (r % 2) + g, slice, t + r / 2 * 4,
                        scale(scale_a, 2 * i + r % 2));
                    a_hi[r] = p.hi;
                    a_lo[r] = p.lo;
                }
                Acc part[TILES_N][4] = {};
                #pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    if (!has_term<REFINE>(term)) continue;
                    #pragma unroll
                    for (int j = 0; j < TILES_N; ++j) {
                        mma(T_LOW{}, REFINE ? part[j] : sum[i][j], term < 2 ? a_lo : a_hi, (term % 2 ? b_hi : b_lo)[j]);
                    }
                }
                #pragma unroll
                for (int e = 0; e < 4 * TILES_N; ++e) {
                    if (REFINE) sum[i][e / 4][e % 4] += part[e / 4][e % 4];
                }
            }
        }
    }

    __device__ __forceinline__ void run(char* stages, Feed feed, int row0, int col0) {
        feed.start();
        for (int s = 0; s < feed.tiles; ++s) {
            feed.arrived();  // tile s has arrived, and all warps have finished tile s - 1
            feed.next();
            const char* stage = stages + s % STAGES * STAGE_BYTES;
            multiply(stage, stage + BYTES_A, row0, col0);
        }
    }
};
