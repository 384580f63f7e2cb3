// The blocks of one thread-block cluster find a pivot and share its row.  They send their data by st.async into the
// shared memory of the other blocks, where barriers count the bytes that arrive.
//
// Each column needs one exchange, for which all warps wait.  A warp sends its candidate to all blocks as soon as its
// entries of this column are updated: 16 bytes that describe its best row.  Other work is done while candidates are
// under way.  The row itself follows later: in step j, which eliminates column j, the warp that holds the pivot row
// sends it, and all warps use it in step j + 1.  So the update of most columns is one pivot behind.  In step j only the
// columns j to j + 2 have the updates by all pivots before j; later columns still lack the update by pivot j - 1.
//
// Step j needs the entry of its pivot row in column j + 1 at once.  When the candidate was sent, this entry lacked the
// update by pivot j - 1.  Therefore a candidate has two more numbers: the entry without this update, and the multiplier
// of the update.
//
// No buffer is overwritten too early: a warp chooses pivot j only after every warp has sent its candidate for pivot j.
// A warp sends this candidate only after it has read the candidates for pivot j - 1 and the rows of the pivots up to
// j - 3.
#pragma once

#include "common/cluster.cuh"
#include "lu/strip_rows.cuh"

struct Board {};  // nothing in global memory

constexpr int CANDIDATES = BLOCKS * WARPS;
static_assert(CANDIDATES <= WARP || CANDIDATES % WARP == 0, "at most one for a lane, or the same number for all");

// The best row of a warp for pivot j: the numbers that all warps need if this row becomes the pivot row.
struct __align__(16) Candidate {
    float value;    // in column j
    unsigned code;  // place, then row of a, 16 bits each; of equal sizes the lowest code wins
    float next;     // in column j + 1, before the update by pivot j - 1
    float l;        // the multiplier of that update
};
constexpr unsigned NO_CODE = 0xffffffff;
static_assert(BLOCKS * THREADS * ROWS <= 0x8000, "rows and places fit in 16 bits; 0xffff is no place");

// The candidates of two columns, and the rows of three pivots, can be under way or in use at the same time.  There are
// four buffers for rows, so that the number of a buffer is j modulo 4.
constexpr int ROW_WORDS = WIDTH / 4, ROW_BUFFERS = 4;
static_assert(WARP % ROW_WORDS == 0, "every lane sends one word of a row");
static_assert(WIDTH % (2 * ROW_BUFFERS) == 0, "all barriers have the same parity at the start of every leaf");
struct __align__(16) Exchange {
    Candidate candidate[2][CANDIDATES];
    float row[ROW_BUFFERS][WIDTH + 4];  // of pivot j, columns j + 2 and on
    float row_of_warp[WARPS][WIDTH];    // of its candidate, columns j + 2 and on, before the update by pivot j - 1
    unsigned long long candidates_in[2], row_in[ROW_BUFFERS];
};

// The multipliers of the pivot whose row has not arrived yet: of a thread's rows, and of its warp's candidate.
struct Search { float l[ROWS], l_of_warp; };

__device__ __forceinline__ void arrive_all(Team&) { arrive_in_cluster(); }
__device__ __forceinline__ void wait_all(Team&) { wait_in_cluster(); }

__device__ __forceinline__ void set_up(Exchange& x) {
    if (threadIdx.x < 2) set_up_barrier(x.candidates_in[threadIdx.x]);
    if (threadIdx.x < ROW_BUFFERS) set_up_barrier(x.row_in[threadIdx.x]);
}

// Sends a block's sum for a column to all blocks.  After the next barrier, each block adds up the sums (sum_of_blocks).
__device__ __forceinline__ void share_sum(const Team& team, float (*sums)[STRIP], int column, float sum) {
    #pragma unroll
    for (int block = 0; block < BLOCKS; ++block) store_to(&sums[team.rank][column], block, __float_as_uint(sum));
}
__device__ __forceinline__ float sum_of_blocks(const Team&, const float (*sums)[STRIP], int column) {
    float total = 0;
    #pragma unroll
    for (int block = 0; block < BLOCKS; ++block) total += sums[block][column];
    return total;
}

