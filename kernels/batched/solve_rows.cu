// Solves and verifies systems of at most MOST unknowns in one launch.  A team, LANES threads of a warp, takes
// a matrix; lane i has the rows i, i + LANES, ... in registers.  small_solve.cuh describes the arguments.
//
// A warp copies its matrices to shared memory, where they stay for the residual.  Rows are not moved: in each step the
// pivot row is sent to all lanes of the team, and its lane notes the step.
//
// Grid ceil(count LANES / THREADS), block THREADS; shared memory for each warp: a struct `Places` for each team (none
// if LANES is 1), followed by SIZE entries for each team, rounded up to 16 bytes.
// Defines T_A, COMPLEX, BANDED (0 if all entries are read), MOST, LANES, THREADS, RESIDENT (blocks on a
// multiprocessor).

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr unsigned KEY_ROWS = 128;
constexpr int N = MOST, TEAMS = WARP / LANES, ROWS = (N + LANES - 1) / LANES;
constexpr bool ALONE = LANES == 1;  // a thread has a whole matrix
constexpr int WIDTH = N + SIDES;    // columns of a row with its right-hand sides

// Row i of a matrix in shared memory starts at i STRIDE, and column N has the right-hand side.  STRIDE is odd, and
// modulo BANKS the rows of a team follow those of the team before, so that reading a column has no bank conflicts.
constexpr int STRIDE = N + 1 | 1, BANKS = 128 / int(sizeof(Given));
constexpr int SIZE = N * STRIDE + ((LANES - N) * STRIDE % BANKS + BANKS) % BANKS;

// Through these places the lanes of a team send numbers to each other.
struct Places {
    double2 row[2][(PARTS * WIDTH + 1) / 2];  // a pivot row; the next step uses the other place
    double answer[2][N][PARTS];               // x, and x corrected
};

// Word t of the numbers v as they lie in memory; zero beyond the last.
template <int COUNT>
__device__ __forceinline__ double word(const Number (&v)[COUNT], int t) {
    if (t >= PARTS * COUNT) return 0.0;
    return t % PARTS ? v[t / PARTS].im : v[t / PARTS].re;
}

// The lanes that solve one system.
struct Team {
    Given* a;
    Places* places;
    int lane, n;

    __device__ __forceinline__ int row_of(int r) const { return lane + LANES * r; }
    __device__ __forceinline__ bool has(int r) const { return row_of(r) < n; }

    // Entry (i, j) in shared memory.
    __device__ __forceinline__ Number operator()(int i, int j) const {
        const Given& v = a[i * STRIDE + j];
        return {double(v.part[0]), COMPLEX ? double(v.part[PARTS - 1]) : 0.0};
    }

    // Turns the matrix of the caller into the one that is read, and notes the properties of its entries in `seen`.  No
    // lane writes what another one reads: the mirror image of an entry that is not read keeps its value.
    __device__ __forceinline__ void apply(const Band& band, Seen& seen) const {
        constexpr int AT_ONCE = 4;  // entries that are loaded before the first of them is written
        static_assert(N % AT_ONCE == 0, "whole groups; columns beyond n are zero and leave `seen` as it is");
        #pragma unroll 1
        for (int i = lane; i < n; i += LANES) {
            #pragma unroll 1
            for (int first = 0; first < n; first += AT_ONCE) {
                Number own[AT_ONCE], stands[AT_ONCE];
                #pragma unroll
                for (int q = 0; q < AT_ONCE; ++q) {
                    const int j = first + q;
                    const bool mirrors = band.mirror && !band.reads(i, j);
                    own[q] = (*this)(i, j);
                    stands[q] = band.stands(i, j, own[q], mirrors ? (*this)(j, i) : Number{0.0, 0.0});
                }
                #pragma unroll
                for (int q = 0; q < AT_ONCE; ++q) {
                    const int j = first + q;
                    seen.note(band, i, j, own[q], stands[q]);
                    if (band.changes(i, j)) store(reinterpret_cast<T_A*>(a), i * STRIDE + j, stands[q]);
                }
            }
        }
        __syncwarp();
    }

