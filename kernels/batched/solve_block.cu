// Solves and verifies systems of at most ROWS unknowns in one launch.  A block takes a matrix, in shared memory;
// small_solve.cuh describes the arguments.
//
// Every warp searches the whole column for the pivot of a step, so that none waits for another.  Rows are not moved.
//
// Grid count, block THREADS; shared memory in FP64 (or pairs): n rows of n + 3 entries, or n + 4 if that is even, and 4
// vectors of n.
// Defines T_A, COMPLEX, ROWS (128), THREADS (256).

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = THREADS / WARP, PER_LANE = ROWS / WARP;
constexpr int OWN = ROWS / WARPS;  // a warp updates the rows warp + WARPS t, t < OWN

struct Entry { double part[PARTS]; };

__device__ __forceinline__ Number load(const Entry& v) { return {v.part[0], COMPLEX ? v.part[PARTS - 1] : 0.0}; }

__device__ __forceinline__ void save(Entry& to, Number v) {
    to.part[0] = v.re;
    if (COMPLEX) to.part[PARTS - 1] = v.im;
}

__device__ __forceinline__ Number from_lane(Number v, int lane) {
    return {__shfl_sync(ALL_LANES, v.re, lane), COMPLEX ? __shfl_sync(ALL_LANES, v.im, lane) : 0.0};
}

// The factors for substitutions by one warp: order[q] is the place where the row of step lane + 32 q starts.
struct Steps {
    const Entry *w, *inverses;
    int n, order[PER_LANE];

    // z := L^-1 z, where z[q] is the entry of step lane + 32 q.
    __device__ __forceinline__ void forward(Number (&z)[PER_LANE]) const {
        const int lane = threadIdx.x % WARP;
        #pragma unroll
        for (int block = 0; block < PER_LANE; ++block) {
            for (int j = WARP * block; j < min(n, WARP * (block + 1)); ++j) {
                const Number v = times(from_lane(z[block], j % WARP), load(inverses[j]));
                #pragma unroll
                for (int q = block; q < PER_LANE; ++q) {
                    const int step = lane + WARP * q;
                    if (step > j && step < n) z[q] = less(z[q], load(w[order[q] + j]), v);
                }
            }
        }
    }

    // answer := U^-1 z.
    __device__ __forceinline__ void backward(Number (&z)[PER_LANE], Entry* answer) const {
        const int lane = threadIdx.x % WARP;
        #pragma unroll
        for (int block = PER_LANE - 1; block >= 0; --block) {
            for (int j = min(n, WARP * (block + 1)) - 1; j >= WARP * block; --j) {
                const Number v = from_lane(times(z[block], load(inverses[j])), j % WARP);
                if (lane == 0) save(answer[j], v);
                #pragma unroll
                for (int q = 0; q <= block; ++q) {
                    if (lane + WARP * q < j) z[q] = less(z[q], load(w[order[q] + j]), v);
                }
            }
        }
    }

