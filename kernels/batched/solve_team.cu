// Solves and verifies systems of at most MOST unknowns in one launch, by an inverse in FP32 and refinement in FP64.  A
// team, LANES neighbouring threads of a warp, takes a matrix.  small_solve.cuh describes most arguments, and
// solve_inverse.cu the others.
//
// A warp copies its matrices to shared memory, where they stay for the residuals.  Rows are scaled by powers of two,
// and A is rounded to FP32.  Gauss-Jordan elimination replaces it by its inverse, in place; lane i has the rows i,
// i + LANES, ... in registers.  Rows are not moved: in each step the pivot row is sent to all lanes of the team.
//
// Then x is refined until it meets the bound, as long as a step divides the residual by at least 4.
//
// Grid ceil(count LANES / THREADS), block THREADS; shared memory for each warp: a struct `Places` for each team,
// followed by SIZE entries for each team, rounded up to 16 bytes.
// Defines T_A, COMPLEX, BANDED (0 if all entries are read), MOST (a multiple of 8 and of LANES), LANES, THREADS,
// RESIDENT (blocks on a multiprocessor).

#include "batched/fp32_number.cuh"
#include "batched/fp32_trust.cuh"
#include "batched/matrices_of_warp.cuh"

constexpr int ROWS = N / LANES;
constexpr unsigned KEY_ROWS = 64;  // larger than N, so that no key of a row is zero
static_assert(ROWS * LANES == N && N % 8 == 0 && N < int(KEY_ROWS), "shape");

// Through these places the lanes of a team send numbers to each other.
struct __align__(16) Places {
    float row[2][PARTS * N];  // a pivot row; the next step uses the other place
    float side[PARTS * N];    // a scaled residual, in the order of the columns of the inverse
    Entry x[N];
    float4 gap;
};
static_assert(sizeof(Places) / 16 % 2 == 1, "an odd number of 16 bytes: few bank conflicts");

// The rows of A^-1 that a lane has.  After n steps, the row of pivot s is row s of the inverse of the scaled matrix.
struct Inverse {
    Small v[ROWS][N];
    int step[ROWS];  // the step whose pivot is in the row; a row beyond n has its own number

    // The number of a row of the matrix.
    __device__ __forceinline__ static int row_of(int r) { return threadIdx.x % LANES + LANES * r; }

