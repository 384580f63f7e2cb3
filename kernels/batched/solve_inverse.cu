// Solves and verifies systems of at most MOST unknowns in one launch, by an inverse in FP32 and refinement in FP64.  A
// block takes one matrix.  small_solve.cuh describes most arguments.
//
//   b_col, columns  right-hand sides: entry (s, i, c) of b is at s b_step + i b_row + c b_col.
//   x         [count][n][columns].
//   board     its last rows are max |b - A x| for each right-hand side, then max |x| for each.
//   left      unsigned char[count]: 0 for each system that is solved.  Another launch must solve the others, because
//             their answers miss the bound or because the inverse may be inaccurate; nothing is reported about them.
//             For such a system, `left` is 1 plus the number of the largest column of A^-1, or UNKNOWN.
//   trusted   the least 1 / (||A||_1 ||A^-1||_1) for which the inverse is taken for accurate.
//
// If CHUNK is MOST, the matrix stays in shared memory for the residuals.  Else it is copied there again for each of
// them, see matrix_chunks.cuh.  x is refined until it meets the bound, as long as a step divides the residual by at
// least 4.  The norms of A^-1 and of its columns are those of the inverse in FP32.
//
// Grid count, block THREADS = 2 MOST / HIGH; shared memory: see `Room` and `Chunks`.
// Defines T_A, COMPLEX, BANDED (0 if all entries are read), MOST (a multiple of 16 * HIGH), HIGH (1 or 2), CHUNK (MOST
// if BANDED), RESIDENT (blocks on a multiprocessor).  Needs compute capability 8.

#include "batched/fp32_inverse.cuh"

static_assert(WHOLE || !BANDED, "a matrix that is changed stays in shared memory");

// A row of the matrix for each thread if HIGH is 2, else half a row.  The other half belongs to the lane 16 places
// away.
struct OwnRow {
    static constexpr int STEP = 8;
    int i;
    bool is_first;

    __device__ __forceinline__ OwnRow() {
        const int lane = threadIdx.x % WARP;
        i = HIGH == 1 ? 16 * (threadIdx.x / WARP) + lane % 16 : threadIdx.x, is_first = HIGH == 2 || lane < 16;
    }

    // Calls take(c, entry) for the columns c < `width` of a chunk that this thread has.  It also calls take for some
    // columns from `width` on, whose entries are zero.
    template <typename Take>
    __device__ __forceinline__ void for_entries(const Given* chunk, int width, Take take) const {
        constexpr int ROWS = 3 - HIGH;  // threads of a row
        const int share = WHOLE ? (width + ROWS * STEP - 1) / (ROWS * STEP) * STEP : CHUNK / ROWS;
        const int first = is_first ? 0 : share;
        #pragma unroll 1
        for (int c = first; c < first + share; c += STEP) {
            #pragma unroll
            for (int q = 0; q < STEP; q += WIDE) {
                const Several read = *reinterpret_cast<const Several*>(chunk + i * LD + c + q);
                #pragma unroll
                for (int e = 0; e < WIDE; ++e) take(c + q + e, number_of(read.entries[e]));
            }
        }
    }
};

__device__ __forceinline__ double of_row(double v) { return HIGH == 1 ? v + of_partner(v, 16) : v; }

// Copies the triangle of a real matrix that is read to the other one, and notes the entries of the row of this thread.
__device__ __forceinline__ Seen mirror_triangle(Given* all, const OwnRow& own, int n, bool reads_lower) {
    const int half = HIGH == 1 ? (n + 1) / 2 : n, i = own.i;  // the columns of a row are split between two threads
    const int first = own.is_first ? 0 : half, last = own.is_first ? half : n;
    Glance glance;
    if (i < n) {
        if (own.is_first) glance.note_diagonal(entry(all, i, i).re);
        #pragma unroll 4
        for (int j = reads_lower ? max(first, i + 1) : first; j < (reads_lower ? last : min(last, i)); ++j) {
            const Given read = all[j * LD + i];
            glance.note(number_of(read).re, entry(all, i, j).re);
            all[i * LD + j] = read;
        }
    }
    return glance.seen();
}

// The sums of columns.  A team of threads sums up some rows of all columns of a chunk.
constexpr int TEAM = CHUNK < WARP ? WARP : CHUNK, TEAMS = THREADS / TEAM;
static_assert(2 * TEAMS * MOST <= PARTS * (MOST * LD_PANEL + PANEL * LD_TOP), "room for the sums");

