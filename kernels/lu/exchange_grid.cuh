// The blocks of a cooperative grid exchange their best rows: each block writes its row and then a stamp to global
// memory, and every block reads all stamps.  This is for devices without clusters, and for strips with more rows than a
// cluster holds.
#pragma once

#include "lu/strip_rows.cuh"

constexpr int SOURCES = 256, NO_CODE = 0x7fffffff;

// The best of some rows for a pivot: the bits of |a_ij|, and the code place * SOURCES + s, where s is the warp or block
// that holds the row.  The largest size wins; of equal ones the smallest code, which has the lowest place.
struct __align__(8) Candidate {
    int size, code;
    __device__ __forceinline__ int place() const { return code >> 8; }
    __device__ __forceinline__ int source() const { return code & (SOURCES - 1); }
};

// The row of a candidate: its entries in the remaining columns of the leaf, and its number in `a`.
struct __align__(16) Message {
    int home, unused[3];
    float row[WIDTH];
};
constexpr int MESSAGE_WORDS = sizeof(Message) / 16;

struct __align__(16) Exchange {
    Message row_of_warp[2][WARPS], pivot_row[2];
    Candidate best_of_warp[2][WARPS], pivot[2];
};

// The memory of the exchange, in global memory; all zero before the launch.
constexpr int MAX_BLOCKS = SOURCES;
struct __align__(16) Board {
    Message row[2][MAX_BLOCKS];
    Candidate best[2][MAX_BLOCKS];
    float sums[MAX_BLOCKS][STRIP];
    unsigned stamp[MAX_BLOCKS];  // columns the block has published
    unsigned arrived;            // arrivals at all barriers so far
};

// After the wait, a block sees all writes that the other blocks made before they arrived.
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

// Publishes a block's sum for a column.  After the next barrier, each block adds up the sums (sum_of_blocks).
__device__ __forceinline__ void share_sum(const Team& team, float (*)[STRIP], int column, float sum) {
    team.board->sums[team.rank][column] = sum;
}
__device__ __forceinline__ float sum_of_blocks(const Team& team, const float (*)[STRIP], int column) {
    float total = 0;
    for (int block = 0; block < block_count(); ++block) total += __ldcg(&team.board->sums[block][column]);
    return total;
}

__device__ __forceinline__ void set_up(Exchange&) {}

// The best of a few candidates in shared memory; every thread reads all.
template <int N>
__device__ __forceinline__ Candidate best_of(const Candidate (&all)[N]) {
    Candidate c[N];
    #pragma unroll
    for (int i = 0; i < N; i += 2) {
        const int4 v = *reinterpret_cast<const int4*>(&all[i]);
        c[i] = {v.x, v.y}, c[i + 1] = {v.z, v.w};
    }
    Candidate best = {NO_SIZE, NO_CODE};
    #pragma unroll
    for (int i = 0; i < N; ++i) best.size = max(best.size, c[i].size);
    #pragma unroll
    for (int i = 0; i < N; ++i) best.code = min(best.code, c[i].size == best.size ? c[i].code : NO_CODE);
    return best;
}

// Publishes a row and its candidate, then the stamp.  One warp writes them all; a __syncwarp and a
// fence keep the order.
__device__ __forceinline__ void send(
    const Team& team, const Message& row, const Candidate& best, int words, int j, int column
) {
    Board& board = *team.board;
    if (threadIdx.x >= WARP) return;
    if (int(threadIdx.x) < words) {
        reinterpret_cast<float4*>(&board.row[j & 1][team.rank])[threadIdx.x] =
            reinterpret_cast<const float4*>(&row)[threadIdx.x];
    }
    if (threadIdx.x == WARP - 1) board.best[j & 1][team.rank] = best;
    __syncwarp();
    __threadfence();  // the writes of all lanes become visible before the stamp
    if (threadIdx.x == 0) *reinterpret_cast<volatile unsigned*>(&board.stamp[team.rank]) = column + 1;
}

