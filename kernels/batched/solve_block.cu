// Solves and verifies systems of at most MOST unknowns in one launch.  A block takes a matrix; small_solve.cuh describes
// the arguments.
//
// SPLIT neighbouring threads have a row in registers: column j belongs to thread j % SPLIT of the row.  Rows are not
// moved: in step j the pivot row goes to row j of shared memory, from where all threads read it.  After SPLIT steps each
// thread has one column less, and its numbers move down by one register, so that a loop can run over the steps.
//
// If an answer misses the bound, the same elimination runs again for the residual.
//
// Grid count, block MOST SPLIT; shared memory in FP64 (or pairs): n rows of LD entries, and 4 vectors of n.
// Defines T_A, COMPLEX, BANDED (0 if all entries are read), MOST (at most 128), SPLIT (a divisor of MOST and of 32), RESIDENT (blocks on a multiprocessor).

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr int ROWS = MOST, THREADS = MOST * SPLIT, WARPS = THREADS / WARP, PER_LANE = (ROWS + WARP - 1) / WARP;
constexpr int COLUMNS = MOST / SPLIT + (SIDES + SPLIT - 1) / SPLIT;  // of a thread, with the right-hand sides
constexpr int GROUP = 8;  // threads that compute one entry of the residual
constexpr int STAGE = 4;  // columns of a thread that are eliminated before the loops become shorter
// Of the rows in shared memory.  The loops of a stage also run over columns that have been eliminated in it.
constexpr int LD = (COLUMNS + STAGE - 1) * SPLIT | 1;

struct Entry { double part[PARTS]; };

__device__ __forceinline__ Number load(const Entry& v) { return {v.part[0], COMPLEX ? v.part[PARTS - 1] : 0.0}; }

__device__ __forceinline__ void save(Entry& to, Number v) {
    to.part[0] = v.re;
    if (COMPLEX) to.part[PARTS - 1] = v.im;
}

__device__ __forceinline__ Number from_lane(Number v, int lane) {
    return {__shfl_sync(ALL_LANES, v.re, lane), COMPLEX ? __shfl_sync(ALL_LANES, v.im, lane) : 0.0};
}

// U by rows in the order of the steps, with the right-hand sides in the columns behind it.
struct Steps {
    Entry *w, *inverses;
    int n;

    // answer := U^-1 (column c), by one warp.
    __device__ __forceinline__ void backward(int c, Entry* answer) const {
        const int lane = threadIdx.x % WARP;
        Number z[PER_LANE];
        #pragma unroll
        for (int q = 0; q < PER_LANE; ++q) {
            const int i = lane + WARP * q;
            z[q] = i < n ? load(w[i * LD + c]) : Number{0.0, 0.0};
        }
        #pragma unroll
        for (int block = PER_LANE - 1; block >= 0; --block) {
            for (int j = min(n, WARP * (block + 1)) - 1; j >= WARP * block; --j) {
                const Number v = from_lane(times(z[block], load(inverses[j])), j % WARP);
                if (lane == 0) save(answer[j], v);
                #pragma unroll
                for (int q = 0; q <= block; ++q) {
                    const int i = lane + WARP * q;
                    if (i < j) z[q] = less(z[q], load(w[i * LD + j]), v);
                }
            }
        }
    }
};

// The rows of a matrix during the elimination, and what their threads know together.
struct Elimination {
    Steps steps;
    Index kind;
    int* keys;  // one for each warp
    int row, part, broken;
    bool is_left;

    // Returns the row of the pivot of step j; `of_row` is the entry of the row of this thread in column j, if it has
    // that column.
    __device__ __forceinline__ int pivot_row(int j, Number of_row, bool has_column) {
        if (kind != GENERAL) return j;
        const int lane = threadIdx.x % WARP;
        const int of_warp = largest_of_warp(has_column && is_left ? int(key_of(of_row, ROWS - 1 - row) + KEY_ROWS) : 0);
        if (lane == 0) keys[threadIdx.x / WARP] = of_warp;
        __syncthreads();
        return ROWS - 1 - largest_of_warp(keys[lane < WARPS ? lane : 0]) % int(KEY_ROWS);
    }

