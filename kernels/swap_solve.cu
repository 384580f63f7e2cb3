// The swaps of a strip in the columns of its panel, and the substitution for U right of the strip.
//
//   a      FP32, from the strip's first row on, n columns, row-major, leading dimension lda.
//   stop   the strip's last column + 1; the columns from there on are solved for.
//   dst, src  int[2 w], as tcs_panel makes them: a[dst[i]] = a[src[i]], all reads before any write; entry i < w
//          brings the row that becomes row i.  Null: no row moves.
//   top    FP32 w x w, w <= 128, leading dimension ld_top, 16-byte rows: L11 in its unit lower triangle.  Rows
//          0 .. w - 1 of the columns from `stop` on become L11^-1 times what the swaps make them.
//
// Grid ceil(n / COLUMNS), block THREADS, dynamic shared memory 8 w COLUMNS bytes, half of it
// if no row moves.
// Rounding: fused multiply-adds in FP32, in the order of the substitution.

#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int COLUMNS = WARP;  // a lane to each
constexpr int TILE = 32;       // unknowns solved for at a time
constexpr int STRIDE = TILE + 4;
constexpr int MOST = 128;      // the widest strip

// The columns of L of a tile of unknowns, from the tile's diagonal block down.
struct Tile { float at[MOST][STRIDE]; };

__device__ __forceinline__ void load(Tile& tile, const float* __restrict__ top, Index ld_top, int first, int w) {
    constexpr int WORDS = TILE / 4;
    #pragma unroll 4
    for (int e = threadIdx.x; e < (w - first) * WORDS; e += THREADS) {
        const int i = e / WORDS, word = e % WORDS;
        if (first + 4 * word >= w) continue;
        reinterpret_cast<float4*>(tile.at[i])[word] =
            __ldg(reinterpret_cast<const float4*>(top + (first + i) * ld_top + first) + word);
    }
}

// x := L11^-1 x for the unknowns of a tile, a lane's column of `stage` to one thread.
__device__ __forceinline__ void substitute(float (*stage)[COLUMNS], const Tile& tile, int count, int lane) {
    float x[TILE];
    #pragma unroll
    for (int i = 0; i < TILE; ++i) x[i] = i < count ? stage[i][lane] : 0.0f;
    #pragma unroll
    for (int i = 1; i < TILE; ++i) {
        if (i >= count) continue;
        #pragma unroll
        for (int k = 0; k < i; ++k) x[i] = fmaf(-tile.at[i][k], x[k], x[i]);
        stage[i][lane] = x[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_swap_solve(
    float* a, Index lda, Index n, Index stop, const int* __restrict__ dst, const int* __restrict__ src,
    const float* __restrict__ top, Index ld_top, Index w
) {
    extern __shared__ float stage[][COLUMNS];
    __shared__ __align__(16) Tile tile;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, width = int(w);
    const Index column = Index(blockIdx.x) * COLUMNS + lane;
    const bool present = column < n, solved = column >= stop;
    a += column;
    const int count = dst ? 2 * width : width;  // of rows on the move
    #pragma unroll 8
    for (int i = warp; i < count; i += WARPS) {
        stage[i][lane] = present ? a[(src ? src[i] : i) * lda] : 0.0f;
    }
    if (Index(blockIdx.x + 1) * COLUMNS > stop) {
        for (int first = 0; first < width; first += TILE) {
            const int unknowns = min(TILE, width - first);
            __syncthreads();
            load(tile, top, ld_top, first, width);
            __syncthreads();
            if (warp == 0 && solved) substitute(stage + first, tile, unknowns, lane);
            __syncthreads();
            float x[TILE];
            #pragma unroll
            for (int k = 0; k < TILE; ++k) x[k] = k < unknowns ? stage[first + k][lane] : 0.0f;
            for (int i = TILE + warp; i < width - first; i += WARPS) {
                float value = stage[first + i][lane];
                #pragma unroll
                for (int k = 0; k < TILE; ++k) value = fmaf(-tile.at[i][k], x[k], value);
                if (solved) stage[first + i][lane] = value;
            }
        }
    }
    __syncthreads();
    #pragma unroll 8
    for (int i = warp; i < count; i += WARPS) {
        // A row that is both displaced and displacing is listed twice; only the first entry has been solved.
        const int to = dst ? dst[i] : i;
        if (present && (i < width || to >= width)) a[to * lda] = stage[i][lane];
    }
}