__device__ __forceinline__ double* sums_of_team(const Room& room, int team) {
    return reinterpret_cast<double*>(room.panels) + team * MOST;  // the panels are not used yet
}
__device__ __forceinline__ void save_sums(const Room& room, int first, const Given* chunk) {
    const int c = threadIdx.x % CHUNK;
    double sum = 0;
    #pragma unroll 8
    for (int i = threadIdx.x / CHUNK; i < room.n; i += THREADS / CHUNK) sum += modulus(entry(chunk, i, c));
    if (CHUNK < WARP) sum += of_partner(sum, CHUNK);
    sums_of_team(room, threadIdx.x / TEAM)[first + c] = sum;
}
__device__ __forceinline__ double sum_of_saved(const Room& room) {
    wait_for_block();
    double sum = 0;
    #pragma unroll
    for (int team = 0; team < TEAMS; ++team) {
        if (threadIdx.x < room.n) sum += sums_of_team(room, team)[threadIdx.x];
    }
    return sum;
}

// b - A x for the row of this thread.  `most` is ||A||_inf max |x|.
template <bool EXACT>
__device__ __forceinline__ Number residual(
    const Room& room, Chunks& chunks, const OwnRow& own, Number b, double most
) {
    Residual<EXACT> sum;
    sum.begin(own.is_first ? b : Number{0.0, 0.0}, own.is_first ? most : most + fabs(b.re) + fabs(b.im));
    chunks.for_all([&](int first, const Given* chunk) {
        own.for_entries(chunk, room.n - first, [&](int c, Number v) { sum.subtract(v, load(room.x[first + c])); });
    });
    return sum.result(of_row);
}

