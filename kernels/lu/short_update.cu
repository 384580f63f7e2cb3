// C -= L U for a few columns of C and a short U: three TF32 products; the FP32 operands are split in registers.
//
//   c      FP32 m x n, l  m x k, u  k x n: row-major, leading dimensions ldc, ldl, ldu, rows on 16-byte boundaries.
//
// Grid (ceil(m / ROWS), ceil(n / COLUMNS)); block THREADS, dynamic shared memory STAGES sizeof(Stage) bytes.
// Defines COLUMNS (64 or 96), those of a block.
//
// The next strip of a panel waits for this update, so it is a single launch.  The kernels for large products need more
// launches, which scale and split the operands and read L again, while another update uses the memory.  TF32 has nearly
// the range of FP32, so nothing is scaled here.  A block starts all its loads as early as shared memory allows.
//
// Rounding: hi is x rounded to TF32, ties away from zero; lo = x - hi loses at most its last bit.  The tensor cores add
// up 16 k at a time, the smallest products first; these sums are added to nearest in FP32 registers, and the total is
// subtracted from C once.  If an operand is Inf or NaN, so is the result, but it may be NaN where IEEE arithmetic gives
// Inf, or the reverse.

#include "common/async_copy.cuh"
#include "common/hi_lo.cuh"
#include "gemm/gemm.cuh"

constexpr int WARPS = 4, THREADS = WARPS * WARP, ROWS = 16 * WARPS;
constexpr int DEPTH = 32, STAGES = 4;  // columns of L in a stage, and stages
constexpr int HALF = 16;               // columns of L that are multiplied at a time; a lane reads four of them
constexpr int TILES = COLUMNS / 8, TOGETHER = 4;  // tiles of eight columns, and how many are multiplied together
static_assert(COLUMNS % 32 == 0 && TILES % TOGETHER == 0, "words that meet in no bank; whole groups");

// Words of 16 bytes of l, and columns of u, are permuted, so that the lanes of a warp read from different banks.
struct Stage {
    float l[ROWS][DEPTH], u[DEPTH][COLUMNS];

    __device__ __forceinline__ float* word_of_l(int row, int word) { return &l[row][4 * (word ^ (row & 1) << 2)]; }
    __device__ __forceinline__ float* column_of_u(int row, int column) { return &u[row][column ^ (row & 12) << 1]; }
};

// Copies four entries to shared memory.  Only the first `count` exist; the others become zero.
__device__ __forceinline__ void copy(float* to, const float* from, int count) {
    copy_16(to, from, 4 * max(0, min(4, count)));
}

// The part of L and U that a block needs: pointers to what this thread copies first, and how many rows, columns and k
// there are from there on.
constexpr int WORDS = 8, STEP = THREADS / WORDS;  // words of a row, and rows, that the block copies at a time
struct Operands {
    const float *l, *u;
    Index ldl, ldu;
    int rows, columns, depth;

    // Copies the next stage.
    __device__ __forceinline__ void copy_next(Stage& stage) {
        const int row = threadIdx.x / WORDS, word = threadIdx.x % WORDS;
        #pragma unroll
        for (int i = 0; i < DEPTH; i += STEP) {
            #pragma unroll
            for (int j = 0; j < COLUMNS; j += 4 * WORDS) {
                const int count = row + i < depth ? columns - j : 0;
                copy(stage.column_of_u(row + i, 4 * word + j), count > 0 ? u + i * ldu + j : u, count);
            }
        }
        #pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            const int count = i < rows ? depth - 4 * word : 0;
            copy(stage.word_of_l(row + i, word), count > 0 ? l + i * ldl : l, count);
        }
        l += DEPTH, u += DEPTH * ldu, depth -= DEPTH;
    }
};
static_assert(DEPTH == 4 * WORDS && ROWS % STEP == 0 && DEPTH % STEP == 0, "whole turns of all threads");

