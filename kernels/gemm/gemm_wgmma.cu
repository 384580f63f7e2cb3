// C = alpha op(A) op(B) + beta C by Hopper's asynchronous tensor cores and copy engine.
//
// The third of the three engines naive, wmma and wgmma.  It adds:
//   - wgmma reads both operands from shared memory, so that registers hold only sums;
//   - the copy engine (TMA) fills a ring of stages by tensor maps, and also swizzles the data and pads it with zeros;
//   - one warpgroup starts the copies into the ring, and two warpgroups multiply;
//   - a block computes many tiles, and the next tile's operands arrive while the sums of one are stored;
//   - two blocks of a cluster share the tiles of one operand by multicast;
//   - the copy engine also stores tiles of FP32 results.
// It is 1.6 to 1.9 times as fast as the wmma engine from n = 2048 on (H200, FP16, benchmarks/results/gemm.json).
//
//   a_hi, a_lo, b_hi, b_lo  tensor maps of operands in T_LOW with boxes of 64 x 64 entries, swizzled by 128 bytes:
//          coordinates (k, i) if the contiguous entries run along k, else (i, k), where i is the row of op(A) or the
//          column of op(B).  lo is read only if REFINE splits that operand.
//   a, b   if SCALED the FP32 op(A) (m x k) and op(B) (k x n) by strides, and top_a, top_b; else not read
//   out, c row-major with leading dimensions ld_out, ld_c, of `kind` (see gemm.cuh); c is not read if beta = 0
//   results, how  tensor map of out in boxes of 16 rows and 32 columns, swizzled by 128 bytes, and how the copy engine
//          uses it: 0 not at all, 1 it stores (beta = 0), 2 it adds (beta = 1, out is c), 3 it adds, and the lines of C
//          leave the cache before others
//   alpha_by  null, or one FP32 number on the device that alpha is multiplied by
//   work   null, or two words, zero before and after: the clusters of this launch, or of several launches for the same
//          result, take tiles in turn.  All these launches must end before the words are used again
//   sharing  the number of clusters in all launches that use `work`
//   taken  null, or unsigned[8] with a bit for each multiprocessor that is reserved for another kernel: a block that
//          runs on one of them takes no tile and ends.  CLUSTER 1 only; another launch must compute the tiles that
//          remain.
//
// Grid: a multiple of CLUSTER, at most one block a multiprocessor; block 384; dynamic shared memory
// STAGES STAGE_BYTES + 32 KB + 1024 = 225 KB.
// Defines T_LOW (fp16 or bf16), REFINE (0 to 4: none, 'a', 'b', 'ab', 'full'), TRANS_A 0 if op(A) is contiguous
// along k, TRANS_B 1 if op(B) is contiguous along k (as in gemm_wmma.cu), CLUSTER (1 or 2), SCALED 1 if the rows of
// op(A) and the columns of op(B) were scaled (see gemm.cuh).  Most of the code is for these scales.  For an LU, which
// has one scale for each matrix, the kernel is compiled without this code.
//
// FP32 operands are split by an earlier launch (split_once.cu, gemm_split.cu), not while they are loaded as in
// gemm_wmma.cu.  Shared memory gives 128 bytes in a cycle.  The products of a 64 x 128 tile read 96 of them.  To read
// FP32 there and to write hi and lo would take about 85 more (32 KB in 384 cycles; counted, not measured), so the rate
// would fall by nearly a third.  Reading op(A) from registers, already split, was slower (docs/performance/tried.md).
// With the extra launch, three products ('ab') take 3.8, 2.9 and 3.2 times as long as one product of FP16 operands at
// n = 4096, 8192 and 16384 (H200, benchmarks/results/gemm.json).
//
// Rounding: with REFINE 0 the tensor cores sum along all of k.  With more products they sum 64 values of k at a time,
// small products first; these sums are added in FP32 registers, rounded to nearest, so that the truncation errors of
// the tensor cores do not accumulate along k.  The sums over 64 values of k and the total need two sets of registers,
// so tiles have only 128 columns.
//
// Results: a warp writes its sums to shared memory, 2 KB at a time.  The copy engine adds them to C in the second-level
// cache, rounded to nearest, while the next tile is multiplied.  The products of a tile take 10 us (k = 512, REFINE 3).
// If the threads read C, added their sums and wrote C, both warpgroups would wait for another 5 to 6 us: all
// multiprocessors would read and write C at the same time, 17 MB in all, and the memory would be idle during the
// products.  The rate is 194 TFLOP/s instead of 142 at k = 512, and 224 instead of 163 at k = 1024 (H200, REFINE 3,
// m = n = 16384; the three products count as one, of 2 m n k operations; one comparison, both versions in the same run,
// of which no results file is kept).  With REFINE > 0 the first products of the next tile run even while the sums are
// written to shared memory.  Each entry has one addition, so the order of the blocks does not matter.  Threads store
// results themselves if `how` is 0, and, for scaled operands, in tiles on an edge of C or with an Inf or NaN.  Their
// results have the bits that the copy engine would give, except that a thread may round alpha times a sum plus c only
// once.  Subnormal sums are kept, because the type of the tensor map is FLOAT32, not FLOAT32_FTZ.
//
// Tiles in turn (work): if another kernel occupies multiprocessors when this one starts, some blocks start late.  With
// a fixed share of the tiles for each block, the tiles of these blocks would be computed last.  Blocks also differ in
// speed without another kernel: with tiles in turn the rates are 213, 210 and 196 TFLOP/s, and with fixed shares 216,
// 202 and 178, at n = 4096, 8192 and 16384 (H200, REFINE 3, CLUSTER 2, without `await_turn`; one comparison,
// of which no results file is kept).