// The square of the 2-norm of g - B Y g for random vector c (fp32_trust.cuh).  All threads get the result.  x is
// overwritten.
__device__ __forceinline__ double rest_of(
    const Inverse& inverse, const Room& room, Chunks& chunks, const OwnRow& own, int c
) {
    const bool has_row = own.i < room.n && own.is_first;
    const double scale = room.scales[own.i];
    const Number given = {own.i < room.n ? random_probe(own.i, c) / scale : 0.0, 0.0};
    if (has_row) inverse.take(room, own.i, given, 1.0);
    wait_for_block();
    inverse.apply(room, 1.0, [&](int j, Number y) { save(room.x[j], y); });
    wait_for_block();
    const double v = modulus(residual<false>(room, chunks, own, given, 0.0)) * scale;
    return over_block<WARPS>(has_row ? v * v : 0.0, sum_of);  // it waits until all have read x
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_inverse(
    T_A* x, double* board, char* doubtful, int* doubt, unsigned char* left, const T_A* a, Index a_step, Index a_row,
    Index a_col, const T_A* b, Index b_step, Index b_row, Index b_col, Index below, Index above, Index mirror,
    Index kind, double bound, double trusted, double least, double safe, double agrees, Index count, Index unknowns,
    Index columns
) {
    extern __shared__ __align__(16) char memory[];
    __shared__ double rests[MOST_SIDES], sizes[MOST_SIDES];
    const int n = int(unknowns), k = int(columns);
    const Index slice = blockIdx.x;
    const Room room(memory, n);
    T_A* answers = x + PARTS * slice * n * k;
    const T_A* given_a = a + PARTS * slice * a_step;
    const T_A* given_b = b + PARTS * slice * b_step;

    Chunks chunks(room.chunks, given_a, n, a_row, a_col);
    if (threadIdx.x < MOST) {
        room.steps[threadIdx.x] = -1;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) room.side[part * MOST + threadIdx.x] = 0;
    }
    const OwnRow own;
    Seen seen;
    const bool mirrored = BANDED && mirror;  // then the norms of rows and of columns are the same
    if (BANDED) {
        // No thread writes what another one reads: the mirror image of an entry that is not read keeps its value.
        const Band band(below, above, mirror);
        Given* const all = chunks.buffers;
        if (!COMPLEX && mirror) {
            seen = mirror_triangle(all, own, n, band.below > 0);
        } else {
            own.for_entries(all, n, [&](int j, Number given) {
                if (own.i >= n || j >= n) return;
                const Number other = band.mirror && !band.reads(own.i, j) ? entry(all, j, own.i) : Number{0.0, 0.0};
                const Number stands = band.stands(own.i, j, given, other);
                seen.note(band, own.i, j, given, stands);
                if (band.changes(own.i, j)) store(reinterpret_cast<T_A*>(all), own.i * LD + j, stands);
            });
        }
        __syncthreads();
    }
    double norms[2] = {};  // the sum of a row, and of a column: ||A||_inf, ||A||_1
    chunks.for_all([&](int first, const Given* chunk) {
        own.for_entries(chunk, n - first, [&](int, Number v) { norms[0] += modulus(v); });
        if (!mirrored) save_sums(room, first, chunk);
    });
    norms[0] = of_row(norms[0]);
    if (!mirrored) norms[1] = sum_of_saved(room);
    if (own.i >= n) norms[0] = 1;
    if (own.is_first) room.scales[own.i] = power_to_one(norms[0]);
    if (own.i >= n) norms[0] = 0;
    largest_of_block<WARPS, 1>(norms);
    const double inf = norms[0], one = mirrored ? inf : norms[1];
    if (!BANDED && !isfinite(inf)) {  // NaN or Inf, or a sum that has overflowed
        chunks.for_all([&](int first, const Given* chunk) {
            own.for_entries(chunk, n - first, [&](int, Number v) {
                seen.spoilt = seen.spoilt || !isfinite(v.re) || COMPLEX && !isfinite(v.im);
            });
        });
    }

    Inverse inverse;
    inverse.load(room, chunks);
    bool good = !__syncthreads_or(!inverse.invert(room, kind));

    #pragma unroll 1
    for (int c = 0; c < k && good; ++c) {
        const auto side = [&](int i) { return number(given_b, i * b_row + c * b_col); };
        double top = 0;
        if (threadIdx.x < MOST) save(room.x[threadIdx.x], {0.0, 0.0});
        if (threadIdx.x < n) top = modulus(side(threadIdx.x)) * room.scales[threadIdx.x];
        top = largest_of_block<WARPS, 0>(top);
        const double to_one = power_to_one(top), back = power_to_one(to_one);
        if (threadIdx.x < n) inverse.take(room, threadIdx.x, side(threadIdx.x), to_one);
        wait_for_block();
        const Number given = own.i < n ? side(own.i) : Number{0.0, 0.0};
        const auto take = [&](Number r) { if (own.i < n && own.is_first) inverse.take(room, own.i, r, to_one); };
        // Adds A^-1 times the residual to x, and returns max |x| of the rows of this thread.
        const auto step = [&] {
            double size = 0;
            inverse.apply(room, back, [&](int j, Number y) {
                const Number v = rounded(plus(load(room.x[j]), y));
                save(room.x[j], v), size = larger(size, modulus(v));
            });
            return size;
        };
        #pragma unroll 1
        for (int round = 0; round < PLAIN_ROUNDS; ++round) {
            step();
            wait_for_block();
            take(residual<false>(room, chunks, own, given, 0.0));
            wait_for_block();
        }
        double before = LARGEST;
        #pragma unroll 1
        while (true) {
            const double size = largest_of_block<WARPS, 1>(step());  // it waits until all entries are saved
            const Number r = residual<!SHORT>(room, chunks, own, given, inf * size);
            take(r);
            const double largest = largest_of_block<WARPS, 0>(own.i < n ? modulus(r) : 0.0);
            if (threadIdx.x == 0) rests[c] = largest, sizes[c] = size;
            if (largest <= bound * inf * size) break;
            // If ||A||_inf has overflowed, `largest` and `before` may both be 0.  Then only the first comparison is
            // false and ends the loop.
            good = largest < before && largest <= before / 4;
            if (!good) break;
            before = largest;
        }
        if (threadIdx.x < n) store(answers, Index(threadIdx.x) * k + c, load(room.x[threadIdx.x]));
        __syncthreads();
    }

    int column;  // of A^-1; its norm is `of_column`
    const double of_column = inverse.sum_of_column(room, column), norm = largest_of_block<WARPS, 0>(of_column);
    Measured found = {inf, one, norm, 0.0};
    good = !__syncthreads_or(!good) && 1 / one / norm >= trusted;
    #pragma unroll 1
    for (int c = 0; c < CHECKS && good && !(1 / one / norm >= SURE); ++c) {
        good = rest_of(inverse, room, chunks, own, c) <= REST * REST;
    }
    int told = good ? 0 : UNKNOWN;
    if (!good && sizeof(T_A) == sizeof(float) && 1 / one / norm >= TELLS) {  // the first one if there are several
        told = 1 + MOST - int(largest_of_block<WARPS, 1>(of_column == norm ? double(MOST - column) : 0.0));
    }
    if (BANDED) {
        seen.apart = over_block<WARPS>(seen.apart, larger), seen.largest = over_block<WARPS>(seen.largest, larger);
    }
    seen.beyond = __syncthreads_or(seen.beyond), seen.spoilt = __syncthreads_or(seen.spoilt);
    seen.zero = __syncthreads_or(seen.zero);
    wait_for_copies();  // of a chunk that is not read
    if (threadIdx.x != 0) return;
    left[slice] = told;
    const Limits limits = {kind, bound, least, safe, agrees};
    if (good) found.report(seen, limits, rests, sizes, k, slice, count, board, doubtful, doubt, 0, k);
}