    // Sends the row that `sends` marks to all lanes, from entry `first` of the row on.
    template <int COUNT>
    __device__ __forceinline__ void spread(
        const Number (&rows)[ROWS][COUNT], const bool (&sends)[ROWS], int first, Number (&sent)[COUNT], int place
    ) const {
        if (ALONE) {
            #pragma unroll
            for (int c = 0; c < COUNT; ++c) {
                if (c < first) continue;
                sent[c] = rows[0][c];
                #pragma unroll
                for (int r = 1; r < ROWS; ++r) if (sends[r]) sent[c] = rows[r][c];
            }
            return;
        }
        constexpr int PAIRS = (PARTS * COUNT + 1) / 2;
        double2* at = places->row[place % 2];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (!sends[r]) continue;
            #pragma unroll
            for (int t = 0; t < PAIRS; ++t) {
                if (2 * t + 1 >= PARTS * first) at[t] = {word(rows[r], 2 * t), word(rows[r], 2 * t + 1)};
            }
        }
        __syncwarp();
        #pragma unroll
        for (int t = 0; t < PAIRS; ++t) {
            if (2 * t + 1 < PARTS * first) continue;
            const double2 pair = at[t];
            if (COMPLEX) {
                sent[t] = {pair.x, pair.y};
            } else {
                sent[2 * t].re = pair.x;
                if (2 * t + 1 < COUNT) sent[2 * t + 1].re = pair.y;
            }
        }
    }

    // Calls take(j, v) for each entry v of A^-1 b, the last one first.  On entry, `rest` holds b; it is overwritten.
    // The factors are in `row`, and step[r] is the step whose pivot is in row r.
    template <typename Take>
    __device__ __forceinline__ void apply_inverse(
        const Number (&row)[ROWS][WIDTH], const int (&step)[ROWS], Number (&rest)[ROWS], Take take
    ) const {
        Number pairs[ROWS][2], pair[2] = {}, entries[ROWS][1], v[1] = {};
        bool is_pivot[ROWS];
        #pragma unroll
        for (int j = 0; j < N; ++j) {  // L^-1 b
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) is_pivot[r] = step[r] == j, pairs[r][0] = row[r][j], pairs[r][1] = rest[r];
            spread(pairs, is_pivot, 0, pair, j);
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (step[r] > j) rest[r] = less(rest[r], times(row[r][j], pair[0]), pair[1]);
            }
        }
        __syncwarp();
        #pragma unroll
        for (int j = N - 1; j >= 0; --j) {
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) is_pivot[r] = step[r] == j, entries[r][0] = times(rest[r], row[r][j]);
            spread(entries, is_pivot, 0, v, j);
            take(j, v[0]);
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) rest[r] = less(rest[r], row[r][j], v[0]);
        }
        __syncwarp();
    }

    // Keeps entry j of the answer, in registers or in shared memory; `kept` returns it.
    __device__ __forceinline__ void keep(Number (&own)[2][ALONE ? N : 1], int which, int j, Number v) const {
        if (ALONE) {
            own[which][ALONE ? j : 0] = v;
        } else if (lane == j % LANES) {
            places->answer[which][j][0] = v.re;
            if (COMPLEX) places->answer[which][j][PARTS - 1] = v.im;
        }
    }
    __device__ __forceinline__ Number kept(const Number (&own)[2][ALONE ? N : 1], int which, int j) const {
        if (ALONE) return which ? own[1][ALONE ? j : 0] : own[0][ALONE ? j : 0];
        return {places->answer[which][j][0], COMPLEX ? places->answer[which][j][PARTS - 1] : 0.0};
    }
};

// e / d for e < 2^16, from (2^32 - 1) / d + 1.
__device__ __forceinline__ int quotient(int e, int d, unsigned magic) { return d == 1 ? e : int(__umulhi(e, magic)); }

