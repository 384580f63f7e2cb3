// x = T^-1 b or T^-T b for a triangle T of a square matrix and K right-hand sides, in one launch.
//
//   lu    T_IN n x n, row-major, leading dimension ld: T is its lower (LOWER 1) or upper (LOWER 0) triangle.
//   dinv  T_IN [ceil(n / BLOCK)][BLOCK][BLOCK]: inverses of T's diagonal blocks D_i, zero outside their triangle
//         and beyond n.  The diagonal of T is used only through them.
//   b     T_IN [K][n].   x  T_IN [K][n], every byte 0xff before the launch (see below).
//   ticket  unsigned[1], every byte 0xff before the launch.
//   tops  null, or unsigned long long[K]: if all are zero, so is b, and T is not read.
//
// Defines T_IN (float or double), K, LOWER, TRANS (1: the transposed triangle), BLOCKS (thread blocks of a cluster
// or 0).  Grid any number of clusters; block THREADS.  As many blocks as the device holds at a time are best.
//
// Blocks of BLOCK unknowns are solved for in the order of the substitution: x_i = D_i^-1 (b_i - sum_j T_ij x_j).  A
// cluster draws a ticket for several successive blocks of unknowns, one for each of its thread blocks.  A thread
// block adds T_ij x_j to the sum as soon as x_j is known, and loads the next two T_ij while it waits.
//
// An x_j from the same cluster arrives by st.async in shared memory, which is faster than through the cache.  All
// others are read from x, where each value is its own flag: x starts as the NaN with all bits set, which is never
// stored, and a reader polls until another value appears, so that a step needs no fence.  Tickets are drawn in the
// order of the substitution, so all x_j that a ticket needs belong to this ticket or to earlier ones, and there is no
// deadlock however few thread blocks are resident.
//
// Rounding: fused multiply-adds in T_IN within a tile, sums over tiles in FP64; their order does not depend on the
// grid.  If all sums were in FP32, their rounding would be the largest error of a solve with FP32 factors.

#include "common/common.cuh"
#include "common/reduce.cuh"
#if BLOCKS
#include "common/cluster.cuh"
#endif

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / WARP;
constexpr int VECTOR = 16 / sizeof(T_IN);            // entries of one 16-byte access
constexpr int BLOCK = sizeof(T_IN) == 4 ? 128 : 64;
constexpr int ROWS = BLOCK / WARPS;                  // rows of a block that each warp holds
constexpr int LANES = WARP / ROWS;                   // lanes that share a row's sum
constexpr int RUNS = ROWS * BLOCK / (WARP * VECTOR); // accesses of a thread to a tile
constexpr bool FORWARD = LOWER != TRANS;
constexpr int TEAM = BLOCKS ? BLOCKS : 1;            // blocks of unknowns for a ticket
static_assert(TEAM <= WARPS, "a warp sends to each block of the cluster");
static_assert(BLOCK == WARP * VECTOR, "a word of x_j for each lane, and whole warps await it");
static_assert(K * BLOCK <= THREADS, "an entry of x_j for a thread");

__device__ __forceinline__ bool pending(float v) { return __float_as_uint(v) == ~0u; }
__device__ __forceinline__ bool pending(double v) {
    return static_cast<unsigned long long>(__double_as_longlong(v)) == ~0ull;
}

// Reads a value of another thread block, but not from the first-level cache; a lane without `wants` gets zero.
__device__ __forceinline__ T_IN look(const T_IN* from, bool wants) {
    return wants ? *reinterpret_cast<const volatile T_IN*>(from) : T_IN(0);
}

// Waits until no lane of the warp has a pending value; v is the value read last.  The lanes leave the loop together.
// If each lane leaves it by itself, racecheck reports a hazard: after the next barrier, threads read values that other
// warps have not written yet.  The machine code of ptxas 13.0 does not show why.
__device__ __forceinline__ T_IN await(T_IN v, const T_IN* from, bool wants) {
    while (__any_sync(ALL_LANES, pending(v))) v = look(from, wants);
    return v;
}

// Stores a value, but never the NaN with all bits set, which arithmetic may copy from b or T; another NaN takes its
// place.
__device__ __forceinline__ void publish(T_IN* to, T_IN v) {
    *reinterpret_cast<volatile T_IN*>(to) = pending(v) ? T_IN(__int_as_float(0x7fc00000)) : v;
}

// The part of a BLOCK x BLOCK tile that a thread holds, in runs of VECTOR entries.  If TRANS, columns are summed, and a
// lane has the same columns in all rows of its warp.  Otherwise rows are summed, and a lane has EACH rows, with ACROSS
// runs of each row.  With fewer rows for a lane, there would be fewer sums over lanes, but reading the unknowns from
// shared memory would take most of the time.
constexpr int ACROSS = TRANS ? 1 : 2, EACH = RUNS / ACROSS, WIDE = BLOCK / (ACROSS * VECTOR);
struct Tile { Run<T_IN, VECTOR> at[RUNS]; };

