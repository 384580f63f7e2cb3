// Solves and verifies systems of at most 16 unknowns in one launch.  LANES threads take a matrix, one row each, in
// registers; small_solve.cuh describes the arguments.
//
// Rows are not moved; pivots[j] is the lane that has the pivot of step j.  Grid ceil(count LANES / 128), block 128.
// Defines T_A, COMPLEX, LANES (4, 8 or 16, at least n).

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 128, TEAMS = THREADS / LANES, N = LANES;

__device__ __forceinline__ double from_lane(double v, int lane) { return __shfl_sync(ALL_LANES, v, lane, LANES); }

__device__ __forceinline__ Number from_lane(Number v, int lane) {
    return {from_lane(v.re, lane), COMPLEX ? from_lane(v.im, lane) : 0.0};
}

// The largest of the N sums of v[0], v[1], ... over all lanes; each step halves the columns that a lane holds.
__device__ __forceinline__ double largest_column(double (&v)[N]) {
    #pragma unroll
    for (int d = LANES / 2; d; d /= 2) {
        const bool upper = threadIdx.x & d;
        #pragma unroll
        for (int i = 0; i < d; ++i) {
            const double kept = upper ? v[i + d] : v[i], sent = upper ? v[i] : v[i + d];
            v[i] = kept + __shfl_xor_sync(ALL_LANES, sent, d);
        }
    }
    return over_lanes<LANES>(v[0], larger);
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_solve_rows(
    T_A* x, double* board, const T_A* a, Index a_step, Index a_row, Index a_col, const T_A* b, Index b_step, Index b_row,
    Index below, Index above, Index mirror, Index kind, double bound, Index count, Index n
) {
    const int lane = threadIdx.x % LANES;
    const Index team = Index(blockIdx.x) * TEAMS + threadIdx.x / LANES, slice = min(team, count - 1);
    const bool has_row = lane < n;
    const Reading read = {a + PARTS * slice * a_step, a_row, a_col, {below, above, mirror}};

    // The row of this lane, followed by its right-hand sides.  Beyond n, the matrix is the identity.
    Number row[N + SIDES];
    Seen seen;
    double inf = 0, sizes[N];
    #pragma unroll
    for (int j = 0; j < N; ++j) {
        row[j] = {lane == j ? 1.0 : 0.0, 0.0}, sizes[j] = 0;
        if (has_row && j < n) {
            const Number given = read.given(lane, j);
            row[j] = read.band.stands(lane, j, given, read.other(lane, j));
            seen.note(read.band, lane, j, given, row[j]);
            sizes[j] = modulus(row[j]), inf += sizes[j];
        }
    }
    const Number of_b = has_row ? number(b + PARTS * slice * b_step, lane * b_row) : Number{0.0, 0.0};
    row[N] = of_b;
    #pragma unroll
    for (int p = 0; p < PROBES; ++p) row[N + 1 + p] = {has_row ? random_probe(lane, p) : 0.0, 0.0};
    const double one = largest_column(sizes);
    inf = over_lanes<LANES>(inf, larger);

    // Elimination.  In the lane of a pivot its reciprocal takes the place of the pivot.
    int pivots[N], broken = 0, step = N;  // step: the one whose pivot is in this lane's row
    bool is_left = has_row;
    #pragma unroll
    for (int j = 0; j < N; ++j) {
        if (j >= n) continue;
        int p = j;
        if (kind == GENERAL) {
            const unsigned key = is_left ? key_of(row[j], LANES - 1 - lane) + KEY_ROWS : 0;
            p = LANES - 1 - int(largest_of_lanes<LANES>(key) % KEY_ROWS);
        }
        pivots[j] = p;
        const Number pivot = from_lane(row[j], p), inverse = reciprocal(pivot);
        if (!broken && is_broken(pivot, kind)) broken = j + 1;
        is_left = is_left && lane != p;
        const Number l = times(row[j], inverse);
        #pragma unroll
        for (int c = j + 1; c < N + SIDES; ++c) {
            if (c >= n && c < N) continue;
            const Number u = from_lane(row[c], p);
            if (is_left) row[c] = less(row[c], l, u);
        }
        if (lane == p) row[j] = inverse, step = j;
    }

    // Back substitution.  Lane j gets entry j of each solution.
    Number y[SIDES] = {};
    #pragma unroll
    for (int j = N - 1; j >= 0; --j) {
        if (j >= n) continue;
        #pragma unroll
        for (int s = 0; s < SIDES; ++s) {
            const Number v = from_lane(times(row[N + s], row[j]), pivots[j]);
            if (lane == j) y[s] = v;
            row[N + s] = less(row[N + s], row[j], v);  // rows of later steps are not used again
        }
    }

    const auto residual = [&](Number mine) {
        NumberSum sum;
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            if (j >= n) continue;
            const Number v = from_lane(mine, j);
            if (has_row) sum.add_product(read(lane, j), v);
        }
        return has_row ? sum.from(of_b) : Number{0.0, 0.0};
    };
    Number mine = rounded(y[0]), r = residual(mine);
    double rest = over_lanes<LANES>(modulus(r), larger), size = over_lanes<LANES>(modulus(mine), larger);
    const bool misses = !(rest <= bound * inf * size);
    if (__any_sync(ALL_LANES, misses)) {
        #pragma unroll
        for (int j = 0; j < N; ++j) {  // L^-1 r
            if (j >= n) continue;
            const Number l = times(row[j], from_lane(row[j], pivots[j])), v = from_lane(r, pivots[j]);
            if (has_row && step > j) r = less(r, l, v);
        }
        Number d = {};
        #pragma unroll
        for (int j = N - 1; j >= 0; --j) {
            if (j >= n) continue;
            const Number v = from_lane(times(r, row[j]), pivots[j]);
            if (lane == j) d = v;
            r = less(r, row[j], v);
        }
        const Number corrected = rounded(plus(y[0], d));
        const double less_rest = over_lanes<LANES>(modulus(residual(corrected)), larger);
        const double new_size = over_lanes<LANES>(modulus(corrected), larger);
        // Only for systems that miss the bound, so that the bits of a result do not depend on its neighbours in the
        // stack.
        if (misses && less_rest * size < rest * new_size) mine = corrected, rest = less_rest, size = new_size;
    }
    double grown = 0;
    #pragma unroll
    for (int p = 0; p < PROBES; ++p) grown = larger(grown, over_lanes<LANES>(modulus(y[1 + p]), sum_of));
    seen.apart = over_lanes<LANES>(seen.apart, larger), seen.largest = over_lanes<LANES>(seen.largest, larger);
    int flags = seen.beyond + 2 * seen.spoilt + 4 * seen.zero;
    flags = over_lanes<LANES>(flags, [](int u, int v) { return u | v; });
    seen.beyond = flags & 1, seen.spoilt = flags & 2, seen.zero = flags & 4;

    if (team >= count) return;
    if (has_row) store(x + PARTS * slice * n, lane, mine);
    if (lane == 0) {
        const auto write = [&](int number, double v) { board[number * count + slice] = v; };
        tell(seen, write);
        write(SEEN, inf), write(SEEN + 1, one), write(SEEN + 2, grown), write(SEEN + 3, broken);
        write(SEEN + 4, rest), write(SEEN + 5, size);
    }
}
