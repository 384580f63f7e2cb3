// x = T^-1 b or T^-T b for a triangle T of a square matrix and K right-hand sides, in one launch.
//
//   lu    T_IN n x n, row-major, leading dimension ld: T is its lower (LOWER 1) or upper (LOWER 0) triangle.
//   dinv  T_IN [ceil(n / BLOCK)][BLOCK][BLOCK]: inverses of T's diagonal blocks, zero outside their triangle
//         and beyond n; they say whether the diagonal is unit.
//   b     T_IN [K][n].   x  T_IN [K][n], every byte 0xff before the launch (see below).
//   ticket  unsigned[1], every byte 0xff before the launch.
//   tops  null, or unsigned long long[K]: if all are zero, so is b, and T is not read.
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
// Rounding: fused multiply-adds in T_IN within a tile, sums over tiles in FP64; their order depends on n and K
// alone.  Sums in FP32 throughout would be the largest error of a solve with FP32 factors.

#include "common.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / WARP;
constexpr int VECTOR = 16 / sizeof(T_IN);            // entries of one 16-byte access
constexpr int BLOCK = sizeof(T_IN) == 4 ? 128 : 64;
constexpr int ROWS = BLOCK / WARPS;                  // rows of a block each warp holds
constexpr int LANES = WARP / ROWS;                   // lanes that share a row
constexpr int RUNS = ROWS * BLOCK / (WARP * VECTOR); // accesses of a thread to a tile
constexpr bool FORWARD = LOWER != TRANS;

__device__ __forceinline__ bool pending(float v) { return __float_as_uint(v) == ~0u; }
__device__ __forceinline__ bool pending(double v) {
    return static_cast<unsigned long long>(__double_as_longlong(v)) == ~0ull;
}

// Waits for a value another thread block writes, reading it where it cannot be stale.
__device__ __forceinline__ T_IN await(const T_IN* from) {
    T_IN v;
    do v = *reinterpret_cast<const volatile T_IN*>(from); while (pending(v));
    return v;
}

__device__ __forceinline__ void publish(T_IN* to, T_IN v) {
    *reinterpret_cast<volatile T_IN*>(to) = pending(v) ? v - v : v;  // an ordinary NaN
}

// The part of a BLOCK x BLOCK tile a thread holds, in runs of VECTOR entries.  Where rows are summed, a few
// lanes share a row; where columns are summed, a lane keeps its columns over all rows of the warp.
struct Tile { Run<T_IN, VECTOR> at[RUNS]; };

__device__ __forceinline__ int row_of(int r) {
    return TRANS ? threadIdx.x / WARP * ROWS + r : threadIdx.x / LANES;
}
__device__ __forceinline__ int column_of(int r) {
    return (TRANS ? threadIdx.x % WARP : r * LANES + threadIdx.x % LANES) * VECTOR;
}

// Zero beyond rows x cols.
__device__ __forceinline__ void load(Tile& t, const T_IN* from, Index ld, Index rows, Index cols, bool aligned) {
    #pragma unroll
    for (int r = 0; r < RUNS; ++r) {
        const Index left = row_of(r) < rows ? cols - column_of(r) : 0;
        t.at[r].load(from + row_of(r) * ld + column_of(r), aligned && left >= VECTOR, left);
    }
}

// A thread's share of the sums of the unknowns of a block: of its row, or of its columns.
constexpr int SUMS = TRANS ? VECTOR : 1;

__device__ __forceinline__ void multiply(T_IN (&sum)[K][SUMS], const Tile& t, const T_IN (*x)[BLOCK]) {
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        #pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            #pragma unroll
            for (int v = 0; v < VECTOR; ++v) {
                sum[k][TRANS ? v : 0] += t.at[r].at[v] * x[k][TRANS ? row_of(r) : column_of(r) + v];
            }
        }
    }
}

// Adds a tile's share, made in T_IN, to sums in FP64: of n products only those of a tile are added in FP32.
__device__ __forceinline__ void accumulate(double (&sum)[K][SUMS], const Tile& t, const T_IN (*x)[BLOCK]) {
    T_IN part[K][SUMS] = {};
    multiply(part, t, x);
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        #pragma unroll
        for (int v = 0; v < SUMS; ++v) sum[k][v] += part[k][v];
    }
}

// Adds up the shares and hands the total of each unknown e to `store`, once.
template <typename Store>
__device__ __forceinline__ void reduce(double (&sum)[K][SUMS], double (*scratch)[BLOCK], Store store) {
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        if (!TRANS) {
            #pragma unroll
            for (int d = LANES / 2; d; d /= 2) sum[k][0] += __shfl_xor_sync(ALL_LANES, sum[k][0], d);
            if (threadIdx.x % LANES == 0) store(k, row_of(0), sum[k][0]);
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_solve_triangle(
    T_IN* x, const T_IN* __restrict__ b, const T_IN* __restrict__ lu, Index ld, Index n,
    const T_IN* __restrict__ dinv, unsigned* ticket, const unsigned long long* __restrict__ tops
) {
    __shared__ __align__(16) T_IN solved[2][K][BLOCK];  // x_j, alternately for even and odd steps
    __shared__ __align__(16) T_IN rhs[K][BLOCK];       // b_i, then what D_i^-1 is applied to
    __shared__ double scratch[TRANS ? WARPS : 1][BLOCK];
    __shared__ unsigned drawn;
    const int blocks = int((n + BLOCK - 1) / BLOCK);
    const bool aligned = aligned16(lu, ld);
    bool zero = tops != nullptr;
    #pragma unroll
    for (int k = 0; k < K; ++k) zero = zero && tops[k] == 0;
    if (zero) {
        for (Index e = Index(blockIdx.x) * THREADS + threadIdx.x; e < K * n; e += Index(gridDim.x) * THREADS) x[e] = 0;
        return;
    }
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

        double sum[K][SUMS] = {};
        Tile even, odd;
        // A tile is asked for when the one before the last has been used, never between x_j and its use: a reader
        // that polls waits for all that was asked for before.
        auto take = [&](Tile& t, int s) {
            const Index there = Index(FORWARD ? s : blocks - 1 - s) * BLOCK;
            for (int e = threadIdx.x; e < K * BLOCK; e += THREADS) {
                const Index at = there + e % BLOCK;
                solved[s & 1][e / BLOCK][e % BLOCK] = at < n ? await(x + e / BLOCK * n + at) : T_IN(0);
            }
            __syncthreads();
            accumulate(sum, t, solved[s & 1]);
            if (s + 2 <= step) fetch(t, s + 2);
        };
        auto finish = [&](const Tile& inverse) {
            reduce(sum, scratch, [&](int k, int e, double total) { rhs[k][e] = T_IN(rhs[k][e] - total); });
            __syncthreads();
            double last[K][SUMS] = {};
            accumulate(last, inverse, rhs);
            reduce(last, scratch, [&](int k, int e, double total) {
                if (here + e < n) publish(x + k * n + here + e, T_IN(total));
            });
        };
        fetch(even, 0);
        if (step > 0) fetch(odd, 1);
        // b_i is read now: later x_i would wait for it.
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
