// Which entries of a result a lane of gemm_batched.cu holds, and whether a warp gathers them in shared memory.
#pragma once

#include "batched/batched_operand.cuh"

constexpr int OUT_SIZE = KIND == KIND_FP32 || KIND == KIND_INT32 ? 4 : 2;
// If ldmatrix cannot load B, the first of two tiles takes the even columns and the second the odd ones, so that a lane
// holds 4 neighbours of a row.
constexpr bool IN_TURN = TILES == 2 && !OperandB::BLOCKS;
// Otherwise a lane holds 2 neighbours in each tile.  If entries have 2 bytes or rows are long, lanes exchange entries,
// so that each lane holds 4 neighbours.
constexpr bool TRADED = TILES == 2 && !IN_TURN && DENSE && N % 8 == 0 && (OUT_SIZE == 2 || N >= 32);
constexpr int RUN = IN_TURN || TRADED ? 4 : 2;
constexpr bool IN_RUNS = DENSE && N % RUN == 0, GATHERED = DENSE && (!IN_RUNS || BULK);
// A warp gathers its rows of one result or, if TWO, all rows of two results.  Their addresses in shared and in global
// memory are equal modulo 16.
constexpr int GATHERED_ROWS = TWO ? 2 * M : M < 16 * HEIGHT ? M : 16 * HEIGHT;
static_assert(!BULK || (DENSE && M * N * OUT_SIZE % 16 == 0), "whole words are copied");
constexpr int GATHERED_BYTES = GATHERED ? ((GATHERED_ROWS * N * OUT_SIZE + 15) & ~15) + 16 : 0;
// SHARED_BYTES is the size that the host has computed; a launch may be given more.
static_assert(
    KEPT_A + KEPT_B + STAGES * STAGE_BYTES + WARPS * GATHERED_BYTES == SHARED_BYTES,
    "shared memory as the host computed it"
);