#include "common/bulk_copy.cuh"
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "common/sm_addresses.cuh"
#include "gemm/gemm.cuh"
#include "gemm/wgmma.cuh"
#include "gemm/wgmma_result.cuh"

// ---- the two roles -----------------------------------------------------------------------------

// A position in the ring of stages: the stage, and the parity of the number of rounds.
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Shared {
    unsigned stages, full, empty, sent;  // addresses in shared memory
    volatile int* tile;  // for each stage that begins a tile: the number of the tile
    volatile int* mail;  // the numbers of tiles that block 0 of the cluster has sent

    __device__ __forceinline__ unsigned a(int stage, int part) const {
        return stages + stage * STAGE_BYTES + part * BYTES_A;
    }
    __device__ __forceinline__ unsigned b(int stage, int part) const {
        return stages + stage * STAGE_BYTES + PARTS_A * BYTES_A + part * BYTES_B;
    }
    __device__ __forceinline__ unsigned is_full(int stage) const { return full + 8 * stage; }
    __device__ __forceinline__ unsigned is_empty(int stage) const { return empty + 8 * stage; }
    __device__ __forceinline__ unsigned is_sent(int stage) const { return sent + 8 * stage; }
    __device__ __forceinline__ unsigned boxes(int warp) const {
        return stages + STAGES * STAGE_BYTES + warp * BOXES * BOX_BYTES;
    }
};

// Which tiles a cluster computes.  Here a tile has DOWN * BLOCK_M rows and ACROSS * BLOCK_N columns, a part for each
// block.  32 bits are enough for 2^22 rows and columns.  A division of 64 bits calls a subroutine, for which the
// feeding warpgroup has not enough registers.
struct Schedule {
    TileOrder<int> order;
    int band;  // rows of tiles
    unsigned* work;
    unsigned sharing, rank;

    __device__ __forceinline__ Schedule(Index m, Index n, Index k, unsigned* work, unsigned sharing, unsigned rank)
        : order{tiles(m, DOWN * BLOCK_M), tiles(n, ACROSS * BLOCK_N)}, band(band_for(k) / DOWN),
          work(work), sharing(sharing), rank(rank) {}

    static __device__ __forceinline__ int tiles(Index size, int each) { return int((size + each - 1) / each); }

    __device__ __forceinline__ int count() const { return order.rows * order.cols; }
    __device__ __forceinline__ int clusters() const { return gridDim.x / CLUSTER; }

    // Whether all tiles have been taken when this thread looks.
    __device__ __forceinline__ bool is_over() const {
        return work && *reinterpret_cast<volatile unsigned*>(work) >= unsigned(count());
    }

    // Returns the tile after `last`, or the first tile if `last` is NO_TILE.  With `work`, only block 0 of a cluster
    // chooses a tile, and `agree` sends its number; in the other block the function returns NO_TILE.
    __device__ __forceinline__ int next(int last) const {
        if (work == nullptr) return last == NO_TILE ? blockIdx.x / CLUSTER : last + clusters();
        return rank == 0 ? int(min(atomicAdd(work, 1u), unsigned(count()))) : NO_TILE;
    }