// Waits until all blocks have published their candidates for a column, and returns the best.
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
        __syncwarp();  // the lanes read rows whose stamps other lanes have seen
        const int top = largest_of_warp(size);
        const int low = smallest_of_warp(size == top ? code : NO_CODE);
        if (lane < MESSAGE_WORDS) {
            reinterpret_cast<float4*>(&x.pivot_row[parity])[lane] =
                __ldcg(reinterpret_cast<const float4*>(&board.row[parity][low & (SOURCES - 1)]) + lane);
        }
        if (lane == 0) x.pivot[parity] = {top, low};
    }
    __syncthreads();
    return x.pivot[parity];
}

// The best of a thread's rows, and whether it is the best of its warp.
struct Search : Best { bool of_warp; };

__device__ __forceinline__ Search search(const Rows& rows, const Open& open) {
    const Best best = best_of_rows(rows, open);
    Vote top = vote(best.size);
    while (top.is_tied()) top.break_tie(best.place);
    return {best, top.mine};
}

// Collects the best rows of the warps, publishes the best of them, and returns the pivot.  Only `words` words of a
// message are used.
__device__ __forceinline__ Candidate find_pivot(
    Exchange& x, const Team& team, const Rows& rows, const Search& best, int words, int j, int column
) {
    const int parity = j & 1, warp = threadIdx.x / WARP;
    if (best.of_warp) {
        Message& mine = x.row_of_warp[parity][warp];
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (i == best.slot) {
                #pragma unroll
                for (int q = 0; q < WIDTH; ++q) mine.row[q] = rows.at[i][q];
            }
        }
        mine.home = int(row_of(best.slot));
        x.best_of_warp[parity][warp] = {best.size, best.place * SOURCES + warp};
    }
    __syncthreads();
    const Candidate winner = best_of(x.best_of_warp[parity]);
    const Candidate mine = {winner.size, winner.place() * SOURCES + team.rank};
    send(team, x.row_of_warp[parity][winner.source()], mine, words, j, column);
    return receive(x, team, j, column);
}

__device__ __forceinline__ void prepare(Exchange&) {}

__device__ __forceinline__ Search begin(Exchange&, const Team&, const Rows& rows, int first, int) {
    return search(rows, open_rows(rows, first));
}

// Eliminates column `column` of the strip, at[.][0] of the rows, and moves the others one place to the left: at[.][q]
// becomes the updated at[.][q + 1].  Stores the column as column j in `columns`; `best` becomes the best row for the
// next column.
__device__ __forceinline__ Pivot eliminate(
    Exchange& x, const Team& team, Rows& rows, Columns columns, Search& best, int j, int, int column
) {
    const Candidate pivot = find_pivot(x, team, rows, best, MESSAGE_WORDS - j / 4, j, column);
    const Message& message = x.pivot_row[j & 1];
    float u[WIDTH];
    #pragma unroll
    for (int q = 0; q < WIDTH; q += 4) {
        const float4 v = *reinterpret_cast<const float4*>(message.row + q);
        u[q] = v.x, u[q + 1] = v.y, u[q + 2] = v.z, u[q + 3] = v.w;
    }
    const float scale = scale_of(pivot.size), reciprocal = reciprocal_of(scale * u[0]);
    float l[ROWS];
    Open open;
    // The next column comes first, so that its search overlaps the rest of the update.
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        float kept;
        const float scaled = scale * rows.at[i][0];
        l[i] = divide(rows, i, pivot.size, pivot.place(), scaled, reciprocal, column, kept, open.row[i]);
        columns[i * THREADS + threadIdx.x][j] = kept;
        rows.at[i][0] = fmaf(-l[i], u[1], rows.at[i][1]);
    }
    best = search(rows, open);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        #pragma unroll
        for (int q = 1; q + 1 < WIDTH; ++q) rows.at[i][q] = fmaf(-l[i], u[q + 1], rows.at[i][q + 1]);
        rows.at[i][WIDTH - 1] = 0;
    }
    return {pivot.size, pivot.place(), message.home};
}