    // Eliminates the columns from SPLIT `first` to SPLIT `last`; the thread has WIDTH columns left.
    template <int WIDTH>
    __device__ __forceinline__ void run(Number (&own)[COLUMNS], int first, int last) {
        #pragma unroll 1
        for (int q = first; q < last; ++q) {
            #pragma unroll
            for (int p = 0; p < SPLIT; ++p) {
                const int j = q * SPLIT + p;
                if (j >= steps.n) break;
                const bool is_pivot = row == pivot_row(j, own[0], part == p);
                Entry* pivots = steps.w + j * (LD + 1) - p;  // at column q SPLIT
                if (is_pivot) {
                    #pragma unroll
                    for (int c = 0; c < WIDTH; ++c) save(pivots[c * SPLIT + part], own[c]);
                    is_left = false;
                }
                __syncthreads();
                const Number pivot = load(pivots[p]), inverse = inverse_of(pivot);
                if (threadIdx.x == 0) save(steps.inverses[j], inverse);
                if (!broken && is_broken(pivot, kind)) broken = j + 1;
                const Number of_column = times(own[0], inverse);
                Number l = from_lane(of_column, int(threadIdx.x) % WARP / SPLIT * SPLIT + p);
                if (!is_left) l = {0.0, 0.0};
                #pragma unroll
                for (int c = 0; c < WIDTH; ++c) own[c] = less(own[c], l, load(pivots[c * SPLIT + part]));
            }
            #pragma unroll
            for (int c = 0; c + 1 < WIDTH; ++c) own[c] = own[c + 1];
        }
    }
};

