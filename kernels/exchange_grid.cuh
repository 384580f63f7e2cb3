// How the blocks of a cooperative grid exchange their best rows: through global memory, where a block writes its
// message, then a flag, and every block reads all flags.  For devices without clusters and for panels that no
// cluster holds; a column takes two trips through the second-level cache.
#pragma once

struct __align__(16) Exchange {
    Message row_of_warp[2][WARPS], pivot_row[2];
    Candidate best_of_warp[2][WARPS], pivot[2];
};

// In global memory; all zero before the launch.
constexpr int MAX_BLOCKS = SOURCES;
struct __align__(16) Board {
    Message row[2][MAX_BLOCKS];
    Candidate best[2][MAX_BLOCKS];
    unsigned stamp[MAX_BLOCKS];  // columns the block has published
    unsigned arrived;            // at the barriers, counted up from one to the next
};

__device__ __forceinline__ int block_count() { return gridDim.x; }

// What all blocks did before they arrived is seen by those that have waited.
__device__ __forceinline__ void arrive_all(Team& team) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&team.board->arrived, 1u);
    }
}
__device__ __forceinline__ void wait_all(Team& team) {
    team.expected += gridDim.x;
    if (threadIdx.x == 0) {
        while (*reinterpret_cast<volatile unsigned*>(&team.board->arrived) < team.expected) {}
        __threadfence();
    }
    __syncthreads();
}

__device__ __forceinline__ void set_up(Exchange&) {}

__device__ __forceinline__ void expect(Exchange&, int, int) {}

// Publishes a row and its candidate, then their stamp; one warp does, so that they stay in order.
__device__ __forceinline__ void send(
    Exchange&, const Team& team, const Message& row, const Candidate& best, int words, int j, int column
) {
    Board& board = *team.board;
    if (threadIdx.x >= WARP) return;
    if (int(threadIdx.x) < words) {
        reinterpret_cast<float4*>(&board.row[j & 1][team.rank])[threadIdx.x] =
            reinterpret_cast<const float4*>(&row)[threadIdx.x];
    }
    if (threadIdx.x == WARP - 1) board.best[j & 1][team.rank] = best;
    __syncwarp();
    __threadfence();  // by the lane that stamps, after all have written
    if (threadIdx.x == 0) *reinterpret_cast<volatile unsigned*>(&board.stamp[team.rank]) = column + 1;
}

// Waits for what all blocks publish about a column and returns the best.
__device__ __forceinline__ Candidate receive(Exchange& x, const Team& team, int j, int column) {
    Board& board = *team.board;
    const int parity = j & 1, lane = threadIdx.x % WARP, blocks = gridDim.x;
    if (threadIdx.x < WARP) {
        int size = NO_SIZE, code = NO_CODE;
        for (int b = lane; b < blocks; b += WARP) {
            while (int(*reinterpret_cast<volatile unsigned*>(&board.stamp[b])) <= column) {}
            __threadfence();
            const int2 c = __ldcg(reinterpret_cast<const int2*>(&board.best[parity][b]));
            if (c.x > size || (c.x == size && c.y < code)) size = c.x, code = c.y;
        }
        const int top = largest_of_warp(size);
        const int low = -largest_of_warp(size == top ? -code : -NO_CODE);
        if (lane < MESSAGE_WORDS) {
            reinterpret_cast<float4*>(&x.pivot_row[parity])[lane] =
                __ldcg(reinterpret_cast<const float4*>(&board.row[parity][low & (SOURCES - 1)]) + lane);
        }
        if (lane == 0) x.pivot[parity] = {top, low};
    }
    __syncthreads();
    return x.pivot[parity];
}

__device__ __forceinline__ const Message& message_of(const Exchange& x, const Candidate&, int j) {
    return x.pivot_row[j & 1];
}