    // Eliminates n columns.  With SEARCH, pivots are searched, and the function returns false if one is above
    // MOST_PIVOT.  Without SEARCH, pivots are on the diagonal, and it returns false if one of them is not positive.
    //
    // In each step, the column that is eliminated is in place 0, and all columns move one place to the left.
    template <bool SEARCH>
    __device__ __forceinline__ bool invert(Places& places, int n) {
        // The key for the search of a pivot is (bits & mask) | low.  The bits are those of the entry, or of |re| + |im|
        // if COMPLEX.  `low` tells the row; mask and low are zero once the row has had its pivot.
        unsigned mask[ROWS], low[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = row_of(r);
            mask[r] = SEARCH && i < n ? 0x7fffffffu / KEY_ROWS * KEY_ROWS : 0, low[r] = i < n ? KEY_ROWS - 1 - i : 0;
            step[r] = i;
        }
        bool good = true;
        #pragma unroll 1
        for (int k = 0; k < n; ++k) {
            Small inverses[ROWS];  // computed before the pivot is known, so that this overlaps the search
            unsigned keys[ROWS], best = 0;
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float size = COMPLEX ? fabsf(v[r][0].re) + fabsf(v[r][0].im) : v[r][0].re;
                keys[r] = __float_as_uint(size) & mask[r] | low[r], best = max(best, keys[r]);
                inverses[r] = inverse_of(v[r][0]);
            }
            best = SEARCH ? over_lanes<LANES>(best, larger_key) : KEY_ROWS - 1 - k;
            float* const sent = places.row[k % 2];  // the pivot row, but the reciprocal instead of the pivot
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (keys[r] != best) continue;
                const Small pivot = v[r][0];
                v[r][0] = inverses[r];
                #pragma unroll
                for (int c = 0; c < N; c += 8) write_eight(eight(v[r], c), sent + c, N);
                v[r][0] = pivot;
            }
            __syncwarp();
            Small u[N];
            #pragma unroll
            for (int c = 0; c < N; c += 8) read_eight(eight(u, c), sent + c, N);
            const Small inverse = u[0];
            good = good && (SEARCH ? best < __float_as_uint(MOST_PIVOT) : inverse.re > 0);
            Small l[ROWS], last[ROWS];
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const bool has_pivot = keys[r] == best;
                const Elimination of_row(v[r][0], inverse, has_pivot);
                l[r] = of_row.l, last[r] = of_row.last;
                if (has_pivot) step[r] = k, mask[r] = 0, low[r] = 0;
            }
            #pragma unroll
            for (int c = 1; c < N; ++c) {
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) v[r][c - 1] = less(v[r][c], l[r], u[c]);
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) v[r][N - 1] = last[r];
        }
        return good;
    }

    // Eight numbers of an array.
    __device__ __forceinline__ static Small (&eight(Small (&from)[N], int first))[8] {
        return *reinterpret_cast<Small (*)[8]>(from + first);
    }

    // The place of the column of the inverse that is multiplied by the right-hand side in row r of this lane.
    __device__ __forceinline__ int place(int r, int n) const { return step[r] < n ? step[r] + N - n : step[r] - n; }

    // Calls add(r, y) for each row of this lane; y is entry step[r] of the product of the inverse and `side`.
    template <typename Add>
    __device__ __forceinline__ void apply(Places& places, Add add) {
        Small sum[ROWS] = {};
        #pragma unroll
        for (int c = 0; c < N; c += 8) {
            Small by[8];
            read_eight(by, places.side + c, N);
            #pragma unroll
            for (int q = 0; q < 8; ++q) {
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) sum[r] = less(sum[r], v[r][c + q], by[q]);
            }
        }
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) add(r, Small{-sum[r].re, -sum[r].im});
    }

    // Stores the sums of the moduli of the columns, without the rows beyond n, in `sums`.
    __device__ __forceinline__ void add_columns(float* sums, int n) const {
        #pragma unroll
        for (int c = 0; c < N; ++c) {
            float sum = 0;
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (row_of(r) < n) sum += modulus(v[r][c]);
            }
            sum = sum_of_lanes<LANES>(sum);
            if (row_of(0) == c % LANES) sums[c] = sum;
        }
    }
};

// The largest of a team.
__device__ __forceinline__ double largest_of_team(double v) { return over_lanes<LANES>(v, larger); }

// Stores b - A x for the rows of this lane, and returns the largest modulus.  `most` is ||A||_inf max |x|.
template <bool EXACT>
__device__ __forceinline__ double residual(
    const Matrix& matrix, const Places& places, const Number (&b)[ROWS], double most, Number (&rest)[ROWS]
) {
    Residual<EXACT> sums[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) sums[r].begin(b[r], most);
    #pragma unroll 8
    for (int j = 0; j < N; ++j) {
        const Number v = load(places.x[j]);
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) sums[r].subtract(matrix(Inverse::row_of(r), j), v);
    }
    double largest = 0;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) rest[r] = sums[r].over_group(), largest = larger(largest, modulus(rest[r]));
    return largest;
}

