// x = T^-1 b or T^-T b for a triangle T of a square matrix and K right-hand sides, in one launch.
//
//   lu    T_IN n x n, row-major, leading dimension ld: T is its lower (LOWER 1) or upper (LOWER 0) triangle.
//   dinv  T_IN [ceil(n / BLOCK)][BLOCK][BLOCK]: inverses of T's diagonal blocks, zero outside their triangle
//         and beyond n; they say whether the diagonal is unit.
//   b     T_IN [K][n].   x  T_IN [K][n], every byte 0xff before the launch (see below).
//   ticket  unsigned[1], every byte 0xff before the launch.
//
// Defines T_IN (float or double), K, LOWER, TRANS (1: the transposed triangle).
// Grid any, block THREADS; a few blocks for each multiprocessor are best.
//
// Blocks of BLOCK unknowns are solved in the order of the substitution, one by each thread block that draws
// its ticket: x_i = D_i^-1 (b_i - sum_j T_ij x_j).  The sum runs over the x_j as they appear, and the next
// two T_ij are fetched while x_j is awaited.  A value is its own flag: x starts as the NaN with all bits set, which
// no arithmetic produces, and a reader polls until it is gone, so that a step costs one trip through the
// cache and no fence.  A ticket is drawn only after those of all x_j it needs, hence no deadlock however
// many thread blocks are resident.
//
// Rounding: fused multiply-adds in T_IN; the order of the sums depends on n and K alone.

#include "common.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / WARP;
constexpr int VECTOR = 16 / sizeof(T_IN);            // entries of one 16-byte access
constexpr int BLOCK = sizeof(T_IN) == 4 ? 128 : 64;
constexpr int ROWS = BLOCK / WARPS;                  // rows of a block each warp holds
constexpr int LANES = WARP / ROWS;                   // threads that end up with the sum of an unknown
static_assert(BLOCK == WARP * VECTOR, "an access for each lane makes a row");
constexpr bool FORWARD = LOWER != TRANS;
constexpr int NAP = 50;                              // nanoseconds

__device__ __forceinline__ bool pending(float v) { return __float_as_uint(v) == ~0u; }
__device__ __forceinline__ bool pending(double v) {
    return static_cast<unsigned long long>(__double_as_longlong(v)) == ~0ull;
}

// Waits for a value another thread block writes, reading it where it cannot be stale; `patient` if others need it
// sooner, whose way to the cache should be free.
__device__ __forceinline__ T_IN await(const T_IN* from, bool patient) {
    for (;;) {
        const T_IN v = *reinterpret_cast<const volatile T_IN*>(from);
        if (!pending(v)) return v;
        if (patient) __nanosleep(NAP);
    }
}

__device__ __forceinline__ void publish(T_IN* to, T_IN v) {
    *reinterpret_cast<volatile T_IN*>(to) = pending(v) ? v - v : v;  // an ordinary NaN
}

// The part of a BLOCK x BLOCK tile a thread holds: a run of each of its warp's rows.
struct Tile { Run<T_IN, VECTOR> at[ROWS]; };

__device__ __forceinline__ int first_row() { return threadIdx.x / WARP * ROWS; }
__device__ __forceinline__ int first_column() { return threadIdx.x % WARP * VECTOR; }

// Zero beyond rows x cols.
__device__ __forceinline__ void load(Tile& t, const T_IN* from, Index ld, Index rows, Index cols, bool aligned) {
    from += first_row() * ld + first_column();
    if (aligned && rows >= BLOCK && cols >= BLOCK) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) t.at[r].load(from + r * ld, true, VECTOR);
        return;
    }
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const Index left = first_row() + r < rows ? cols - first_column() : 0;
        t.at[r].load(from + r * ld, aligned && left >= VECTOR, left);
    }
}

// A thread's share of the sums of the unknowns of a block: of its columns, or of its rows.
constexpr int SUMS = TRANS ? VECTOR : ROWS;

__device__ __forceinline__ void accumulate(T_IN (&sum)[K][SUMS], const Tile& t, const T_IN (*x)[BLOCK]) {
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        T_IN factor[TRANS ? ROWS : VECTOR];
        #pragma unroll
        for (int e = 0; e < (TRANS ? ROWS : VECTOR); ++e) factor[e] = x[k][(TRANS ? first_row() : first_column()) + e];
        #pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) sum[k][TRANS ? v : r] += t.at[r].at[v] * factor[TRANS ? r : v];
        }
    }
}

// Shares of columns by warp; the padding keeps the LANES that add up a column in different banks.
struct Scratch { T_IN at[TRANS ? K : 1][WARPS][BLOCK + BLOCK / 64]; };

