// P A = L U of a strip of columns with partial pivoting, by one thread-block cluster or one cooperative grid.
//
//   a      FP32 m x w, row-major, leading dimension lda, 1 <= w <= STRIP, w <= m <= blocks THREADS ROWS.
//          Becomes L (below the unit diagonal) and U, but no row is moved: `dst` and `src` list the swaps, and
//          tcs_swap_solve (swap_solve.cu) moves the rows.
//   order  null, or int[m]: the swaps are applied to its entries here.
//   ipiv   int[w]: step j swapped rows j and ipiv[j] - row0.
//   dst, src  int[2 w] and int[2 w + 1]: new[dst[i]] = old[src[i]] for all i does the swaps.  Entry i < w is for the
//          row that becomes row i, entry w + i for the row that was row i; a pair may be in both halves.  src[2 w] is
//          zero if there was no search, so no row moves.
//   top    FP32 w x w, leading dimension ld_top: the first w rows of the result, L11 and U11.
//   info   int[1]: becomes min(info, col0 + j + 1) for the first pivot j that is zero or not finite.
//   started  null, or unsigned[17], words 0 to 8 zero before the launch: tells tcs_gate (wait_for_panel.cu) that all
//          blocks are resident, and on which multiprocessors.
//   board  BLOCKS 0: struct Board of exchange_grid.cuh, all zero before the launch; else not used.
//
// Grid BLOCKS (a cluster) or, if BLOCKS is 0, a cooperative grid of at most 256 blocks; block THREADS + HELPERS;
// dynamic shared memory as PanelShape.shared_bytes gives it.
// Defines BLOCKS, THREADS, HELPERS, ROWS, WIDTH, STRIP; DOMINANT: whether a strip whose diagonal dominates is factored
// without a search (dominant_strip.cuh); RESIDENT: whether the whole strip stays in the shared memory of the cluster.
//
// A strip is factored leaf by leaf (strip.cuh).  A thread that searches for pivots owns ROWS rows and keeps WIDTH
// columns of them, the leaf, in registers.  Only THREADS threads of a block search, because every warp must read the
// candidates of all warps that search, and the warps of one scheduler delay each other.  The other threads, the
// helpers, take part in everything else.
//
// No row moves.  Each row has a `place`, its position after the swaps so far, and is a candidate for pivot j while
// place >= j.  The largest |a_ij| wins; of equal ones that with the lowest place, as in LAPACK.  NaN counts as larger
// than infinity, so that a NaN becomes the pivot and is reported.  For every column each warp of a cluster describes
// its best row to all warps (exchange_cluster.cuh), or each block of a grid sends its best row to all blocks
// (exchange_grid.cuh).  All pick the same winner.
//
// Rounding: l is a times the rounded reciprocal of the pivot; a - l u is one fused multiply-add, all to nearest in
// IEEE FP32 with subnormal numbers.  If the pivot is zero, so are all candidates, and no other column changes.

#include "lu/strip.cuh"
#if DOMINANT
#include "lu/dominant_strip.cuh"
#endif

// Notes in `started` which multiprocessor this block runs on.
__device__ __forceinline__ void note_multiprocessor(unsigned* started) {
    if (started && threadIdx.x == 0) {
        const unsigned here = multiprocessor();
        atomicOr(started + 1 + here / WARP % 8, 1u << here % WARP);
        __threadfence();
    }
}

#if DOMINANT
// Factors a strip whose diagonal dominates its columns; no row moves.
__device__ __forceinline__ void factor_without_search(
    Dominant& s, Team& team, int* home, float* a, Index lda, Index m, int* ipiv, Index row0
) {
    team = factor_dominant(s, team, a, lda, m);
    if (threadIdx.x < STRIP) {
        home[threadIdx.x] = threadIdx.x;
        if (blockIdx.x == 0) ipiv[threadIdx.x] = int(row0) + threadIdx.x;
    }
}
#endif

// Places of a thread's rows before any swap; -1 for a row that does not exist, which is never a candidate.
__device__ __forceinline__ void place_rows(Rows& rows, Index m) {
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) rows.place[i] = row_of(i) < m ? int(row_of(i)) : -1;
}

// Lists the swaps of rows in dst and src, and applies them to `order`.  `moves` is false if no row can have moved.
__device__ __forceinline__ void list_swaps(
    Team& team, const Rows& rows, bool moves, int thread, Index m, Index w, int* order, int* dst, int* src
) {
    Index here[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) here[i] = HELPERS == 0 || thread < THREADS ? row_in_block(i * THREADS + thread) : m;
    int index[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) index[i] = order && here[i] < m ? order[here[i]] : 0;
    // All of `order` must be read before an entry is overwritten, and no block may leave while another may still send
    // to it.
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
    if (blockIdx.x == 0 && threadIdx.x == 0) src[2 * w] = moves;
}

// Copies the rows of the pivots, L11 and U11, to `top`: a warp takes a row, and starts all its loads at once.
__device__ __forceinline__ void copy_pivot_rows(
    const float* a, Index lda, const int* home, int thread, Index w, float* top, Index ld_top
) {
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
    constexpr bool AT_HAND = BLOCKS && (RESIDENT || !HELPERS);  // other shapes have no register for the address
    Exchange& x = AT_HAND ? at_hand(exchange) : exchange;
    __shared__ BlockRow row;
    __shared__ int home[STRIP];
    Team team = {board, 0, 0};
    // By assembly, so that the compiler keeps the number in a register: reading it again takes long.
    asm volatile("mov.u32 %0, %ctaid.x;" : "=r"(team.rank));

    // ---- set up the exchange, and look at the first column
    set_up(x);
    note_multiprocessor(started);
    bool dominant = false;
#if DOMINANT
    Dominant& s = *reinterpret_cast<Dominant*>(dynamic);
    dominant = w == STRIP && aligned16(a, lda) && may_dominate(a, lda, m);
#endif
    arrive_all(team);
    wait_all(team);  // no block may send before all have set up their barriers
    if (started && blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<volatile unsigned*>(started) = 1;

    // ---- factor the strip, without a search if the diagonal dominates
#if DOMINANT
    dominant = dominant && dominates(s, team, a, lda, m);
    if (dominant) factor_without_search(s, team, home, a, lda, m, ipiv, row0);
#endif
    Rows rows;
    place_rows(rows, m);
    if (!dominant) {
        factor_by_search(x, team, rows, leaf, row, home, a, lda, m, int(w), ipiv, info, int(row0), int(col0));
    }

    const int thread = this_thread();
    list_swaps(team, rows, !dominant, thread, m, w, order, dst, src);  // without a search no row moves
    copy_pivot_rows(a, lda, home, thread, w, top, ld_top);
}