    // Called when a cluster takes no more tiles; the last cluster of all that share the words clears them.
    __device__ __forceinline__ void leave() const {
        if (work == nullptr || rank != 0 || atomicAdd(work + 1, 1u) != sharing - 1) return;
        atomicExch(work, 0u);
        atomicExch(work + 1, 0u);
    }

    __device__ __forceinline__ void find(int tile, int& row, int& col) const {
        int tile_row, tile_col;
        order.find(tile, band, tile_row, tile_col);
        row = (tile_row * DOWN + int(rank) % DOWN) * BLOCK_M;
        col = (tile_col * ACROSS + int(rank) % ACROSS) * BLOCK_N;
    }
};

// Coordinate x (axis 0) or y (axis 1) of a box that begins at `across` (along m or n) and k.
template <bool ALONG_K>
__device__ __forceinline__ int coordinate(int axis, int across, int k) {
    return (axis == 0) == ALONG_K ? k : across;
}

// Block 0 of the cluster sends the other block the number of the tile that begins in a stage.  Both blocks have emptied
// the stage, so the number that was sent for its last use has been read.  Bit s of `taken` is the parity of how many
// numbers the other block has received for stage s.
__device__ __forceinline__ int agree(
    const Shared& shared, unsigned rank, int stage, int tile, unsigned& taken
) {
    if (rank == 0) {
        const unsigned word = shared_address(const_cast<int*>(shared.mail + stage));
        send(tile, {address_in(word, 1), address_in(shared.is_sent(stage), 1)});
        return tile;
    }
    expect(shared.is_sent(stage), sizeof(int));
    wait_for(shared.is_sent(stage), taken >> stage & 1);
    taken ^= 1u << stage;
    return shared.mail[stage];
}

// Loads box p of an operand's tile; if the cluster shares the tile, its blocks load the boxes in turn.
template <bool SHARED>
__device__ __forceinline__ void load_panel(
    unsigned to, const TensorMap& map, int x, int y, unsigned full, int p, unsigned rank
) {
    if (!SHARED) load_box(to, map, x, y, full);
    else if (p % CLUSTER == rank) load_box_everywhere<CLUSTER>(to, map, x, y, full);
}

// The warpgroup that feeds: one thread takes tiles and starts the copies of their operands.
__device__ __forceinline__ void feed(
    const Shared& shared, const Schedule& schedule, int steps,
    const TensorMap& a_hi, const TensorMap& a_lo, const TensorMap& b_hi, const TensorMap& b_lo
) {
    Ring ring;
    unsigned taken = 0;
    for (int tile = schedule.next(NO_TILE), after = NO_TILE;; tile = after) {
        int row, col;
        wait_for(shared.is_empty(ring.stage), ring.parity ^ 1);  // the first pass finds all stages empty
        if (CLUSTER > 1 && schedule.work) tile = agree(shared, schedule.rank, ring.stage, tile, taken);
        const bool more = tile < schedule.count();
        shared.tile[ring.stage] = more ? tile : NO_TILE;
        if (!more) {
            expect(shared.is_full(ring.stage), 0);
            schedule.leave();
            return;
        }
        schedule.find(tile, row, col);
        for (int s = 0; s < steps; ++s) {
            const unsigned full = shared.is_full(ring.stage);
            if (s > 0) wait_for(shared.is_empty(ring.stage), ring.parity ^ 1);
            // The next tile is taken as late as possible; the full stages hide the time that this takes.
            if (s == steps - 1) after = schedule.next(tile);
            expect(full, STAGE_BYTES);
            #pragma unroll
            for (int p = 0; p < PARTS_A * PANELS_A; ++p) {
                const int part = p / PANELS_A, across = row + p % PANELS_A * PANEL;
                const unsigned to = shared.a(ring.stage, part) + p % PANELS_A * PANEL_BYTES;
                const int x = coordinate<!TRANS_A>(0, across, s * BLOCK_K);
                const int y = coordinate<!TRANS_A>(1, across, s * BLOCK_K);
                load_panel<(ACROSS > 1)>(to, part ? a_lo : a_hi, x, y, full, p, schedule.rank);
            }
            #pragma unroll
            for (int p = 0; p < PARTS_B * PANELS_B; ++p) {
                const int part = p / PANELS_B, across = col + p % PANELS_B * PANEL;
                const unsigned to = shared.b(ring.stage, part) + p % PANELS_B * PANEL_BYTES;
                const int x = coordinate<TRANS_B>(0, across, s * BLOCK_K);
                const int y = coordinate<TRANS_B>(1, across, s * BLOCK_K);
                load_panel<(DOWN > 1)>(to, part ? b_lo : b_hi, x, y, full, p, schedule.rank);
            }
            ring.next();
        }
    }
}