// The number of a warp in the cluster, and of the warp that holds a row.
__device__ __forceinline__ int warp_in(const Team& team) { return team.rank * WARPS + threadIdx.x / WARP; }
__device__ __forceinline__ int warp_of_row(int row) { return row / WARP % CANDIDATES; }

// The number of words of row j that are sent: from column j + 2 of a leaf of w columns on; 0 for the last two rows.
__device__ __forceinline__ int words_of(int j, int w) { return unsigned(w + 1 - j) / 4; }

__device__ __forceinline__ int buffer_of(int j) { return j & (ROW_BUFFERS - 1); }

// The mailbox to which a lane sends its warp's candidate for pivot j.
__device__ __forceinline__ Mailbox candidate_mailbox(const Exchange& x, const Team& team, int j) {
    return mailbox_in(threadIdx.x % BLOCKS, &x.candidate[j & 1][warp_in(team)], &x.candidates_in[j & 1]);
}

// Returns the value of one lane to all lanes of its warp.
__device__ __forceinline__ float4 from_lane(float4 v, int lane) {
    return make_float4(
        __shfl_sync(ALL_LANES, v.x, lane), __shfl_sync(ALL_LANES, v.y, lane),
        __shfl_sync(ALL_LANES, v.z, lane), __shfl_sync(ALL_LANES, v.w, lane));
}

// Stands for the number of a row if none of a thread's rows is its warp's candidate.
constexpr int NO_SLOT = -1;

// Finds a warp's candidate and, if it `goes`, sends it to all blocks; each lane sends to one block.  Returns which of
// the thread's rows the candidate is, or NO_SLOT.
__device__ __forceinline__ int propose(
    const Team& team, const Rows& rows, const Open& open, Search& now, Mailbox to, bool goes
) {
    const Best best = best_of_rows(rows, open);
    Vote top = vote(best.size);
    float4 mine = {rows.at[0][0], 0, rows.at[0][1], now.l[0]};
    #pragma unroll
    for (int i = 1; i < ROWS; ++i) {
        if (i == best.slot) mine.x = rows.at[i][0], mine.z = rows.at[i][1], mine.w = now.l[i];
    }
    if (best.size == NO_SIZE) mine.x = 0;  // NO_PLACE then makes the code larger than all others, so it loses
    const unsigned row = (best.slot * BLOCKS + team.rank) * THREADS + threadIdx.x;
    mine.y = __uint_as_float(unsigned(best.place) << 16 | row);
    float4 sent = from_lane(mine, top.lane());
    while (top.is_tied()) {
        top.break_tie(best.place);
        sent = from_lane(mine, top.lane());
    }
    send(sent, to, goes && threadIdx.x % WARP < BLOCKS);
    now.l_of_warp = sent.w;
    return top.mine ? best.slot : NO_SLOT;
}

// Keeps the row of a candidate in shared memory; its warp sends the row if the candidate wins.
__device__ __forceinline__ void keep_row(Exchange& x, const Rows& rows, int slot) {
    float* const kept = x.row_of_warp[threadIdx.x / WARP];
    __syncwarp();  // the lanes have read the row that was kept before
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        // This loop runs at most once.  An `if` would become predicated stores, which are issued for all slots,
        // although most slots have no lane that stores.
        while (slot == i) {
            #pragma unroll
            for (int q = 0; q < WIDTH; ++q) kept[q] = q + 2 < WIDTH ? rows.at[i][q + 2] : 0.0f;
            asm volatile("mov.s32 %0, %1;" : "=r"(slot) : "n"(NO_SLOT));
        }
    }
    __syncwarp();
}

// Sends the row of pivot j to every block; v is the lane's word of it.  WARP / ROW_WORDS blocks get the row at a time.
__device__ __forceinline__ void send_row(const Exchange& x, float4 v, int j, int w) {
    const int lane = threadIdx.x % WARP, word = lane % ROW_WORDS, buffer = buffer_of(j);
    #pragma unroll
    for (int start = 0; start < BLOCKS; start += WARP / ROW_WORDS) {
        const int to = start + lane / ROW_WORDS;
        const bool does = to < BLOCKS && word < words_of(j, w);
        send(v, mailbox_in(to % BLOCKS, x.row[buffer] + 4 * word, &x.row_in[buffer]), does);
    }
}