// Adds up columns over all warps.
__device__ __forceinline__ void reduce_columns(T_IN (&total)[K], const T_IN (&sum)[K][SUMS], Scratch& scratch) {
    constexpr int EACH = WARPS / LANES;
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        #pragma unroll
        for (int v = 0; v < SUMS; ++v) scratch.at[k][threadIdx.x / WARP][first_column() + v] = sum[k][v];
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        total[k] = 0;
        #pragma unroll
        for (int w = 0; w < EACH; ++w) {
            total[k] += scratch.at[k][threadIdx.x % LANES * EACH + w][threadIdx.x / LANES];
        }
    }
}

// Adds up rows over lanes LANES apart: a lane keeps half of the rows it has and sends the others, until one is left.
__device__ __forceinline__ void reduce_rows(T_IN (&total)[K], T_IN (&sum)[K][SUMS]) {
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        #pragma unroll
        for (int half = ROWS / 2; half; half /= 2) {
            const bool upper = threadIdx.x & half * LANES;
            #pragma unroll
            for (int r = 0; r < half; ++r) {
                const T_IN kept = upper ? sum[k][r + half] : sum[k][r], sent = upper ? sum[k][r] : sum[k][r + half];
                sum[k][r] = kept + __shfl_xor_sync(ALL_LANES, sent, half * LANES);
            }
        }
        total[k] = sum[k][0];
    }
}

// Adds up the shares: LANES threads have the totals of each unknown threadIdx.x / LANES.
__device__ __forceinline__ void reduce(T_IN (&total)[K], T_IN (&sum)[K][SUMS], Scratch& scratch) {
    if constexpr (TRANS) reduce_columns(total, sum, scratch);
    else reduce_rows(total, sum);
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        #pragma unroll
        for (int d = LANES / 2; d; d /= 2) total[k] += __shfl_xor_sync(ALL_LANES, total[k], d);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_solve_triangle(
    T_IN* x, const T_IN* __restrict__ b, const T_IN* __restrict__ lu, Index ld, Index n,
    const T_IN* __restrict__ dinv, unsigned* ticket
) {
    __shared__ __align__(16) T_IN solved[2][K][BLOCK];  // x_j, alternately for even and odd steps
    __shared__ __align__(16) T_IN rhs[K][BLOCK];
    __shared__ Scratch scratch;
    __shared__ unsigned drawn;
    const int blocks = int((n + BLOCK - 1) / BLOCK);
    const bool aligned = aligned16(lu, ld);
    const int own = threadIdx.x / LANES;  // unknown
    const bool writes = threadIdx.x % LANES == 0;
    for (;;) {
        if (threadIdx.x == 0) drawn = atomicAdd(ticket, 1u) + 1;  // counts from 0xffffffff
        __syncthreads();
        const int step = int(drawn);
        __syncthreads();
        if (step >= blocks) return;
        const int i = FORWARD ? step : blocks - 1 - step;
        const Index here = Index(i) * BLOCK;
        auto fetch = [&](Tile& t, int s) {  // T_ij of the s-th x_j, then the inverse of T_ii
            if (s == step) return load(t, dinv + here * BLOCK, BLOCK, BLOCK, BLOCK, true);
            const Index there = Index(FORWARD ? s : blocks - 1 - s) * BLOCK;
            const Index row = TRANS ? there : here, col = TRANS ? here : there;
            load(t, lu + row * ld + col, ld, n - row, n - col, aligned);
        };

        Tile even, odd;
        fetch(even, 0);
        if (step > 0) fetch(odd, 1);
        T_IN sum[K][SUMS] = {};
        #pragma unroll
        for (int k = 0; k < K; ++k) {
            if (writes) rhs[k][own] = here + own < n ? b[k * n + here + own] : T_IN(0);
        }

        // Adds T_ij x_j of the s-th x_j, and has its place in the registers refilled.
        auto add = [&](Tile& t, int s) {
            const Index there = Index(FORWARD ? s : blocks - 1 - s) * BLOCK;
            for (int e = threadIdx.x; e < K * BLOCK; e += THREADS) {
                const Index at = there + e % BLOCK;
                const T_IN* from = x + e / BLOCK * n + at;
                solved[s & 1][e / BLOCK][e % BLOCK] = at < n ? await(from, s + 1 < step) : T_IN(0);
            }
            __syncthreads();
            accumulate(sum, t, solved[s & 1]);
            if (s + 2 <= step) fetch(t, s + 2);
        };
        auto finish = [&](const Tile& inverse) {
            T_IN total[K], last[K][SUMS] = {};
            reduce(total, sum, scratch);
            #pragma unroll
            for (int k = 0; k < K; ++k) if (writes) rhs[k][own] -= total[k];
            __syncthreads();
            accumulate(last, inverse, rhs);
            reduce(total, last, scratch);
            #pragma unroll
            for (int k = 0; k < K; ++k) {
                if (writes && here + own < n) publish(x + k * n + here + own, total[k]);
            }
        };
        int s = 0;
        for (; s + 2 <= step; s += 2) {
            add(even, s);
            add(odd, s + 1);
        }
        if (s < step) {
            add(even, s);
            finish(odd);
        } else {
            finish(even);
        }
    }
}