// sum += L U of half a stage.  A lane reads four consecutive entries of a row of L at once.  Therefore the sum runs
// over k in a permuted order: column 4 t + e of L is used as word t (e even) or t + 4 (e odd) of slice e / 2 of a
// fragment (gemm.cuh).
__device__ __forceinline__ void multiply(float (&sum)[TILES][4], Stage& stage, int half) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, row = threadIdx.x / WARP * 16 + g;
    unsigned hi[2][4], lo[2][4];
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(stage.word_of_l(row + 8 * i, half * HALF / 4 + t));
        split_to_tf32(x.x, hi[0][i], lo[0][i]), split_to_tf32(x.y, hi[0][i + 2], lo[0][i + 2]);
        split_to_tf32(x.z, hi[1][i], lo[1][i]), split_to_tf32(x.w, hi[1][i + 2], lo[1][i + 2]);
    }
    #pragma unroll
    for (int j0 = 0; j0 < TILES; j0 += TOGETHER) {
        float part[TOGETHER][4] = {};
        unsigned u_hi[TOGETHER][2][2], u_lo[TOGETHER][2][2];
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float x = *stage.column_of_u(half * HALF + 4 * t + e, 8 * (j0 + j) + g);
                split_to_tf32(x, u_hi[j][e / 2][e % 2], u_lo[j][e / 2][e % 2]);
            }
        }
        #pragma unroll
        for (int s = 0; s < 2; ++s) {
            #pragma unroll
            for (int j = 0; j < TOGETHER; ++j) mma(tf32{}, part[j], lo[s], u_hi[j][s]);
            #pragma unroll
            for (int j = 0; j < TOGETHER; ++j) mma(tf32{}, part[j], hi[s], u_lo[j][s]);
        }
        #pragma unroll
        for (int s = 0; s < 2; ++s) {
            #pragma unroll
            for (int j = 0; j < TOGETHER; ++j) mma(tf32{}, part[j], hi[s], u_hi[j][s]);
        }
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) sum[j0 + j][e] += part[j][e];
        }
    }
}

// Two neighbours in a row of C, of which `count` exist.
__device__ __forceinline__ float2 load_pair(const float* c, int count) {
    if (count >= 2) return *reinterpret_cast<const float2*>(c);
    return make_float2(count == 1 ? *c : 0.0f, 0.0f);
}
__device__ __forceinline__ void store_pair(float* c, float2 x, int count) {
    if (count >= 2) *reinterpret_cast<float2*>(c) = x;
    else if (count == 1) *c = x.x;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
tcs_short_update(
    float* __restrict__ c, Index ldc, const float* __restrict__ l, Index ldl, const float* __restrict__ u, Index ldu,
    Index m, Index n, Index k
) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    Stage* stages = reinterpret_cast<Stage*>(dynamic);
    const Index row0 = Index(blockIdx.x) * ROWS, column0 = Index(blockIdx.y) * COLUMNS;
    const int rows = int(min(Index(ROWS), m - row0)), columns = int(min(Index(COLUMNS), n - column0));
    const int own = threadIdx.x / WORDS, word = 4 * (threadIdx.x % WORDS);
    Operands operands = {
        l + (row0 + own) * ldl + word, u + own * ldu + column0 + word, ldl, ldu, rows - own, columns - word, int(k)
    };
    const int count = int((k + DEPTH - 1) / DEPTH);
    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < count) operands.copy_next(stages[s]);
        commit_copies();
    }

    const int lane = threadIdx.x % WARP;
    const int row = threadIdx.x / WARP * 16 + lane / 4, column = lane % 4 * 2;
    float* const mine = c + (row0 + row) * ldc + column0 + column;
    float2 old[2][TILES];
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        #pragma unroll
        for (int j = 0; j < TILES; ++j) {
            const int there = row + 8 * i < rows ? columns - column - 8 * j : 0;
            old[i][j] = load_pair(mine + 8 * i * ldc + 8 * j, there);
        }
    }

    float sum[TILES][4] = {};
    for (int s = 0; s < count; ++s) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // stage s has arrived, and all warps have finished with the one before
        if (s + STAGES - 1 < count) operands.copy_next(stages[(s + STAGES - 1) % STAGES]);
        commit_copies();
        #pragma unroll
        for (int half = 0; half < DEPTH / HALF; ++half) multiply(sum, stages[s % STAGES], half);
    }
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        #pragma unroll
        for (int j = 0; j < TILES; ++j) {
            const int there = row + 8 * i < rows ? columns - column - 8 * j : 0;
            const float2 x = {old[i][j].x - sum[j][2 * i], old[i][j].y - sum[j][2 * i + 1]};
            store_pair(mine + 8 * i * ldc + 8 * j, x, there);
        }
    }
}