// Issues the products of one stage; `fresh` starts a new sum.
__device__ __forceinline__ void multiply(
    float (&d)[SUMS], const Shared& shared, int stage, int group, bool fresh
) {
    const unsigned long long a0 = descriptor(shared.a(stage, 0) + group * PANEL_BYTES);
    const unsigned long long b0 = descriptor(shared.b(stage, 0));
    constexpr unsigned long long LOW_A = BYTES_A >> 4, LOW_B = BYTES_B >> 4;
    #pragma unroll
    for (int term = 0; term < TERMS; ++term) {  // each term is summed over all k of the stage
        if (!has_term<REFINE>(term)) continue;
        const bool low_a = term < 2, low_b = term % 2 == 0;
        #pragma unroll
        for (int step = 0; step < BLOCK_K / 16; ++step) {
            wgmma(T_LOW{}, d, a0 + (low_a ? LOW_A : 0) + step * STEP_16<!TRANS_A>,
                  b0 + (low_b ? LOW_B : 0) + step * STEP_16<TRANS_B>, !fresh);
            fresh = false;
        }
    }
}

// Each warp reports that it has read the stage, to every block that may fill the stage.
__device__ __forceinline__ void release(const Shared& shared, int stage) {
    if (threadIdx.x % WARP < CLUSTER) arrive_relaxed(shared.is_empty(stage), threadIdx.x % WARP);
}

// One sum along all of k.  The products of a stage run while the warps wait for the next.
__device__ __forceinline__ void sum_through(
    float (&sum)[SUMS], const Shared& shared, Ring& ring, int group, int steps
) {
    int previous = 0;
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] = 0;
    settle(sum);
    for (int s = 0; s < steps; ++s) {
        wait_for(shared.is_full(ring.stage), ring.parity);
        wgmma_fence();
        multiply(sum, shared, ring.stage, group, false);
        wgmma_commit();
        wgmma_wait<1>();
        if (s > 0) release(shared, previous);
        previous = ring.stage;
        ring.next();
    }
    wgmma_wait<0>();
    settle(sum);
    if (steps > 0) release(shared, previous);
}