// The square of the 2-norm of g - B Y g for random vector c (fp32_trust.cuh).  x is overwritten.
__device__ __forceinline__ double rest_of(
    Inverse& inverse, const Matrix& matrix, Places& places, const double (&scales)[ROWS], int c
) {
    Number given[ROWS], rest[ROWS];
    __syncwarp();  // the numbers in `places` have been used
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = inverse.row_of(r), at = inverse.place(r, matrix.n);
        const double g = i < matrix.n ? random_probe(i, c) : 0.0;
        given[r] = {g / scales[r], 0.0};
        places.side[at] = float(g);
        if (COMPLEX) places.side[N + at] = 0;
    }
    __syncwarp();
    inverse.apply(places, [&](int r, Small y) { save(places.x[inverse.step[r]], {y.re, y.im}); });
    __syncwarp();
    residual<false>(matrix, places, given, 0.0, rest);
    double sum = 0;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const double v = modulus(rest[r]) * scales[r];
        sum = fma(v, v, sum);
    }
    return sum_of_lanes<LANES>(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_team(
    T_A* x, double* board, char* doubtful, int* doubt, unsigned char* left, const T_A* a, Index a_step, Index a_row,
    Index a_col, const T_A* b, Index b_step, Index b_row, Index b_col, Index below, Index above, Index mirror,
    Index kind, double bound, double trusted, double least, double safe, double agrees, Index count, Index unknowns,
    Index columns
) {
    extern __shared__ double2 memory[];
    constexpr int MATRICES = (TEAMS * SIZE * int(sizeof(Given)) + 15) / 16, PLACES = TEAMS * int(sizeof(Places)) / 16;
    const int n = int(unknowns), k = int(columns), lane = threadIdx.x % LANES, warp = threadIdx.x / WARP;
    const int number_of_team = threadIdx.x % WARP / LANES;
    const Index first = (Index(blockIdx.x) * (THREADS / WARP) + warp) * TEAMS;
    if (first >= count) return;
    const Index own = first + number_of_team, slice = min(own, count - 1);
    double2* const of_warp = memory + warp * (PLACES + MATRICES);
    Places& places = reinterpret_cast<Places*>(of_warp)[number_of_team];
    Given* const matrices = reinterpret_cast<Given*>(of_warp + PLACES);
    const Matrix matrix = {matrices + number_of_team * SIZE, lane, n};

    matrix.begin();
    if (n == N && a_col == 1 && a_row == N && a_step == N * N && first + TEAMS <= count) {
        stage_packed(matrices, a + PARTS * first * (N * N));
    } else {
        stage(matrices, a, a_step, a_row, a_col, first, count, n, n, 0);
    }
    wait_for_copies();
    __syncwarp();

    Seen seen;
    if (BANDED) matrix.apply({below, above, mirror}, seen);
    const bool mirrored = BANDED && mirror;  // then the norms of rows and of columns are the same
    Inverse inverse;
    double inf = 0, one = 0, scales[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = inverse.row_of(r);
        double of_row = 0, of_column = 0;
        #pragma unroll (COMPLEX ? 2 : 8)
        for (int j = 0; j < N; ++j) {
            of_row += modulus(matrix(i, j));
            if (!mirrored) of_column += modulus(matrix(j, i));
        }
        if (i < n) inf = larger(inf, of_row), one = larger(one, of_column);
        scales[r] = power_to_one(of_row);
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            const Number v = matrix(i, j);
            inverse.v[r][j] = {float(v.re * scales[r]), COMPLEX ? float(v.im * scales[r]) : 0.0f};
        }
    }
    inf = largest_of_team(inf), one = mirrored ? inf : largest_of_team(one);
    if (!BANDED && !isfinite(inf)) {  // NaN or Inf, or a sum that has overflowed
        for (int i = lane; i < n; i += LANES) {
            for (int j = 0; j < n; ++j) {
                const Number v = matrix(i, j);
                seen.spoilt = seen.spoilt || !isfinite(v.re) || COMPLEX && !isfinite(v.im);
            }
        }
    }
    bool good = kind == GENERAL ? inverse.invert<true>(places, n) : inverse.invert<false>(places, n);

    double rests[MOST_SIDES] = {}, sizes[MOST_SIDES] = {};
    #pragma unroll 1
    for (int c = 0; c < k; ++c) {
        Number given[ROWS], rest[ROWS];
        double top = 0;
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = inverse.row_of(r);
            given[r] = Number{0.0, 0.0};
            if (i < n) given[r] = number(b + PARTS * slice * b_step, i * b_row + c * b_col);
            top = larger(top, modulus(given[r]) * scales[r]);
            save(places.x[i], {0.0, 0.0});
        }
        const double to_one = power_to_one(largest_of_team(top)), back = power_to_one(to_one);
        // Keeps the residual, scaled, for the next step.
        const auto take = [&] {
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int at = inverse.place(r, n);
                places.side[at] = float(rest[r].re * scales[r] * to_one);
                if (COMPLEX) places.side[N + at] = float(rest[r].im * scales[r] * to_one);
            }
        };
        // Adds A^-1 times the residual to x, and returns max |x| of the rows of this lane.
        const auto step = [&](bool active) {
            double size = 0;
            inverse.apply(places, [&](int r, Small y) {
                Entry& entry = places.x[inverse.step[r]];
                const Number v = rounded(plus(load(entry), {y.re * back, y.im * back}));
                size = larger(size, modulus(v));
                if (active) save(entry, v);
            });
            return size;
        };
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) rest[r] = given[r];
        take();
        __syncwarp();
        #pragma unroll 1
        for (int round = 0; round < PLAIN_ROUNDS; ++round) {
            step(true);
            __syncwarp();
            residual<false>(matrix, places, given, 0.0, rest);
            take();
            __syncwarp();
        }
        double before = LARGEST, of_rest = 0, of_x = 0;
        bool active = good;  // a team that has ended changes nothing more: its bits do not depend on other teams
        #pragma unroll 1
        while (__any_sync(ALL_LANES, active)) {
            const double size = largest_of_team(step(active));
            __syncwarp();
            const double largest = largest_of_team(residual<!SHORT>(matrix, places, given, inf * size, rest));
            if (active) {
                take();
                of_rest = largest, of_x = size;
                active = !(largest <= bound * inf * size);
                if (active) active = good = largest < before && largest <= before / 4;
                before = largest;
            }
            __syncwarp();
        }
        // The indices are constants, so that these arrays stay in registers.
        if (c == 0) rests[0] = of_rest, sizes[0] = of_x;
        else rests[1] = of_rest, sizes[1] = of_x;
        __syncwarp();
        for (int j = lane; j < n && own < count; j += LANES) {
            store(x + PARTS * slice * n * k, Index(j) * k + c, load(places.x[j]));
        }
        __syncwarp();
    }

    inverse.add_columns(places.side, n);
    __syncwarp();
    double norm = 0, of_columns[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        of_columns[r] = inverse.row_of(r) < n ? places.side[inverse.place(r, n)] * scales[r] : 0.0;
        norm = larger(norm, of_columns[r]);
    }
    norm = largest_of_team(norm);
    const Measured found = {inf, one, norm, 0.0};
    good = good && 1 / one / norm >= trusted;
    const bool is_open = good && !(1 / one / norm >= SURE);
    #pragma unroll 1
    for (int c = 0; c < CHECKS && __any_sync(ALL_LANES, is_open); ++c) {
        const double rest = rest_of(inverse, matrix, places, scales, c);
        good = good && (!is_open || rest <= REST * REST);
    }
    int told = 0;
    if (!good && SHORT && 1 / one / norm >= TELLS) {  // the first one if there are several
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) if (of_columns[r] == norm) told = max(told, N - inverse.row_of(r));
    }
    told = over_lanes<LANES>(told, [](int u, int v) { return max(u, v); });
    told = good ? 0 : told ? 1 + N - told : UNKNOWN;
    if (BANDED) seen.apart = largest_of_team(seen.apart), seen.largest = largest_of_team(seen.largest);
    int flags = seen.beyond + 2 * seen.spoilt + 4 * seen.zero;
    flags = over_lanes<LANES>(flags, [](int u, int v) { return u | v; });
    seen.beyond = flags & 1, seen.spoilt = flags & 2, seen.zero = flags & 4;
    if (lane != 0 || own >= count) return;
    left[slice] = told;
    const Limits limits = {kind, bound, least, safe, agrees};
    if (good) found.report(seen, limits, rests, sizes, k, slice, count, board, doubtful, doubt, 0, k);
}
