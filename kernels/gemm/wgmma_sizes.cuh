// The sizes of gemm_wgmma.cu: threads, tiles, stages and boxes.
#pragma once

#include "gemm/gemm.cuh"

static_assert(sizeof(T_LOW) == 2, "wgmma can read transposed operands only in 16-bit formats");

constexpr int CONSUMERS = 2;                       // warpgroups that multiply, 64 rows each
constexpr int GROUP_THREADS = 128, WARPS_IN_GROUP = GROUP_THREADS / WARP;
constexpr int THREADS = (1 + CONSUMERS) * GROUP_THREADS;
constexpr int PANEL = 64;                          // rows (columns) of a box of the copy engine, and its length along k
constexpr int PANEL_BYTES = PANEL * PANEL * 2;
constexpr int BLOCK_M = CONSUMERS * PANEL, BLOCK_N = REFINE ? 128 : 256, BLOCK_K = PANEL;
constexpr int PANELS_A = BLOCK_M / PANEL, PANELS_B = BLOCK_N / PANEL;
constexpr int PARTS_A = SPLITS_A<REFINE> ? 2 : 1, PARTS_B = SPLITS_B<REFINE> ? 2 : 1;
constexpr int BYTES_A = PANELS_A * PANEL_BYTES, BYTES_B = PANELS_B * PANEL_BYTES;
constexpr int STAGE_BYTES = PARTS_A * BYTES_A + PARTS_B * BYTES_B;
constexpr int STAGES = 192 * 1024 / STAGE_BYTES;
// The positions of the two tiles of a cluster.  With one product, one tile is above the other: they share the tile of
// op(B), which is larger than that of op(A).  With several products, the tiles are side by side: they share the tile of
// op(A).  This took 40.0 ms instead of 41.5 (H200, REFINE 3, n = 16384; one comparison, of which no results file is
// kept).  REFINE 2, where the tile of op(B) is larger, was not compared.
constexpr int ACROSS = REFINE ? CLUSTER : 1, DOWN = CLUSTER / ACROSS;
constexpr int SUMS = BLOCK_N / 2;                  // FP32 registers of one thread for 64 x BLOCK_N
// Height of a band, in tiles of BLOCK_M rows (see TileOrder):
//   k <= 2048  32 tiles, 4096 rows.  Each band reads all of op(B) again, because C has displaced op(B) from the cache.
//              So bands are high; their rows of op(A), 16 KB for each k if split, still stay in the cache.
//   k > 4096   12 tiles.  The band's rows of op(A) do not stay in the cache, and C is small compared with the operands.
//              So the tiles that are computed at the same time should be about as many from top to bottom as from left
//              to right: 12 x 11 on 132 multiprocessors.
//   between    8 tiles.  A comparison at n = k = 4096 favoured 8 for three products, and showed no difference for one.
constexpr int HIGH_BAND = 32, MEDIUM_BAND = 8, LOW_BAND = 12, SHORT_SUM = 2048, MEDIUM_SUM = 4096;
__device__ __forceinline__ constexpr int band_for(Index k) {
    return k <= SHORT_SUM ? HIGH_BAND : k <= MEDIUM_SUM ? MEDIUM_BAND : LOW_BAND;
}
constexpr int BOX_ROWS = 16, BOX_COLS = 32;        // results that a warp hands to the copy engine at a time
constexpr int BOX_BYTES = BOX_ROWS * BOX_COLS * 4, BOXES = 2;
constexpr int BY_HAND = 0, STORED = 1, ADDED = 2, PASSING = 3;  // values of `how`
constexpr int NO_TILE = -1;
static_assert(STAGES >= 3, "copies run ahead");
static_assert(SUMS / 16 % BOXES == 0, "boxes are used in turn");