// The warpgroups issue the products of a stage in turn, so that one multiplies while the other adds: 'ab' took 2 to 7 %
// less time with turns than without (H200, n = 4096 to 16384; one comparison, of which no results file is kept).
__device__ __forceinline__ void await_turn(int group) {
    asm volatile("barrier.cta.sync %0, %1;" :: "r"(1 + group), "n"(CONSUMERS * GROUP_THREADS) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
    asm volatile("barrier.cta.arrive %0, %1;"
                 :: "r"(1 + (group + 1) % CONSUMERS), "n"(CONSUMERS * GROUP_THREADS) : "memory");
}

// A sum for each stage; the sums are added, rounded to nearest.  `store` is called while the first products run, and
// until then `sum` still holds the results of the tile before.
template <typename Store>
__device__ __forceinline__ void sum_by_stage(
    float (&sum)[SUMS], const Shared& shared, Ring& ring, int group, int steps, const Store& store
) {
    float part[SUMS];
    const auto begin = [&] {
        wait_for(shared.is_full(ring.stage), ring.parity);
        settle(part);
        await_turn(group);
        wgmma_fence();
        multiply(part, shared, ring.stage, group, true);
        wgmma_commit();
        pass_turn(group);
    };
    const auto end = [&] {
        wgmma_wait<0>();
        settle(part);
        release(shared, ring.stage);
        ring.next();
    };
    begin();
    store();
    end();
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] = part[i];
    for (int s = 1; s < steps; ++s) {
        begin();
        end();
        #pragma unroll
        for (int i = 0; i < SUMS; ++i) sum[i] += part[i];
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
tcs_gemm_wgmma(
    const __grid_constant__ TensorMap a_hi, const __grid_constant__ TensorMap a_lo,
    const __grid_constant__ TensorMap b_hi, const __grid_constant__ TensorMap b_lo,
    const __grid_constant__ TensorMap results, Index how, const float* __restrict__ alpha_by, unsigned* work,
    void* out, Index ld_out, Index kind, const void* c, Index ld_c,
    const float* __restrict__ a, Index row_a, Index col_a, const unsigned* __restrict__ top_a,
    const float* __restrict__ b, Index row_b, Index col_b, const unsigned* __restrict__ top_b,
    Index m, Index n, Index k, double alpha, double beta, Index sharing, const unsigned* __restrict__ taken
) {
    extern __shared__ char dynamic[];
    __shared__ __align__(8) unsigned long long barriers[3 * STAGES];
    __shared__ int tiles[2 * STAGES];
    const Shared shared = {
        (shared_address(dynamic) + 1023) & ~1023u, shared_address(barriers), shared_address(barriers + STAGES),
        shared_address(barriers + 2 * STAGES), tiles, tiles + STAGES
    };
    const Schedule schedule(m, n, k, work, unsigned(sharing), CLUSTER > 1 ? rank_in_cluster() : 0);
    __shared__ bool leaves;
    if (threadIdx.x == 0) {
        // A block that starts after all tiles have been taken ends, too: other kernels may wait for its multiprocessor.
        const unsigned here = multiprocessor();
        leaves = CLUSTER == 1 && ((taken && taken[here / WARP % 8] >> here % WARP & 1) || schedule.is_over());
        if (leaves) schedule.leave();
        for (int s = 0; s < STAGES; ++s) {
            init_barrier<1>(shared.is_full(s));
            init_barrier<CONSUMERS * WARPS_IN_GROUP * CLUSTER>(shared.is_empty(s));
            init_barrier<1>(shared.is_sent(s));
        }
        show_barriers();
    }
    __syncthreads();
    if (CLUSTER == 1 && leaves) return;
    if (CLUSTER > 1) meet_in_cluster();  // the barriers of both blocks must be set up before one sends

    const int steps = int((k + BLOCK_K - 1) / BLOCK_K);
    // The shuffle tells the compiler that the number is the same in all lanes of the warp.  Then it computes the
    // addresses of operands in uniform registers, where wgmma needs them.  Otherwise there are two or more instructions
    // between most products.
    const int group = __shfl_sync(ALL_LANES, threadIdx.x / GROUP_THREADS, 0) - 1;
    if (group < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) feed(shared, schedule, steps, a_hi, a_lo, b_hi, b_lo);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (alpha_by) alpha *= *alpha_by;
        const Target target = {out, c, ld_out, ld_c, m, n, int(kind), alpha, beta};
        const Origin<T_LOW> origin = {
            a, b, row_a, col_a, row_b, col_b, k, SCALED ? top_a : nullptr, SCALED ? top_b : nullptr
        };
        const unsigned boxes = shared.boxes((threadIdx.x - GROUP_THREADS) / WARP);
        if (REFINE && group == CONSUMERS - 1) pass_turn(group);  // so that group 0 begins
        Ring ring;
        float sum[SUMS];
        int last = NO_TILE;  // the tile whose sums are not stored yet
        const auto store = [&](int tile) {
            if (tile == NO_TILE) return;
            int row, col;
            schedule.find(tile, row, col);
            store_sums(sum, target, origin, results, int(how), boxes, row + group * PANEL, col);
        };
        while (true) {
            wait_for(shared.is_full(ring.stage), ring.parity);
            // The warp releases the stage only after this shuffle, so the word is not overwritten too early.
            int tile = threadIdx.x % WARP ? NO_TILE : shared.tile[ring.stage];
            tile = __shfl_sync(ALL_LANES, tile, 0);
            if (tile == NO_TILE) break;
            if (REFINE) {
                sum_by_stage(sum, shared, ring, group, steps, [&] { store(last); });
                last = tile;
            } else {
                sum_through(sum, shared, ring, group, steps);
                store(tile);
            }
        }
        if (REFINE && group == 0) await_turn(group);  // the last turn, so that all barriers are complete
        store(last);
        // The copy engine may still read shared memory, and its writes must be complete before the next kernel.
        wait_until_stored();
    }
    // A block must not end while another one copies to its shared memory or arrives at its barriers.
    if (CLUSTER > 1) meet_in_cluster();
}