// Starts to copy n rows of `width` entries of each team to shared memory, from column `to` on there.  Matrices beyond
// the last one are copies of it.
__device__ __forceinline__ void stage(
    Given* at, const T_A* from, Index step, Index row, Index col, Index first, Index count, int n, int width, int to
) {
    const bool by_rows = col <= row;
    const int entries = n * width, line = by_rows ? width : n;
    const unsigned of_entries = 0xffffffffu / entries + 1, of_line = 0xffffffffu / line + 1;
    for (int e = threadIdx.x % WARP; e < TEAMS * entries; e += WARP) {
        const int m = quotient(e, entries, of_entries), rest = e - m * entries;
        const int major = quotient(rest, line, of_line), minor = rest - major * line;
        const int i = by_rows ? major : minor, j = by_rows ? minor : major;
        copy_entry(at + m * SIZE + i * STRIDE + to + j,
                   from + PARTS * (min(first + m, count - 1) * step + i * row + j * col));
    }
}

// The same for matrices of N rows that follow each other in memory row by row, if the warp has no matrix beyond
// the last.
__device__ __forceinline__ void stage_packed(Given* at, const T_A* from) {
    const int lane = threadIdx.x % WARP;
    constexpr bool WHOLE = WARP % N == 0;  // whole rows are copied at a time, so that most of an offset is a constant
    if (WHOLE) {
        constexpr int AT_ONCE = N * N < WARP ? N * N : WARP;  // entries of one matrix
        at += lane / AT_ONCE * SIZE + lane % AT_ONCE / N * STRIDE + lane % N;
    }
    from += PARTS * lane;
    #pragma unroll
    for (int e = 0; e < TEAMS * N * N; e += WARP) {
        const int k = WHOLE ? e : e + lane;
        Given* to = at + k / (N * N) * SIZE + k % (N * N) / N * STRIDE + (WHOLE ? 0 : k % N);
        copy_entry(to, from + PARTS * e);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_rows(
    T_A* x, double* board, char* doubtful, int* doubt, const T_A* a, Index a_step, Index a_row, Index a_col,
    const T_A* b, Index b_step, Index b_row, Index below, Index above, Index mirror, Index kind, double bound,
    double near, double least, double safe, double agrees, Index count, Index unknowns
) {
    extern __shared__ double2 memory[];
    constexpr int PLACES = ALONE ? 0 : TEAMS * int(sizeof(Places)) / 16;
    constexpr int MATRICES = (TEAMS * SIZE * int(sizeof(Given)) + 15) / 16;
    const int n = int(unknowns), lane = threadIdx.x % LANES, warp = threadIdx.x / WARP;
    const int number_of_team = threadIdx.x % WARP / LANES;
    const Index first = (Index(blockIdx.x) * (THREADS / WARP) + warp) * TEAMS, slice = first + number_of_team;
    if (first >= count) return;
    double2* of_warp = memory + warp * (PLACES + MATRICES);
    Given* matrices = reinterpret_cast<Given*>(of_warp + PLACES);
    Places* places = reinterpret_cast<Places*>(of_warp) + number_of_team;
    const Team team = {matrices + number_of_team * SIZE, places, lane, n};

    if (n < N) {  // beyond n, the matrix is the identity, and b is zero
        for (int e = lane; e < N * STRIDE; e += LANES) {
            const int i = e / STRIDE, j = e % STRIDE;
            #pragma unroll
            for (int p = 0; p < PARTS; ++p) team.a[e].part[p] = T_A(i == j && i >= n && p == 0);
        }
        __syncwarp();
    }
    if (n == N && a_col == 1 && a_row == N && a_step == N * N && first + TEAMS <= count) {
        stage_packed(matrices, a + PARTS * first * (N * N));
    } else {
        stage(matrices, a, a_step, a_row, a_col, first, count, n, n, 0);
    }
    stage(matrices, b, b_step, b_row, 0, first, count, n, 1, N);
    wait_for_copies();
    __syncwarp();

    Seen seen;
    if (BANDED) team.apply({below, above, mirror}, seen);
    const bool mirrored = BANDED && mirror;  // then sums of columns are those of rows, bit for bit
    Number row[ROWS][WIDTH];
    double inf = 0, one = 0, poison = 0;  // poison becomes NaN if a sum is not finite
    int step[ROWS];  // the step whose pivot is in the row
    bool is_left[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = N % LANES ? min(team.row_of(r), N - 1) : team.row_of(r);
        double of_row = 0, of_column = 0;
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            row[r][j] = team(i, j);
            of_row += modulus(row[r][j]);
            if (!mirrored) of_column += modulus(team(j, i));
        }
        if (mirrored) of_column = of_row;
        row[r][N] = team(i, N);
        #pragma unroll
        for (int p = 0; p < PROBES; ++p) row[r][N + 1 + p] = {team.has(r) ? random_probe(i, p) : 0.0, 0.0};
        is_left[r] = team.row_of(r) < N, step[r] = N;
        poison = fma(of_row, 0.0, poison);
        if (team.has(r)) inf = plain_larger(inf, of_row), one = plain_larger(one, of_column);
    }
    if (!BANDED && poison != 0) {  // NaN or Inf, or a sum that has overflowed
        for (int r = 0; r < ROWS; ++r) {
            for (int j = 0; j < n && team.has(r); ++j) {
                const Number v = team(team.row_of(r), j);
                seen.spoilt = seen.spoilt || !isfinite(v.re) || COMPLEX && !isfinite(v.im);
            }
        }
    }
    inf = over_lanes<LANES>(inf + poison, larger), one = over_lanes<LANES>(one + poison, larger);

    // Elimination.  In a pivot row the reciprocal of the pivot takes its place.
    int broken = 0;
    #pragma unroll
    for (int j = 0; j < N; ++j) {
        int p = j;  // the pivot row
        if (!BANDED || kind == GENERAL) {  // if all entries are read, a branch would cost more than it saves
            unsigned key = 0;
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const unsigned of_row = key_of<KEY_ROWS>(row[r][j], N - 1 - team.row_of(r)) + KEY_ROWS;
                key = max(key, is_left[r] ? of_row : 0);
            }
            key = over_lanes<LANES>(key, larger_key);
            p = kind == GENERAL ? N - 1 - int(key % KEY_ROWS) : j;
        }
        bool is_pivot[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) is_pivot[r] = team.row_of(r) == p;
        Number pivot_row[WIDTH] = {};
        team.spread(row, is_pivot, j, pivot_row, j);
        const Number inverse = inverse_of(pivot_row[j]);
        if (!broken && is_broken(pivot_row[j], kind)) broken = j + 1;
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            is_left[r] = is_left[r] && !is_pivot[r];
            if (is_pivot[r]) row[r][j] = inverse, step[r] = j;
            const Number l = is_left[r] ? times(row[r][j], inverse) : Number{0.0, 0.0};
            #pragma unroll
            for (int c = j + 1; c < WIDTH; ++c) row[r][c] = less(row[r][c], l, pivot_row[c]);
        }
    }
    __syncwarp();

    // Back substitution.
    Number own[2][ALONE ? N : 1] = {};
    double of_probe[PROBES] = {}, size = 0;
    #pragma unroll
    for (int j = N - 1; j >= 0; --j) {
        Number entries[ROWS][SIDES], y[SIDES] = {};
        bool is_pivot[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            is_pivot[r] = step[r] == j;
            #pragma unroll
            for (int s = 0; s < SIDES; ++s) entries[r][s] = times(row[r][N + s], row[r][j]);
        }
        team.spread(entries, is_pivot, 0, y, j);
        team.keep(own, 0, j, y[0]);
        size = plain_larger(size, modulus(rounded(y[0])));
        #pragma unroll
        for (int p = 0; p < PROBES; ++p) of_probe[p] += modulus(y[1 + p]);
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {  // rows with the pivots of step j or later change too, but are not used again
            #pragma unroll
            for (int s = 0; s < SIDES; ++s) row[r][N + s] = less(row[r][N + s], row[r][j], y[s]);
        }
    }
    __syncwarp();

    // The residual, and one correction if the answer misses the bound.  Beyond N, a lane repeats the last row.
    const auto row_in_memory = [&](int r) { return N % LANES ? min(team.row_of(r), N - 1) : team.row_of(r); };
    Number rest[ROWS];
    double of_rest = 0, new_size = 0;
    bool misses = false, is_better = false;
    #pragma unroll 1
    for (int which = 0; which < 2; ++which) {
        double largest = 0, spoilt = 0;
        Residual sums[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            sums[r].begin(team(row_in_memory(r), N), inf * (which ? new_size : size));
        }
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            const Number v = rounded(team.kept(own, which, j));
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r].subtract(team(row_in_memory(r), j), v);
        }
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            rest[r] = sums[r].over_group<1>();
            largest = plain_larger(largest, modulus(rest[r])), spoilt = fma(modulus(rest[r]), 0.0, spoilt);
        }
        largest = over_lanes<LANES>(largest + spoilt, larger);
        if (which == 1) {
            // A system that meets the bound keeps its first answer, so that the bits of an answer do not depend on the
            // warp's other systems.
            is_better = misses && largest * size < of_rest * new_size;
            if (is_better) of_rest = largest, size = new_size;
            break;
        }
        of_rest = largest, misses = !(of_rest <= bound * inf * size);
        if (!__any_sync(ALL_LANES, misses)) break;

        team.apply_inverse(row, step, rest, [&](int j, Number v) {
            const Number corrected = plus(team.kept(own, 0, j), v);
            team.keep(own, 1, j, corrected);
            new_size = plain_larger(new_size, modulus(rounded(corrected)));
        });
    }

    // The norm of A^-1, for the few matrices that may be singular to working precision.
    Measured found = {inf, one, 0.0, double(broken)};
    #pragma unroll
    for (int p = 0; p < PROBES; ++p) found.grown = larger(found.grown, of_probe[p]);
    const bool is_near = found.is_near(near);
    if (__any_sync(ALL_LANES, is_near)) {
        double norm = 0;
        #pragma unroll 1
        for (int c = 0; c < n; ++c) {
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) rest[r] = {double(team.row_of(r) == c), 0.0};
            double of_column = 0;
            team.apply_inverse(row, step, rest, [&](int, Number v) { of_column += modulus(v); });
            norm = larger(norm, of_column);
        }
        if (is_near) found.grown = norm;
    }
    if (BANDED) {
        seen.apart = over_lanes<LANES>(seen.apart, larger), seen.largest = over_lanes<LANES>(seen.largest, larger);
    }
    int flags = seen.beyond + 2 * seen.spoilt + 4 * seen.zero;
    flags = over_lanes<LANES>(flags, [](int u, int v) { return u | v; });
    seen.beyond = flags & 1, seen.spoilt = flags & 2, seen.zero = flags & 4;

    __syncwarp();
    // The answers go to memory through the column of b in shared memory, so that neighbouring lanes write neighbours.
    #pragma unroll
    for (int j = 0; j < N; ++j) {
        if (j >= n || !ALONE && lane != j % LANES) continue;
        store(reinterpret_cast<T_A*>(team.a + j * STRIDE + N), 0, rounded(team.kept(own, is_better, j)));
    }
    __syncwarp();
    const unsigned of_n = 0xffffffffu / n + 1;
    for (int e = threadIdx.x % WARP; e < min(Index(TEAMS), count - first) * n; e += WARP) {
        const int m = quotient(e, n, of_n), j = e - m * n;
        const Given& v = matrices[m * SIZE + j * STRIDE + N];
        #pragma unroll
        for (int p = 0; p < PARTS; ++p) x[PARTS * (first * n + e) + p] = v.part[p];
    }
    if (lane != 0 || slice >= count) return;
    const Limits limits = {kind, bound, least, safe, agrees};
    found.report(seen, limits, &of_rest, &size, 1, slice, count, board, doubtful, doubt, 0, 1);
}