    // Loads column c in the order of the steps.
    __device__ __forceinline__ void take(Number (&z)[PER_LANE], int c) const {
        #pragma unroll
        for (int q = 0; q < PER_LANE; ++q) {
            const bool is_there = threadIdx.x % WARP + WARP * q < n;
            z[q] = is_there ? load(w[order[q] + c]) : Number{0.0, 0.0};
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_solve_block(
    T_A* x, double* board, char* doubtful, int* doubts, const T_A* a, Index a_step, Index a_row, Index a_col,
    const T_A* b, Index b_step, Index b_row, Index below, Index above, Index mirror, Index kind, double bound,
    double least, double safe, double agrees, Index count, Index rows
) {
    extern __shared__ __align__(16) char memory[];
    __shared__ int order[ROWS];
    const int n = int(rows), ld = (n + SIDES) | 1, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Entry* w = reinterpret_cast<Entry*>(memory);  // the matrix, and right-hand sides as its last columns
    Entry* inverses = w + n * ld;                 // 1 / pivot of each step
    Entry* answers = inverses + n;                // [SIDES][n]
    const Index slice = blockIdx.x;
    const Reading read = {a + PARTS * slice * a_step, a_row, a_col, {below, above, mirror}};
    b += PARTS * slice * b_step;

    Seen seen;
    const bool by_rows = a_col <= a_row;  // so that neighbouring threads read neighbours in memory
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
    for (int t = threadIdx.x; t < 2 * n; t += THREADS) {
        const int first = t < n ? t * ld : t - n, next = t < n ? 1 : ld;
        double sum = 0;
        for (int c = 0; c < n; ++c) sum += modulus(load(w[first + c * next]));
        (t < n ? inf : one) = larger(t < n ? inf : one, sum);
    }
    inf = over_block<WARPS>(inf, larger), one = over_block<WARPS>(one, larger);

    // Elimination.  While bit i % 32 of left[i / 32] is set, row i has not been a pivot's row.
    unsigned left[PER_LANE];
    #pragma unroll
    for (int q = 0; q < PER_LANE; ++q) left[q] = __ballot_sync(ALL_LANES, lane + WARP * q < n);
    const bool is_solved = kind == TRIANGLE && below == 0;  // an upper triangle has nothing to eliminate
    const int behind = kind == TRIANGLE ? n : 0;            // in a lower triangle, the rest of a pivot's row is zero
    int broken = 0;
    for (int j = 0; j < n && !is_solved; ++j) {
        int p = j;
        if (kind == GENERAL) {
            unsigned key = 0;
            #pragma unroll
            for (int q = 0; q < PER_LANE; ++q) {
                const int i = lane + WARP * q;
                if (left[q] >> lane & 1) key = max(key, key_of(load(w[i * ld + j]), ROWS - 1 - i) + KEY_ROWS);
            }
            p = ROWS - 1 - int(largest_of_lanes(key) % KEY_ROWS);
        }
        #pragma unroll
        for (int q = 0; q < PER_LANE; ++q) if (p / WARP == q) left[q] &= ~(1u << p % WARP);
        const Number pivot = load(w[p * ld + j]), inverse = reciprocal(pivot);
        if (!broken && is_broken(pivot, kind)) broken = j + 1;
        if (threadIdx.x == 0) order[j] = p, save(inverses[j], inverse);

        const auto is_left = [&](int t) { return left[WARPS * t / WARP] >> (WARPS * t % WARP + warp) & 1; };
        Entry* own = w + warp * ld;
        Number l[OWN], v[OWN];
        #pragma unroll
        for (int t = 0; t < OWN; ++t) if (is_left(t)) l[t] = times(load(own[WARPS * t * ld + j]), inverse);
        for (int c = max(j + 1, behind) + lane; c < n + SIDES; c += WARP) {
            const Number u = load(w[p * ld + c]);
            #pragma unroll
            for (int t = 0; t < OWN; ++t) if (is_left(t)) v[t] = load(own[WARPS * t * ld + c]);
            #pragma unroll
            for (int t = 0; t < OWN; ++t) if (is_left(t)) save(own[WARPS * t * ld + c], less(v[t], l[t], u));
        }
        __syncthreads();
    }
    if (is_solved) {
        for (int j = threadIdx.x; j < n; j += THREADS) save(inverses[j], reciprocal(load(w[j * ld + j])));
        __syncthreads();
    }

    // Back substitution, one right-hand side by each warp.
    Steps steps = {w, inverses, n, {}};
    Number z[PER_LANE];
    #pragma unroll
    for (int q = 0; q < PER_LANE; ++q) steps.order[q] = order[min(lane + WARP * q, n - 1)] * ld;
    for (int s = warp; s < SIDES; s += WARPS) {
        steps.take(z, n + s);
        steps.backward(z, answers + s * n);
    }
    __syncthreads();

    double grown = 0;
    for (int p = 0; p < PROBES; ++p) {
        double sum = 0;
        for (int i = threadIdx.x; i < n; i += THREADS) sum += modulus(load(answers[(1 + p) * n + i]));
        grown = larger(grown, over_block<WARPS>(sum, sum_of));
    }
    __syncthreads();

    // The residual, and one correction if the answer misses the bound.  The solutions for random vectors are not needed
    // any more: the correction and the uncorrected answer overwrite them.
    Entry *correction = answers + n, *kept = answers + 2 * n;
    double rest = 0, size = 0, rest_before = 0, size_before = 0;
    bool is_corrected = false;
    while (true) {
        rest = 0, size = 0;
        for (int i = warp; i < n; i += WARPS) {
            NumberSum sum;
            for (int j = lane; j < n; j += WARP) sum.add_product(read(i, j), rounded(load(answers[j])));
            sum.re.join<WARP>();
            if (COMPLEX) sum.im.join<WARP>();
            if (lane) continue;  // sums in other lanes may differ in the last bit
            const Number r = sum.from(number(b, i * b_row));
            rest = larger(rest, modulus(r));
            if (!is_corrected) save(w[i * ld + n], r);
        }
        for (int i = threadIdx.x; i < n; i += THREADS) size = larger(size, modulus(rounded(load(answers[i]))));
        rest = over_block<WARPS>(rest, larger), size = over_block<WARPS>(size, larger);
        if (is_corrected || rest <= bound * inf * size) break;
        is_corrected = true, rest_before = rest, size_before = size;
        if (warp == 0) {
            steps.take(z, n);
            if (!is_solved) steps.forward(z);
            steps.backward(z, correction);
            __syncwarp();
            for (int i = lane; i < n; i += WARP) {
                kept[i] = answers[i];
                save(answers[i], plus(load(kept[i]), load(correction[i])));
            }
        }
        __syncthreads();
    }
    if (is_corrected && !(rest * size_before < rest_before * size)) {  // the correction did not help
        for (int i = threadIdx.x; i < n; i += THREADS) answers[i] = kept[i];
        rest = rest_before, size = size_before;
    }
    for (int i = threadIdx.x; i < n; i += THREADS) {
        store(x + PARTS * slice * n, i, rounded(load(answers[i])));
    }
    seen.apart = over_block<WARPS>(seen.apart, larger), seen.largest = over_block<WARPS>(seen.largest, larger);
    double flags[] = {double(seen.beyond), double(seen.spoilt), double(seen.zero)};
    for (double& flag : flags) flag = over_block<WARPS>(flag, larger);
    seen.beyond = flags[0] > 0, seen.spoilt = flags[1] > 0, seen.zero = flags[2] > 0;
    const Measured found = {inf, one, grown, double(broken), rest, size};
    if (threadIdx.x == 0) found.report(seen, {kind, bound, least, safe, agrees}, slice, count, board, doubtful, doubts);
}