// The winner for pivot j: its size, the other members of its candidate, and the reciprocal of the scaled pivot (see
// scale_of).
struct Winner {
    int size;
    unsigned code;
    float next, l, reciprocal;
};

// Waits for the candidates of all warps and chooses the best.  On return, the row of pivot j - 1 has arrived, too.
__device__ __forceinline__ Winner pick(const Exchange& x, int j) {
    wait_for(x.candidates_in[j & 1], j >> 1);
    constexpr int EACH = (CANDIDATES + WARP - 1) / WARP;
    const int lane = threadIdx.x % WARP;
    Candidate some[EACH];
    int size[EACH], most;
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int k = i * WARP + lane;
        const float4 none = {0, __uint_as_float(NO_CODE), 0, 0};
        const float4 v = k < CANDIDATES ? *reinterpret_cast<const float4*>(&x.candidate[j & 1][k]) : none;
        some[i] = {v.x, __float_as_uint(v.y), v.z, v.w};
        size[i] = __float_as_int(fabsf(v.x));
        most = i ? max(most, size[i]) : size[i];
    }
    const int top = largest_of_warp(most);
    const auto& row_in = x.row_in[buffer_of(j - 1)];
    bool arrived = is_over(row_in, (j - 1) >> 2);
    Candidate best = some[0];
    if (size[0] != most) best.code = NO_CODE;
    #pragma unroll
    for (int i = 1; i < EACH; ++i) if (size[i] == most && some[i].code <= best.code) best = some[i];
    // Every lane computes the reciprocal of its best candidate, so that it is ready when the winner is known.
    const float reciprocal = reciprocal_of(scale_of(most) * best.value);
    unsigned lanes = __ballot_sync(ALL_LANES, most == top);
    // One branch for both rare cases: a tie (see Vote), and a row that has not arrived.
    while (!__all_sync(ALL_LANES, arrived) | bool(lanes & (lanes - 1))) {
        const unsigned low = smallest_of_warp(most == top ? best.code : NO_CODE);
        lanes = __ballot_sync(ALL_LANES, most == top && best.code == low);
        arrived = is_over(row_in, (j - 1) >> 2);
    }
    const float4 mine = {reciprocal, __uint_as_float(best.code), best.next, best.l};
    const float4 sent = from_lane(mine, only_lane(lanes));
    return {top, __float_as_uint(sent.y), sent.z, sent.w, sent.x};
}

// Updates columns j + 1 and j + 2 by the row of pivot j - 1, and returns the entry of that row in column j + 1.
__device__ __forceinline__ float update_next(const Exchange& x, Rows& rows, const Search& last, int j) {
    const float2 u = *reinterpret_cast<const float2*>(x.row[buffer_of(j - 1)]);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        rows.at[i][1] = fmaf(-last.l[i], u.x, rows.at[i][1]);
        rows.at[i][2] = fmaf(-last.l[i], u.y, rows.at[i][2]);
    }
    return u.x;
}

// A lane's word of the row of its warp's candidate for pivot j, updated by the row of pivot j - 1.
__device__ __forceinline__ float4 word_of_candidate(const Exchange& x, const Search& last, int j) {
    const float* row = x.row[buffer_of(j - 1)];
    const int at = threadIdx.x % ROW_WORDS * 4;
    const float l = last.l_of_warp;
    const float4 v = *reinterpret_cast<const float4*>(x.row_of_warp[threadIdx.x / WARP] + at);
    const float4 p = *reinterpret_cast<const float4*>(row + at);
    const float4 q = *reinterpret_cast<const float4*>(row + at + 4);
    return make_float4(fmaf(-l, p.y, v.x), fmaf(-l, p.z, v.y), fmaf(-l, p.w, v.z), fmaf(-l, q.x, v.w));
}

// Updates the later columns by the row of pivot j - 1, and moves them one place to the left; at[.][0] and at[.][1] have
// moved already.  Columns from LIVE on are not needed any more.
template <int LIVE>
__device__ __forceinline__ void update_others(const Exchange& x, Rows& rows, const Search& last, int j) {
    static_assert(LIVE % 4 == 0, "whole words");
    const float* row = x.row[buffer_of(j - 1)];
    float u[LIVE];
    #pragma unroll
    for (int q = 0; q < LIVE; q += 4) {
        const float4 v = *reinterpret_cast<const float4*>(row + q);
        u[q] = v.x, u[q + 1] = v.y, u[q + 2] = v.z, u[q + 3] = v.w;
    }
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        #pragma unroll
        for (int q = 2; q + 1 < LIVE; ++q) rows.at[i][q] = fmaf(-last.l[i], u[q], rows.at[i][q + 1]);
    }
}

