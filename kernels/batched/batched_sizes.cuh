// The sizes of gemm_batched.cu: of a product, and of the tasks of a warp.
#pragma once

#include "gemm/gemm.cuh"

constexpr int M = SIZE_M, N = SIZE_N, K = SIZE_K;
constexpr int WARPS = THREADS / WARP;
constexpr bool SCALED = SAME<T_IN, float>;
static_assert(SCALED || (SAME<T_IN, T_LOW> && REFINE == 0), "only FP32 operands are rounded");
static_assert(M >= 1 && M <= 64 && N >= 1 && N <= 64 && K >= 1 && K <= 64, "small products");
using Acc = typename Accumulator<T_LOW>::type;
static_assert(!BRIEF || STAGES == 1, "a block that ends has nothing to copy ahead");
constexpr int WORD = PER_WORD<T_LOW>, SIZE = sizeof(T_IN);
constexpr int SLICES = (K + SLICE_WORDS * WORD - 1) / (SLICE_WORDS * WORD);
constexpr bool TWO = M <= 8 && K <= 4 * WORD;             // two products at a time
constexpr int STRIPS = TWO ? 1 : (M + 15) / 16;
constexpr int PARTS = (STRIPS + HEIGHT - 1) / HEIGHT;      // tasks of a product
constexpr int TASKS = TWO ? (COUNT + 1) / 2 : COUNT * PARTS;
constexpr int TILES = N > 8 ? 2 : 1;                       // of 8 columns, multiplied together
constexpr int COLS = 8 * TILES, STEPS = (N + COLS - 1) / COLS;  // a task takes COLS columns of B in each step
constexpr int STEPS_AT_ONCE = SCALED || ADDEND || HEIGHT > 1 ? 1 : 2;
constexpr int LINES_B = TWO ? 2 : 1;                       // columns of which a lane has entries in a fragment of B
