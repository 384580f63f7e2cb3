// Systems of at most 128 unknowns, solved and verified in one launch: a block takes a matrix, in shared memory (see
// small_solve.cuh for the arguments).
//
// Each warp finds the pivot of a step on its own; rows are not moved.  Grid count, block 256, shared memory: n rows of
// n + 3 entries, or one more where that is even, then 4 vectors of n, in FP64 (or pairs).
// Defines T_A, COMPLEX.

#include "batched/small_solve.cuh"
#include "common/over_block.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP, MOST = 128, PER_LANE = MOST / WARP;

struct Entry { double part[PARTS]; };

__device__ __forceinline__ Number load(const Entry& v) { return {v.part[0], COMPLEX ? v.part[PARTS - 1] : 0.0}; }

__device__ __forceinline__ void save(Entry& to, Number v) {
    to.part[0] = v.re;
    if (COMPLEX) to.part[PARTS - 1] = v.im;
}

__device__ __forceinline__ Number from_lane(Number v, int lane) {
    return {__shfl_sync(ALL_LANES, v.re, lane), COMPLEX ? __shfl_sync(ALL_LANES, v.im, lane) : 0.0};
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_solve_block(
    T_A* x, double* board, const T_A* a, Index a_step, Index a_row, Index a_col, const T_A* b, Index b_step, Index b_row,
    Index below, Index above, Index mirror, Index kind, Index count, Index rows
) {
    extern __shared__ __align__(16) char memory[];
    __shared__ int order[MOST];
    const int n = int(rows), ld = (n + SIDES) | 1, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Entry* w = reinterpret_cast<Entry*>(memory);  // the matrix, and right-hand sides as its last columns
    Entry* inverses = w + n * ld;                 // 1 / pivot of each step
    Entry* answers = inverses + n;                // [SIDES][n]
    const Index slice = blockIdx.x;
    const Reading read = {a + PARTS * slice * a_step, a_row, a_col, {below, above, mirror}};
    b += PARTS * slice * b_step;

    Seen seen;
    const bool by_rows = a_col <= a_row;  // neighbours in memory by neighbouring threads
    for (int v = warp; v < n; v += WARPS) {
        for (int u = lane; u < n; u += WARP) {
            const int i = by_rows ? v : u, j = by_rows ? u : v;
            const Number given = read.given(i, j), stands = read.band.stands(i, j, given, read.other(i, j));
            seen.note(read.band, i, j, given, stands);
            save(w[i * ld + j], stands);
        }
    }
    for (int i = threadIdx.x; i < n; i += THREADS) {
        save(w[i * ld + n], number(b, i * b_row));
        for (int p = 0; p < PROBES; ++p) save(w[i * ld + n + 1 + p], {random_probe(i, p), 0.0});
        order[i] = i;
    }
    __syncthreads();
    double inf = 0, one = 0;
    if (threadIdx.x < MOST) {
        const int i = threadIdx.x;
        for (int j = 0; i < n && j < n; ++j) inf += modulus(load(w[i * ld + j]));
    } else {
        const int j = threadIdx.x - MOST;
        for (int i = 0; j < n && i < n; ++i) one += modulus(load(w[i * ld + j]));
    }
    inf = over_block<WARPS>(inf, larger), one = over_block<WARPS>(one, larger);

    // Elimination.  Row lane + 32 q is left as long as bit lane of left[q] is set.
    unsigned left[PER_LANE];
    #pragma unroll
    for (int q = 0; q < PER_LANE; ++q) left[q] = __ballot_sync(ALL_LANES, lane + WARP * q < n);
    int broken = 0;
    for (int j = 0; j < n; ++j) {
        int p = j;
        if (kind == GENERAL) {
            unsigned key = 0;
            #pragma unroll
            for (int q = 0; q < PER_LANE; ++q) {
                const int i = lane + WARP * q;
                if (left[q] >> lane & 1) key = max(key, key_of(load(w[i * ld + j]), MOST - 1 - i) + MOST);
            }
            #pragma unroll
            for (int d = WARP / 2; d; d /= 2) key = max(key, __shfl_xor_sync(ALL_LANES, key, d));
            p = MOST - 1 - int(key % MOST);
        }
        #pragma unroll
        for (int q = 0; q < PER_LANE; ++q) if (p / WARP == q) left[q] &= ~(1u << p % WARP);
        const Number pivot = load(w[p * ld + j]), inverse = reciprocal(pivot);
        if (!broken && is_broken(pivot, kind)) broken = j + 1;
        if (threadIdx.x == 0) order[j] = p, save(inverses[j], inverse);
        #pragma unroll
        for (int q = 0; q < PER_LANE; ++q) {
            for (int i = warp; i < WARP; i += WARPS) {
                if (!(left[q] >> i & 1)) continue;
                Entry* row = w + (WARP * q + i) * ld;
                const Number l = times(load(row[j]), inverse);
                if (kind != GENERAL && l.re == 0 && l.im == 0) continue;  // of a triangle or a band
                for (int c = j + 1 + lane; c < n + SIDES; c += WARP) save(row[c], less(load(row[c]), l, load(w[p * ld + c])));
            }
        }
        __syncthreads();
    }

    // Back substitution: a warp to each right-hand side, step lane + 32 q in z[q].
    if (warp < SIDES) {
        Number z[PER_LANE];
        int place[PER_LANE];
        #pragma unroll
        for (int q = 0; q < PER_LANE; ++q) {
            const int i = lane + WARP * q;
            place[q] = i < n ? order[i] * ld : 0;
            z[q] = i < n ? load(w[place[q] + n + warp]) : Number{0.0, 0.0};
        }
        #pragma unroll
        for (int block = PER_LANE - 1; block >= 0; --block) {
            for (int j = min(n, WARP * (block + 1)) - 1; j >= WARP * block; --j) {
                const Number v = from_lane(times(z[block], load(inverses[j])), j % WARP);
                if (lane == 0) save(answers[warp * n + j], v);
                #pragma unroll
                for (int q = 0; q <= block; ++q) {
                    if (lane + WARP * q < j) z[q] = less(z[q], load(w[place[q] + j]), v);
                }
            }
        }
    }
    __syncthreads();

    double rest = 0, size = 0, grown = 0;
    for (int i = warp; i < n; i += WARPS) {
        NumberSum sum;
        for (int j = lane; j < n; j += WARP) sum.add_product(read(i, j), rounded(load(answers[j])));
        sum.re.join<WARP>();
        if (COMPLEX) sum.im.join<WARP>();
        // One lane: the sums of the others may differ in the last bit.
        if (lane == 0) rest = larger(rest, modulus(sum.from(number(b, i * b_row))));
    }
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const Number mine = rounded(load(answers[i]));
        store(x + PARTS * slice * n, i, mine);
        size = larger(size, modulus(mine));
    }
    for (int p = 0; p < PROBES; ++p) {
        double sum = 0;
        for (int i = threadIdx.x; i < n; i += THREADS) sum += modulus(load(answers[(1 + p) * n + i]));
        grown = larger(grown, over_block<WARPS>(sum, sum_of));
    }
    rest = over_block<WARPS>(rest, larger), size = over_block<WARPS>(size, larger);
    const auto write = [&](int number, double v) {
        if (threadIdx.x == 0) board[number * count + slice] = v;
    };
    tell(seen, [&](int number, double v) { write(number, over_block<WARPS>(v, larger)); });
    write(SEEN, inf), write(SEEN + 1, one), write(SEEN + 2, grown), write(SEEN + 3, broken);
    write(SEEN + 4, rest), write(SEEN + 5, size);
}
