// P A = L U of a strip of columns with partial pivoting, by one thread-block cluster or one cooperative grid.
//
//   a      FP32 m x w, row-major, leading dimension lda, 1 <= w <= STRIP, w <= m <= blocks THREADS ROWS.
//          Becomes L (below the unit diagonal) and U, every row still where it was: `dst` and `src` tell where
//          the rows belong, and tcs_swap_solve (swap_solve.cu) takes them there.
//   order  null, or int[m]: its entries move with the rows, here already.
//   ipiv   int[w]: step j swapped rows j and ipiv[j] - row0.
//   dst, src  int[2 w] and int[2 w + 1]: new[dst[i]] = old[src[i]] does the swaps.  All rows that move are
//          listed, those that become row i < w at i; some pairs occur twice.  src[2 w] is zero if none moves.
//   top    FP32 w x w, leading dimension ld_top: the first w rows of the result, L11 and U11.
//   info   int[1]: becomes min(info, col0 + j + 1) for the first pivot j that is zero or not finite.
//   started  null, or unsigned[17], zero before: where the blocks are, and that all are resident (see wait_for_panel.cu).
//   board  BLOCKS 0: zeroed global memory for the exchange, else unused.
//
// Grid BLOCKS (a cluster) or, if BLOCKS is 0, any cooperative grid of at most 256; block THREADS + HELPERS; dynamic
// shared memory as PanelShape.shared_bytes has it.
// Defines BLOCKS, THREADS, HELPERS, ROWS, WIDTH, STRIP, DOMINANT: whether strips that need no search are factored
// without one (dominant_strip.cuh), and RESIDENT: whether the whole strip stays in the shared memory of the cluster.
//
// Few warps search, since all they send must be looked at, and those that share a scheduler wait for each other; more,
// with the helpers, move and update what is in memory.  A thread that searches owns ROWS rows and keeps WIDTH columns
// of them, a leaf, in registers.  No row moves: a row knows its `place`, where the swaps so far have put it, and is a
// candidate for pivot j while place >= j.  The largest |a_ij| wins, at equal size the lowest place, which is LAPACK's
// choice; NaN counts as larger than infinity, so it is met and reported.  For every column all send their best rows
// to all, and each picks the winner for itself (exchange_cluster.cuh, exchange_grid.cuh).  Leaf by leaf the strip is
// done in strip.cuh.
//
// Rounding: l is a times the rounded reciprocal of the pivot; a - l u is one fused multiply-add, all to nearest in
// IEEE FP32 with subnormal numbers.  A zero pivot leaves its (zero) column and the others as they are.

#include "lu/strip.cuh"
#if DOMINANT
#include "lu/dominant_strip.cuh"
#endif

extern "C" __global__ void
#if BLOCKS
__cluster_dims__(BLOCKS, 1, 1)
#endif
__launch_bounds__(ALL, 1)
tcs_panel(
    float* a, Index lda, Index m, Index w, int* order, int* ipiv, int* dst, int* src, float* top, Index ld_top,
    int* info, Index row0, Index col0, unsigned* started, Board* board
) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    Leaf& leaf = *reinterpret_cast<Leaf*>(dynamic);
    __shared__ __align__(16) Exchange exchange;
    // Where a register is left for it.
    constexpr bool AT_HAND = BLOCKS && (RESIDENT || !HELPERS);
    Exchange& x = AT_HAND ? at_hand(exchange) : exchange;
    __shared__ BlockRow row;
    __shared__ int home[STRIP];
    Team team = {board, 0, 0};
    asm volatile("mov.u32 %0, %ctaid.x;" : "=r"(team.rank));  // kept, as reading it takes long
    set_up(x);
    if (started && threadIdx.x == 0) {
        const unsigned here = multiprocessor();
        atomicOr(started + 1 + here / WARP % 8, 1u << here % WARP);
        __threadfence();
    }
    bool dominant = false;
#if DOMINANT
    Dominant& s = *reinterpret_cast<Dominant*>(dynamic);
    dominant = w == STRIP && aligned16(a, lda) && may_dominate(a, lda, m);
#endif
    arrive_all(team);
    wait_all(team);  // no block may send before all have set up their barriers
    if (started && blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<volatile unsigned*>(started) = 1;
#if DOMINANT
    dominant = dominant && dominates(s, team, a, lda, m);
    if (dominant) {
        team = factor_dominant(s, team, a, lda, m);
        if (threadIdx.x < STRIP) {
            home[threadIdx.x] = threadIdx.x;
            if (blockIdx.x == 0) ipiv[threadIdx.x] = int(row0) + threadIdx.x;
        }
    }
#endif
    Rows rows;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) rows.place[i] = row_of(i) < m ? int(row_of(i)) : -1;  // -1: never a candidate
    if (!dominant) {
        factor_by_search(x, team, rows, leaf, row, home, a, lda, m, int(w), ipiv, info, int(row0), int(col0));
    }

    const int thread = this_thread();
    Index here[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) here[i] = HELPERS == 0 || thread < THREADS ? row_in_block(i * THREADS + thread) : m;
    int index[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) index[i] = order && here[i] < m ? order[here[i]] : 0;
    // All of `order` has been read, and no block leaves while another may still send to it.
    arrive_all(team);
    wait_all(team);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const Index place = rows.place[i];
        if (here[i] >= m) continue;
        if (order) order[place] = index[i];
        if (place < w) dst[place] = int(place), src[place] = int(here[i]);
        if (here[i] < w) dst[w + here[i]] = int(place), src[w + here[i]] = int(here[i]);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) src[2 * w] = !dominant;
    // A warp for each row of the result, all its words on their way at once.
    constexpr int PARTS = (STRIP + WARP - 1) / WARP;
    const int lane = thread % WARP;
    for (int i = blockIdx.x * ALL_WARPS + thread / WARP; i < w; i += block_count() * ALL_WARPS) {
        float v[PARTS];
        #pragma unroll
        for (int k = 0; k < PARTS; ++k) {
            const int q = lane + k * WARP;
            v[k] = q < w ? __ldcg(a + home[i] * lda + q) : 0.0f;
        }
        #pragma unroll
        for (int k = 0; k < PARTS; ++k) if (lane + k * WARP < w) top[i * ld_top + lane + k * WARP] = v[k];
    }
}