// Eliminates all columns, STAGE columns of each thread at a time.
template <int FIRST>
__device__ __forceinline__ void eliminate(Elimination& rows, Number (&own)[COLUMNS]) {
    if constexpr (FIRST < MOST / SPLIT) {
        constexpr int LAST = FIRST + STAGE < MOST / SPLIT ? FIRST + STAGE : MOST / SPLIT;
        rows.run<COLUMNS - FIRST>(own, FIRST, min(LAST, (rows.steps.n + SPLIT - 1) / SPLIT));
        eliminate<LAST>(rows, own);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_block(
    T_A* x, double* board, char* doubtful, int* doubts, const T_A* a, Index a_step, Index a_row, Index a_col,
    const T_A* b, Index b_step, Index b_row, Index below, Index above, Index mirror, Index kind, double bound,
    double least, double safe, double agrees, Index count, Index unknowns
) {
    extern __shared__ __align__(16) char memory[];
    __shared__ int keys[WARPS];
    const int n = int(unknowns), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Entry* w = reinterpret_cast<Entry*>(memory);  // the matrix, then U; right-hand sides are its last columns
    Entry* inverses = w + n * LD;                 // 1 / pivot of each step
    Entry* answers = inverses + n;                // [SIDES][n]
    const Index slice = blockIdx.x;
    const Reading read = {a + PARTS * slice * a_step, a_row, a_col, {below, above, mirror}};
    b += PARTS * slice * b_step;

    Seen seen;
    const bool by_rows = a_col <= a_row;  // so that neighbouring threads read neighbours in memory
    const auto copy_matrix = [&](bool notes) {
        for (int v = warp; v < n; v += WARPS) {
            for (int u = lane; u < n; u += WARP) {
                const int i = by_rows ? v : u, j = by_rows ? u : v;
                const Number given = read.given(i, j);
                const Number stands = BANDED ? read.band.stands(i, j, given, read.other(i, j)) : given;
                if (BANDED && notes) seen.note(read.band, i, j, given, stands);
                save(w[i * LD + j], stands);
            }
        }
    };
    copy_matrix(true);
    for (int i = threadIdx.x; i < n; i += THREADS) {
        save(w[i * LD + n], number(b, i * b_row));
        for (int p = 0; p < PROBES; ++p) save(w[i * LD + n + 1 + p], {random_probe(i, p), 0.0});
    }
    __syncthreads();
    double inf = 0, one = 0;
    for (int t = threadIdx.x; t < 2 * n; t += THREADS) {
        const int first = t < n ? t * LD : t - n, next = t < n ? 1 : LD;
        double sum = 0;
        for (int c = 0; c < n; ++c) sum += modulus(load(w[first + c * next]));
        (t < n ? inf : one) = larger(t < n ? inf : one, sum);
    }
    inf = over_block<WARPS>(inf, larger), one = over_block<WARPS>(one, larger);
    if (!BANDED && !isfinite(inf)) {  // NaN or Inf, or a sum that has overflowed
        for (int e = threadIdx.x; e < n * n; e += THREADS) {
            const Number v = read.given(e / n, e % n);
            seen.spoilt = seen.spoilt || !isfinite(v.re) || COMPLEX && !isfinite(v.im);
        }
    }

    // The elimination, the solution and its residual; once more for the residual if the answer misses the bound.  The
    // solutions for random vectors are not needed then: the correction and the uncorrected answer overwrite them.
    Elimination rows = {{w, inverses, n}, kind, keys, int(threadIdx.x) / SPLIT, int(threadIdx.x) % SPLIT, 0, false};
    Entry *correction = answers + n, *kept = answers + 2 * n;
    double grown = 0, rest = 0, size = 0, rest_before = 0, size_before = 0;
    bool is_corrected = false;
    while (true) {
        Number own[COLUMNS];
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int column = c * SPLIT + rows.part;
            own[c] = rows.row < n && column < n + SIDES ? load(w[rows.row * LD + column]) : Number{0.0, 0.0};
        }
        rows.is_left = rows.row < n;
        __syncthreads();
        eliminate<0>(rows, own);
        __syncthreads();
        if (is_corrected) {
            if (warp == 0) {
                rows.steps.backward(n, correction);
                __syncwarp();
                for (int i = lane; i < n; i += WARP) {
                    kept[i] = answers[i];
                    save(answers[i], plus(load(kept[i]), load(correction[i])));
                }
            }
        } else {
            for (int s = warp; s < SIDES; s += WARPS) rows.steps.backward(n + s, answers + s * n);
        }
        __syncthreads();
        for (int p = 0; p < PROBES && !is_corrected; ++p) {
            double sum = 0;
            for (int i = threadIdx.x; i < n; i += THREADS) sum += modulus(load(answers[(1 + p) * n + i]));
            grown = larger(grown, over_block<WARPS>(sum, sum_of));
        }
        rest = 0, size = 0;
        for (int first = 0; first < n; first += THREADS / GROUP) {
            const int i = first + int(threadIdx.x) / GROUP, in_group = threadIdx.x % GROUP;
            NumberSum sum;
            for (int j = in_group; i < n && j < n; j += GROUP) {
                sum.add_product(BANDED ? read(i, j) : read.given(i, j), rounded(load(answers[j])));
            }
            sum.re.join<GROUP>();
            if (COMPLEX) sum.im.join<GROUP>();
            if (in_group || i >= n) continue;  // sums in other lanes may differ in the last bit
            const Number r = sum.from(number(b, i * b_row));
            rest = larger(rest, modulus(r));
            save(w[i * LD + n], r);
        }
        for (int i = threadIdx.x; i < n; i += THREADS) size = larger(size, modulus(rounded(load(answers[i]))));
        rest = over_block<WARPS>(rest, larger), size = over_block<WARPS>(size, larger);
        if (is_corrected || rest <= bound * inf * size) break;
        is_corrected = true, rest_before = rest, size_before = size;
        copy_matrix(false);
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
    const Measured found = {inf, one, grown, double(rows.broken), rest, size};
    if (threadIdx.x == 0) found.report(seen, {kind, bound, least, safe, agrees}, slice, count, board, doubtful, doubts);
}