__device__ __forceinline__ int row_of(int r) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    return warp * ROWS + lane / WIDE * EACH + r / ACROSS;
}
__device__ __forceinline__ int column_of(int r) {
    return (r % ACROSS * WIDE + threadIdx.x % WIDE) * VECTOR;
}

// Loads a tile; entries beyond rows x cols become zero.
__device__ __forceinline__ void load(Tile& t, const T_IN* from, Index ld, Index rows, Index cols, bool aligned) {
    #pragma unroll
    for (int r = 0; r < RUNS; ++r) {
        const Index left = row_of(r) < rows ? cols - column_of(r) : 0;
        t.at[r].load(from + row_of(r) * ld + column_of(r), aligned && left >= VECTOR, left);
    }
}

// The number of sums of a thread: one for its row, or one for each of its columns.
constexpr int SUMS = TRANS ? VECTOR : 1;

#if !TRANS
// Begins to sum each of EACH rows over WIDE lanes.  In each step two lanes with partial sums of the same rows divide
// these rows: each keeps half of them, and adds the partner's sums to its own.  At the end, LANES lanes have partial
// sums of row threadIdx.x / LANES, which `reduce` adds up.
__device__ __forceinline__ T_IN gather(T_IN (&part)[EACH]) {
    #pragma unroll
    for (int half = EACH / 2, bit = WIDE / 2; half; half /= 2, bit /= 2) {
        const bool upper = threadIdx.x & bit;
        #pragma unroll
        for (int i = 0; i < half; ++i) {
            const T_IN given = upper ? part[i] : part[i + half], kept = upper ? part[i + half] : part[i];
            part[i] = kept + of_partner(given, bit);
        }
    }
    return part[0];
}
#endif

// Adds the products of a tile to the sums.  Within the tile they are summed in T_IN, over tiles in FP64.
__device__ __forceinline__ void accumulate(double (&sum)[K][SUMS], const Tile& t, const T_IN (*x)[BLOCK]) {
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        T_IN part[TRANS ? SUMS : EACH] = {};
        #pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            #pragma unroll
            for (int v = 0; v < VECTOR; ++v) {
                part[TRANS ? v : r / ACROSS] += t.at[r].at[v] * x[k][TRANS ? row_of(r) : column_of(r) + v];
            }
        }
#if TRANS
        #pragma unroll
        for (int v = 0; v < SUMS; ++v) sum[k][v] += part[v];
#else
        sum[k][0] += gather(part);
#endif
    }
}

// Adds up the sums of all threads, and calls store(k, e, total) once for each unknown e.
template <typename Store>
__device__ __forceinline__ void reduce(double (&sum)[K][SUMS], double (*scratch)[BLOCK], Store store) {
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        if (!TRANS) {
            butterfly<LANES>([&](int d) { sum[k][0] += of_partner(sum[k][0], d); });
            if (threadIdx.x % LANES == 0) store(k, threadIdx.x / LANES, sum[k][0]);
            continue;
        }
        #pragma unroll
        for (int v = 0; v < SUMS; ++v) scratch[threadIdx.x / WARP][column_of(0) + v] = sum[k][v];
        __syncthreads();
        if (threadIdx.x < BLOCK) {
            double total = 0;
            #pragma unroll
            for (int w = 0; w < WARPS; ++w) total += scratch[w][threadIdx.x];
            store(k, threadIdx.x, total);
        }
        __syncthreads();
    }
}

// The x_j that thread blocks of lower rank in the cluster solve for.
#if BLOCKS
struct Arrivals {
    T_IN x[BLOCKS - 1][K][BLOCK];
    unsigned long long in[BLOCKS - 1];
};
#endif

// Waits for all threads of the cluster, or of the block.
__device__ __forceinline__ void meet() {
#if BLOCKS
    arrive_in_cluster();
    wait_in_cluster();
#else
    __syncthreads();
#endif
}

// Draws the ticket of turn 0, 1, ... for a cluster, and returns the step of its first block, the same in all blocks.
// No block returns before all have finished the turn before.
__device__ __forceinline__ int draw(unsigned* ticket, int turn, unsigned rank) {
    __shared__ unsigned drawn[2];
    unsigned& mine = drawn[turn & 1];  // another thread may still read the ticket of the turn before
    if (rank == 0 && threadIdx.x < WARP) {
        unsigned number = threadIdx.x == 0 ? atomicAdd(ticket, 1u) + 1 : 0;  // counts from 0xffffffff
        number = __shfl_sync(ALL_LANES, number, 0);
#if BLOCKS
        if (threadIdx.x < BLOCKS) store_to(&mine, threadIdx.x, number);
#else
        mine = number;
#endif
    }
    meet();
    return TEAM * int(mine);
}