__device__ __forceinline__ void expect_candidates(Exchange& x, int j, bool does) {
    expect(x.candidates_in[j & 1], CANDIDATES * int(sizeof(Candidate)), does);
}

// Prepares a leaf; a barrier must follow before `begin`.  A row of zeros stands for the pivot before the first column,
// so that eliminate needs no special case.
__device__ __forceinline__ void prepare(Exchange& x) {
    if (threadIdx.x < WIDTH + 4) x.row[buffer_of(-1)][threadIdx.x] = 0;
    expect_candidates(x, 0, threadIdx.x == 0);
}

// Proposes candidates for the first pivot of a leaf.
__device__ __forceinline__ Search begin(Exchange& x, const Team& team, const Rows& rows, int first, int) {
    Search none = {};
    keep_row(x, rows, propose(team, rows, open_rows(rows, first), none, candidate_mailbox(x, team, 0), true));
    return none;
}

// Eliminates column `column` of the strip, which is at[.][0] of the rows, and moves the other columns one place to the
// left.  Then at[.][0] has all updates, and the later columns still lack the update by this pivot.  Stores the
// eliminated column as column j (of w) in `columns`.
__device__ __forceinline__ Pivot eliminate(
    Exchange& x, const Team& team, Rows& rows, Columns columns, Search& last, int j, int w, int column
) {
    const bool goes_on = j + 1 < w;
    const Mailbox mailbox = candidate_mailbox(x, team, j + 1);
    const Winner pivot = pick(x, j);
    const float u = update_next(x, rows, last, j);
    const float4 word = word_of_candidate(x, last, j);
    const int place = pivot.code >> 16, home = pivot.code & 0xffff;
    const bool sends = warp_of_row(home) == warp_in(team);
    const float next = fmaf(-pivot.l, u, pivot.next), scale = scale_of(pivot.size);
    Search now;
    Open open;
    float kept[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const float scaled = scale * rows.at[i][0];
        now.l[i] = divide(rows, i, pivot.size, place, scaled, pivot.reciprocal, column, kept[i], open.row[i]);
        rows.at[i][0] = fmaf(-now.l[i], next, rows.at[i][1]);
        rows.at[i][1] = rows.at[i][2];
    }
    const int slot = propose(team, rows, open, now, mailbox, goes_on);
    // The row is sent after the candidate, because all warps wait for the candidate.
    if (sends) send_row(x, word, j, w);
    expect_candidates(x, j + 1, threadIdx.x == 0 && goes_on);
    expect(x.row_in[buffer_of(j)], 16 * words_of(j, w), threadIdx.x == 0);
    // If LATE, the column is stored after the update, so that it does not delay the loads of the row.  It then stays in
    // registers longer, and threads with many entries have no registers for it.
    constexpr bool LATE = ROWS * WIDTH < 128;
    // SPARES: the update leaves out finished columns, a quarter of a leaf at a time.  This gains 4 % at 16384 rows and
    // 2 % at 8192 (H200; no results file is kept).  It is used for shapes whose time is limited by instructions and
    // that have a free register; shapes of 8 blocks have none.
    constexpr bool SPARES = !LATE && BLOCKS > 8 && (RESIDENT || !HELPERS);
    const auto keep_column = [&] {
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) columns[i * THREADS + threadIdx.x][j] = kept[i];
    };
    if (!LATE) keep_column();
    if (j < WIDTH / 4 || !SPARES) update_others<WIDTH>(x, rows, last, j);
    else if (j < WIDTH / 2) update_others<WIDTH - WIDTH / 4>(x, rows, last, j);
    else if (j < WIDTH - WIDTH / 4) update_others<WIDTH / 2>(x, rows, last, j);
    else update_others<WIDTH / 4>(x, rows, last, j);
    if (LATE) keep_column();
    keep_row(x, rows, slot);
    last = now;
    return {pivot.size, place, home};
}
