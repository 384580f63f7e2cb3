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
// T_ij is fetched while x_j is awaited.  A value is its own flag: x starts as the NaN with all bits set, which
// no arithmetic produces, and a reader polls until it is gone, so that a step costs one trip through the
// cache and no fence.  A ticket is drawn only after those of all x_j it needs, hence no deadlock however
// many thread blocks are resident.
//
// Rounding: fused multiply-adds in T_IN; the order of the sums depends on n and K alone.

#include "common.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / WARP;
constexpr int COLS = sizeof(T_IN) == 4 ? 4 : 2;  // columns of a block each lane holds
constexpr int BLOCK = WARP * COLS;
constexpr int ROWS = BLOCK / WARPS;              // rows of a block each warp holds
constexpr bool FORWARD = LOWER != TRANS;

__device__ __forceinline__ bool pending(float v) { return __float_as_uint(v) == ~0u; }
__device__ __forceinline__ bool pending(double v) {
    return static_cast<unsigned long long>(__double_as_longlong(v)) == ~0ull;
}

// A value another thread block writes, from where it cannot be stale.
__device__ __forceinline__ T_IN peek(const T_IN* from) { return *reinterpret_cast<const volatile T_IN*>(from); }

__device__ __forceinline__ void publish(T_IN* to, T_IN v) {
    *reinterpret_cast<volatile T_IN*>(to) = pending(v) ? v - v : v;  // an ordinary NaN
}

struct Tile { T_IN at[ROWS][COLS]; };

// Rows warp * ROWS + i and columns lane + WARP q of a BLOCK x BLOCK tile, zero beyond rows x cols.
__device__ __forceinline__ void load(Tile& t, const T_IN* from, Index ld, Index rows, Index cols) {
    const int lane = threadIdx.x % WARP, row = threadIdx.x / WARP * ROWS;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        #pragma unroll
        for (int q = 0; q < COLS; ++q) {
            const bool inside = row + i < rows && lane + WARP * q < cols;
            t.at[i][q] = inside ? __ldg(from + (row + i) * ld + lane + WARP * q) : T_IN(0);
        }
    }
}

// Partial sums of the unknowns of a block: of its rows, or, transposed, of its columns.
constexpr int SUMS = TRANS ? COLS : ROWS, VALUES = TRANS ? ROWS : COLS;

template <typename Fetch>
__device__ __forceinline__ void accumulate(T_IN (&sum)[K][SUMS], const Tile& t, Fetch fetch) {
    const int lane = threadIdx.x % WARP, row = threadIdx.x / WARP * ROWS;
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        T_IN v[VALUES];
        #pragma unroll
        for (int e = 0; e < VALUES; ++e) v[e] = fetch(k, TRANS ? row + e : lane + WARP * e);
        // All are asked for before any is waited for.
        #pragma unroll
        for (int e = 0; e < VALUES; ++e) {
            while (pending(v[e])) v[e] = fetch(k, TRANS ? row + e : lane + WARP * e);
        }
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            #pragma unroll
            for (int q = 0; q < COLS; ++q) sum[k][TRANS ? q : i] += t.at[i][q] * v[TRANS ? i : q];
        }
    }
}

// Adds up the partial sums and hands each unknown's total to `store`, once.
template <typename Store>
__device__ __forceinline__ void reduce(T_IN (&sum)[K][SUMS], T_IN (*scratch)[BLOCK], Store store) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    #pragma unroll
    for (int k = 0; k < K; ++k) {
        if (TRANS) {
            #pragma unroll
            for (int q = 0; q < SUMS; ++q) scratch[warp][lane + WARP * q] = sum[k][q];
            __syncthreads();
            if (threadIdx.x < BLOCK) {
                T_IN total = 0;
                #pragma unroll
                for (int w = 0; w < WARPS; ++w) total += scratch[w][threadIdx.x];
                store(k, threadIdx.x, total);
            }
            __syncthreads();
        } else {
            #pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                T_IN total = sum[k][i];
                #pragma unroll
                for (int d = WARP / 2; d; d /= 2) total += __shfl_xor_sync(ALL_LANES, total, d);
                if (lane == i) store(k, warp * ROWS + i, total);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_solve_triangle(
    T_IN* x, const T_IN* __restrict__ b, const T_IN* __restrict__ lu, Index ld, Index n,
    const T_IN* __restrict__ dinv, unsigned* ticket
) {
    __shared__ T_IN rhs[K][BLOCK];
    __shared__ T_IN scratch[TRANS ? WARPS : 1][BLOCK];
    __shared__ unsigned drawn;
    const int blocks = int((n + BLOCK - 1) / BLOCK);
    for (;;) {
        if (threadIdx.x == 0) drawn = atomicAdd(ticket, 1u) + 1;  // counts from 0xffffffff
        __syncthreads();
        const int step = int(drawn);
        __syncthreads();
        if (step >= blocks) return;
        const int i = FORWARD ? step : blocks - 1 - step;
        const Index here = Index(i) * BLOCK;
        auto tile = [&](Tile& t, int s) {
            const int j = FORWARD ? s : blocks - 1 - s;
            const Index there = Index(j) * BLOCK, row = TRANS ? there : here, col = TRANS ? here : there;
            load(t, lu + row * ld + col, ld, n - row, n - col);
        };
        auto inverse = [&](Tile& t) { load(t, dinv + here * BLOCK, BLOCK, BLOCK, BLOCK); };

        T_IN sum[K][SUMS] = {};
        Tile now, next;
        if (step) tile(now, 0); else inverse(now);
        for (int s = 0; s < step; ++s) {
            if (s + 1 < step) tile(next, s + 1); else inverse(next);
            const Index there = Index(FORWARD ? s : blocks - 1 - s) * BLOCK;
            accumulate(sum, now, [&](int k, int e) {
                return there + e < n ? peek(x + k * n + there + e) : T_IN(0);
            });
            now = next;
        }
        reduce(sum, scratch, [&](int k, int e, T_IN total) {
            rhs[k][e] = here + e < n ? b[k * n + here + e] - total : T_IN(0);
        });
        __syncthreads();
        T_IN solved[K][SUMS] = {};
        accumulate(solved, now, [&](int k, int e) { return rhs[k][e]; });
        reduce(solved, scratch, [&](int k, int e, T_IN total) {
            if (here + e < n) publish(x + k * n + here + e, total);
        });
    }
}