extern "C" __global__ void
#if BLOCKS
__cluster_dims__(BLOCKS, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
tcs_solve_triangle(
    T_IN* x, const T_IN* __restrict__ b, const T_IN* __restrict__ lu, Index ld, Index n,
    const T_IN* __restrict__ dinv, unsigned* ticket, const unsigned long long* __restrict__ tops
) {
    __shared__ __align__(16) T_IN solved[2][K][BLOCK];  // x_j of even and of odd steps; in the end x_i
    __shared__ __align__(16) T_IN rhs[K][BLOCK];        // b_i, then b_i minus the sum
    __shared__ double scratch[TRANS ? WARPS : 1][BLOCK];
    const int blocks = int((n + BLOCK - 1) / BLOCK), rank = blockIdx.x % TEAM;
    const bool aligned = aligned16(lu, ld);
    bool zero = tops != nullptr;
    #pragma unroll
    for (int k = 0; k < K; ++k) zero = zero && tops[k] == 0;
    if (zero) {
        for (Index e = Index(blockIdx.x) * THREADS + threadIdx.x; e < K * n; e += Index(gridDim.x) * THREADS) x[e] = 0;
        return;
    }
#if BLOCKS
    __shared__ __align__(16) Arrivals arrivals;
    if (threadIdx.x < BLOCKS - 1) set_up_barrier(arrivals.in[threadIdx.x]);
    meet();  // a block may send to another only after the other one has set up its barriers
#endif
    for (int turn = 0;; ++turn) {
        const int first = draw(ticket, turn, rank), step = first + rank;
        if (first >= blocks) return;
        if (step >= blocks) continue;
#if BLOCKS
        if (threadIdx.x < rank) expect(arrivals.in[threadIdx.x], sizeof(arrivals.x[0]), true);
#endif
        const int i = FORWARD ? step : blocks - 1 - step;
        const Index here = Index(i) * BLOCK;
        auto fetch = [&](Tile& t, int s) {  // T_ij for the s-th x_j; after the last one D_i^-1
            if (s == step) return load(t, dinv + here * BLOCK, BLOCK, BLOCK, BLOCK, true);
            const Index there = Index(FORWARD ? s : blocks - 1 - s) * BLOCK;
            const Index row = TRANS ? there : here, col = TRANS ? here : there;
            load(t, lu + row * ld + col, ld, n - row, n - col, aligned);
        };
        // A thread polls entry `mine` of the x_j that other clusters solve for.  As soon as it has one, it looks for
        // the next, before it loads a tile: loads return in order, and the poll would wait for the tile.
        const int mine = threadIdx.x, polled = BLOCKS ? first : step;
        const bool reads = mine < K * BLOCK;
        const auto entry = [&](int s) { return Index(FORWARD ? s : blocks - 1 - s) * BLOCK + mine % BLOCK; };
        const auto look_for = [&](int s) {
            return look(x + mine / BLOCK * n + entry(s), reads && s < polled && entry(s) < n);
        };
        T_IN seen = look_for(0);
        // Waits for the s-th x_j.
        auto receive = [&](int s) -> const T_IN (*)[BLOCK] {
#if BLOCKS
            if (s >= first) {
                wait_for(arrivals.in[s - first], turn);
                return arrivals.x[s - first];
            }
#endif
            if (reads) {
                solved[s & 1][mine / BLOCK][mine % BLOCK] =
                    await(seen, x + mine / BLOCK * n + entry(s), entry(s) < n);
                seen = look_for(s + 1);
            }
            __syncthreads();
            return solved[s & 1];
        };

        double sum[K][SUMS] = {};
        Tile even, odd;
        // The load of a tile starts after a tile has been used, and never between the arrival of x_j and its use,
        // because a poll waits for all earlier loads.
        auto take = [&](Tile& t, int s) {
            accumulate(sum, t, receive(s));
            if (s + 2 <= step) fetch(t, s + 2);
        };
        auto finish = [&](const Tile& inverse) {
            reduce(sum, scratch, [&](int k, int e, double total) { rhs[k][e] = T_IN(rhs[k][e] - total); });
            __syncthreads();
            double last[K][SUMS] = {};
            accumulate(last, inverse, rhs);
            auto& x_i = solved[0];
            reduce(last, scratch, [&](int k, int e, double total) {
                x_i[k][e] = T_IN(total);
                if (here + e < n) publish(x + k * n + here + e, T_IN(total));
            });
            __syncthreads();
#if BLOCKS
            const int warp = threadIdx.x / WARP;
            if (warp > rank && warp < BLOCKS && first + warp < blocks) {
                #pragma unroll
                for (int k = 0; k < K; ++k) {
                    const int e = threadIdx.x % WARP * VECTOR;
                    const float4 word = *reinterpret_cast<const float4*>(&x_i[k][e]);
                    send(word, mailbox_in(warp, &arrivals.x[rank][k][e], &arrivals.in[rank]), true);
                }
            }
#endif
        };
        fetch(even, 0);
        if (step > 0) fetch(odd, 1);
        // b_i is read now, so that x_i need not wait for it later.
        for (int e = threadIdx.x; e < K * BLOCK; e += THREADS) {
            const Index at = here + e % BLOCK;
            rhs[e / BLOCK][e % BLOCK] = at < n ? b[e / BLOCK * n + at] : T_IN(0);
        }
        __syncthreads();
        int s = 0;
        for (; s + 2 <= step; s += 2) take(even, s), take(odd, s + 1);
        if (s < step) {
            take(even, s);
            finish(odd);
        } else {
            finish(even);
        }
    }
}
