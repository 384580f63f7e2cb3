// Solves and verifies systems of at most MOST unknowns in one launch, by Gauss-Jordan elimination.  A block takes one
// matrix.  small_solve.cuh describes most arguments.
//
//   b_col, columns  right-hand sides: entry (s, i, c) of b is at s b_step + i b_row + c b_col.
//   share     right-hand sides that a block takes; fewer than SLOTS = 2 ACROSS.
//   x         [count][n][columns].
//   board     its last rows are max |b - A x| for each right-hand side, then max |x| for each.
//   doubt     may be given together with `doubtful` or the board only if share = columns.
//
// The matrix stays in shared memory for the residual.  Its rows and SLOTS right-hand sides, of which some are random
// vectors, are eliminated in registers.  Thread (u, v) has the rows u + TALL r, TALL = THREADS / ACROSS; pair c of a
// row has the columns SLOTS c + 2 v and the next.  After SLOTS columns, the pairs move one place to the left, so that
// the next columns are in pair 0 again.  Rows are not moved.  A step subtracts multiples of the pivot row from all
// other rows, also from those of earlier pivots.  So the right-hand sides become the solutions times the pivots,
// without a back substitution, which would take as many steps again.
//
// Corrections and the columns of A^-1 are computed by eliminating the matrix in shared memory again.
//
// Grid count ceil(columns / share), block THREADS; shared memory: see `Room`.  If `left` is given, share = columns, and
// the grid has any number of blocks.
// Defines T_A, COMPLEX, BANDED (0 if all entries are read), MOST, ACROSS (threads that share a row), THREADS, RESIDENT
// (blocks on a multiprocessor).

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr unsigned KEY_ROWS = 128;
constexpr int WARPS = THREADS / WARP, TALL = THREADS / ACROSS, ROWS = MOST / TALL, SLOTS = 2 * ACROSS;
constexpr int PAIRS = MOST / SLOTS;  // of columns, in a row of a thread
constexpr int WIDTH = (PAIRS + 1) * ACROSS;  // pairs of numbers in a row with its right-hand sides
constexpr int LD = MOST + 2;  // of right-hand sides; few bank conflicts
constexpr int GROUP = THREADS >= 2 * MOST ? 2 : 1;  // threads that take a row of the residual
static_assert(TALL * ROWS == MOST && PAIRS * SLOTS == MOST && MOST < int(KEY_ROWS), "shape");

struct Pair { double2 part[PARTS]; };  // two numbers

__device__ __forceinline__ void load(const Pair& from, Number (&v)[2]) {
    if (COMPLEX) {
        v[0] = {from.part[0].x, from.part[0].y}, v[1] = {from.part[PARTS - 1].x, from.part[PARTS - 1].y};
    } else {
        v[0] = {from.part[0].x, 0.0}, v[1] = {from.part[0].y, 0.0};
    }
}

__device__ __forceinline__ void save(Pair& to, const Number (&v)[2]) {
    if (COMPLEX) {
        to.part[0] = {v[0].re, v[0].im}, to.part[PARTS - 1] = {v[1].re, v[1].im};
    } else {
        to.part[0] = {v[0].re, v[1].re};
    }
}

// Shared memory.
struct Room {
    Pair* candidates;  // [2][WARPS][WIDTH]: rows that may be the pivot row; the next step uses the other half
    Entry* sides;      // [SLOTS][LD]: right-hand sides or solutions
    Entry* pivots;     // [MOST]
    int* steps;        // [MOST]: the step whose pivot is in a row
    unsigned* keys;    // [2][WARPS]: the keys of the candidates; `a` starts on a 16-byte boundary after them
    Given* a;          // row i starts at i stride
    int n, stride;     // the stride is odd, so that a column is read without bank conflicts

    __device__ __forceinline__ Room(char* at, int n) : n(n), stride(n | 1) {
        candidates = reinterpret_cast<Pair*>(at), sides = reinterpret_cast<Entry*>(candidates + 2 * WARPS * WIDTH);
        pivots = sides + SLOTS * LD, steps = reinterpret_cast<int*>(pivots + MOST);
        keys = reinterpret_cast<unsigned*>(steps + MOST), a = reinterpret_cast<Given*>(keys + 4 * WARPS);
    }

    __device__ __forceinline__ Number operator()(int i, int j) const {
        const Given& v = a[i * stride + j];
        return {double(v.part[0]), COMPLEX ? double(v.part[PARTS - 1]) : 0.0};
    }
};

// The rows of a thread.
struct Rows {
    Number row[ROWS][PAIRS][2], side[ROWS][2];
    // The key for the search of a pivot is (bits & mask) | low.  The bits are the upper half of the entry, or of
    // |re| + |im| if COMPLEX.  `low` tells the row; mask and low are zero once the row has had its pivot.  If there is
    // no choice, all masks are zero, and step j finds row j.
    unsigned mask[ROWS], low[ROWS];

    // Takes two steps, one for each column that lane `owner` has in pair 0: each subtracts multiples of its pivot row
    // from all other rows.  At most LIVE pairs of columns are left.
    template <int LIVE>
    __device__ __forceinline__ void eliminate(const Room& room, int owner, int j) {
        const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, v = threadIdx.x % ACROSS;
        #pragma unroll
        for (int s = 0; s < 2; ++s) {
            Number column[ROWS];
            unsigned keys[ROWS], key = 0;
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                column[r] = of_lane(row[r][0][s], lane / ACROSS * ACROSS + owner);
                const double size = COMPLEX ? fabs(column[r].re) + fabs(column[r].im) : column[r].re;
                keys[r] = unsigned(__double2hiint(size)) & mask[r] | low[r], key = max(key, keys[r]);
            }
            unsigned best = largest_of_warp(int(key));
            const Pair* sent = room.candidates + s * WARPS * WIDTH;
            Pair* place = room.candidates + (s * WARPS + warp) * WIDTH + v;
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (keys[r] != best || !best) continue;
                #pragma unroll
                for (int c = 0; c < LIVE; ++c) save(place[c * ACROSS], row[r][c]);
                save(place[PAIRS * ACROSS], side[r]);
            }
            if (WARPS == 1) {
                __syncwarp();
            } else {
                if (lane == 0) room.keys[s * WARPS + warp] = best;
                __syncthreads();
                int from = 0;
                best = room.keys[s * WARPS];
                #pragma unroll
                for (int w = 1; w < WARPS; ++w) {
                    const unsigned other = room.keys[s * WARPS + w];
                    if (other > best) best = other, from = w;
                }
                sent += from * WIDTH;
            }
            Number pivots[2], of_pivot[LIVE + 1][2], l[ROWS];
            load(sent[owner], pivots);
            #pragma unroll
            for (int c = 0; c <= LIVE; ++c) load(sent[(c < LIVE ? c : PAIRS) * ACROSS + v], of_pivot[c]);
            if (threadIdx.x == 0) {
                save(room.pivots[j + s], pivots[s]), room.steps[KEY_ROWS - 1 - best % KEY_ROWS] = j + s;
            }
            const Number inverse = inverse_of(pivots[s]);
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const bool is_pivot = keys[r] == best;
                l[r] = is_pivot ? Number{0.0, 0.0} : times(column[r], inverse);
                if (is_pivot) mask[r] = low[r] = 0;
            }
            #pragma unroll
            for (int c = 0; c < LIVE; ++c) {
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) subtract(row[r][c], l[r], of_pivot[c]);
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) subtract(side[r], l[r], of_pivot[LIVE]);
        }
    }

    __device__ __forceinline__ static void subtract(Number (&from)[2], Number l, const Number (&of_pivot)[2]) {
        from[0] = less(from[0], l, of_pivot[0]), from[1] = less(from[1], l, of_pivot[1]);
    }

    // Eliminates SLOTS columns, from column j on.  A thread has `live` pairs of columns left in each row.  Only some
    // values of LIVE are compiled.
    template <int LIVE>
    __device__ __forceinline__ void eliminate_part(const Room& room, int live, int j) {
        if constexpr (LIVE > 2) {
            if (live <= LIVE - 2) {
                eliminate_part<LIVE - 2>(room, live, j);
                return;
            }
        }
        #pragma unroll 1
        for (int owner = 0; owner < ACROSS; ++owner) eliminate<LIVE>(room, owner, j + 2 * owner);
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            #pragma unroll
            for (int c = 1; c < LIVE; ++c) row[r][c - 1][0] = row[r][c][0], row[r][c - 1][1] = row[r][c][1];
        }
    }
};

// Replaces the right-hand sides by A^-1 times them.
__device__ __forceinline__ void eliminate(const Room& room, Index kind) {
    const int n = room.n, u = threadIdx.x / ACROSS, v = threadIdx.x % ACROSS;
    // With NaN, a row of the appended identity may be chosen too early.  Then a row of the matrix may never be chosen,
    // and it keeps the step that is written here.
    for (int i = threadIdx.x; i < MOST; i += THREADS) room.steps[i] = i;
    Rows rows;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = u + TALL * r;
        rows.mask[r] = kind == GENERAL ? 0x7fffffffu / KEY_ROWS * KEY_ROWS : 0, rows.low[r] = KEY_ROWS - 1 - i;
        #pragma unroll
        for (int c = 0; c < PAIRS; ++c) {
            #pragma unroll
            for (int q = 0; q < 2; ++q) {
                const int j = SLOTS * c + 2 * v + q;  // beyond row and column n, the matrix is the identity
                rows.row[r][c][q] = i < n && j < n ? room(i, j) : Number{double(i == j), 0.0};
            }
        }
        #pragma unroll
        for (int q = 0; q < 2; ++q) rows.side[r][q] = load(room.sides[(2 * v + q) * LD + i]);
    }
    #pragma unroll 1
    for (int j = 0; j < n; j += SLOTS) rows.eliminate_part<PAIRS>(room, (n - j + SLOTS - 1) / SLOTS, j);
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (u + TALL * r >= n) continue;
        const int j = room.steps[u + TALL * r];
        const Number scale = inverse_of(load(room.pivots[j]));
        #pragma unroll
        for (int q = 0; q < 2; ++q) save(room.sides[(2 * v + q) * LD + j], times(rows.side[r][q], scale));
    }
    __syncthreads();
}

// The largest ||x||_1 of the solutions in the slots `first` to `last` - 1.
__device__ __forceinline__ double largest_sum(const Room& room, int first, int last) {
    constexpr int EACH = THREADS / SLOTS;  // threads that add up one solution
    static_assert(EACH <= WARP && (EACH & EACH - 1) == 0, "part of a warp");
    const int slot = threadIdx.x / EACH;
    double sum = 0;
    for (int i = threadIdx.x % EACH; i < room.n; i += EACH) sum += modulus(load(room.sides[slot * LD + i]));
    sum = over_lanes<EACH>(sum, sum_of);
    return over_block<WARPS>(slot < first || slot >= last ? 0.0 : sum, larger);
}

// Calls take(i) for each row i of the thread.
template <typename Take>
__device__ __forceinline__ void for_rows(int n, Take take) {
    #pragma unroll
    for (int i = threadIdx.x; i < (MOST + THREADS - 1) / THREADS * THREADS; i += THREADS) if (i < n) take(i);
}

// The first step, from 1 on, whose pivot is not allowed; or 0.
__device__ __forceinline__ int first_broken(const Room& room, Index kind) {
    int left = 0;  // steps from the broken one on
    for_rows(room.n, [&](int j) { if (is_broken(load(room.pivots[j]), kind)) left = max(left, room.n - j); });
    if (!__syncthreads_or(left)) return 0;
    return room.n + 1 - int(over_block<WARPS>(left, larger));
}

// Keeps answer(i), rounded to the type of x, as entry i of slot c, and returns max |x|.
template <typename Answer>
__device__ __forceinline__ double keep_rounded(const Room& room, int c, Answer answer) {
    double size = 0;
    __syncthreads();
    for_rows(room.n, [&](int i) {
        const Number v = rounded(answer(i));
        save(room.sides[c * LD + i], v), size = larger(size, modulus(v));
    });
    return over_block<WARPS>(size, larger);  // it waits until all entries are kept
}

// max |b - A x| of the solution in slot c; `keep(i, r)` gets each difference.  `of_x` is max |x|, and `norm` ||A||_inf.
template <typename Side, typename Keep>
__device__ __forceinline__ double residual(const Room& room, int c, Side b, double norm, double of_x, Keep keep) {
    const int n = room.n, in_group = threadIdx.x % GROUP;
    const double most = norm * of_x;
    double largest = 0;
    #pragma unroll 1
    for (int first = 0; first < n; first += THREADS / GROUP) {
        const int i = min(first + int(threadIdx.x) / GROUP, n - 1);
        const Number given = b(i);
        const double of_b = fabs(given.re) + fabs(given.im);
        Residual<> sum;
        sum.begin(in_group ? Number{0.0, 0.0} : given, in_group ? most + of_b : most);
        #pragma unroll 4
        for (int j = in_group; j < n; j += GROUP) sum.subtract(room(i, j), load(room.sides[c * LD + j]));
        const Number r = sum.over_group<GROUP>();
        if (in_group == 0 && first + int(threadIdx.x) / GROUP < n) keep(i, r);
        largest = larger(largest, modulus(r));
    }
    return over_block<WARPS>(largest, larger);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_jordan(
    T_A* x, double* board, char* doubtful, int* doubt, const unsigned char* left, const T_A* a, Index a_step,
    Index a_row, Index a_col, const T_A* b, Index b_step, Index b_row, Index b_col, Index below, Index above,
    Index mirror, Index kind, double bound, double near, double least, double safe, double agrees, Index count,
    Index unknowns, Index columns, Index share
) {
    extern __shared__ __align__(16) char memory[];
    __shared__ double rests[SLOTS], sizes[SLOTS];
    const int n = int(unknowns), all = int(columns);
    const int shares = (all + int(share) - 1) / int(share), first_side = blockIdx.x % shares * int(share);
    const int k = min(int(share), all - first_side);
    const Room room(memory, n);
    for (
        Index slice = next_system<THREADS>(left, blockIdx.x / shares, count); slice < count;
        slice = next_system<THREADS>(left, slice + gridDim.x, count)
    ) {
        T_A* answers = x + PARTS * (slice * n * all + first_side);
        const T_A* given_a = a + PARTS * slice * a_step;
        const T_A* given_b = b + PARTS * (slice * b_step + first_side * b_col);
        const auto side = [&](int i, int c) { return number(given_b, i * b_row + c * b_col); };

        copy_matrix<MOST, THREADS>(room.a, given_a, n, room.stride, a_row, a_col);
        for (int e = threadIdx.x; e < SLOTS * MOST; e += THREADS) {  // random vectors fill the slots
            const int c = e / MOST, i = e % MOST;
            Number v = {0.0, 0.0};
            if (i < n) v = c < k ? side(i, c) : Number{random_probe(i, c - k), 0.0};
            save(room.sides[c * LD + i], v);
        }
        wait_for_copies();
        __syncthreads();

        Seen seen;
        const bool mirrored = BANDED && mirror;  // then the norms of rows and of columns are the same
        if (BANDED) {
            // No thread writes what another one reads: the mirror image of an entry that is not read keeps its value.
            const Band band(below, above, mirror);
            for_rows(n, [&](int i) {
                #pragma unroll 4
                for (int j = 0; j < n; ++j) {
                    const Number given = room(i, j);
                    const Number other = band.mirror && !band.reads(i, j) ? room(j, i) : Number{0.0, 0.0};
                    const Number stands = band.stands(i, j, given, other);
                    seen.note(band, i, j, given, stands);
                    if (band.changes(i, j)) store(reinterpret_cast<T_A*>(room.a), i * room.stride + j, stands);
                }
            });
            __syncthreads();
        }
        double inf = 0, one = 0;
        for_rows(n, [&](int i) {
            double of_row = 0, of_column = 0;
            #pragma unroll 4
            for (int j = 0; j < n; ++j) {
                of_row += modulus(room(i, j));
                if (!mirrored) of_column += modulus(room(j, i));
            }
            inf = larger(inf, of_row), one = larger(one, of_column);
        });
        inf = over_block<WARPS>(inf, larger), one = mirrored ? inf : over_block<WARPS>(one, larger);
        if (!BANDED && !isfinite(inf)) {  // NaN or Inf, or a sum that has overflowed
            for_rows(n, [&](int i) {
                for (int j = 0; j < n; ++j) {
                    const Number v = room(i, j);
                    seen.spoilt = seen.spoilt || !isfinite(v.re) || COMPLEX && !isfinite(v.im);
                }
            });
        }

        // First the answers are computed.  Then each answer that misses the bound is corrected, and the better of the
        // two is kept.  Then, for the few matrices that may be singular to working precision, the columns of A^-1 are
        // computed.
        Measured found = {inf, one, 0.0, 0.0};
        double of_inverse = 0;
        const auto nothing = [](int, Number) {};
        // `job` is -1 for all answers, 0 to k - 1 for the correction of this answer, and k or more for SLOTS columns of
        // A^-1, from column `first` on.
        int job = -1, first = 0;
        int known = first_of_largest(left, slice, SLOTS);
        const auto answer = [&](int i) { return number(answers, Index(i) * all + job); };
        const auto of_b = [&](int i) { return side(i, job); };
        #pragma unroll 1
        while (true) {
            eliminate(room, kind);
            if (job < 0) {
                found.broken = first_broken(room, kind), found.grown = largest_sum(room, k, SLOTS);
                #pragma unroll 1
                for (int c = 0; c < k; ++c) {
                    const double size = keep_rounded(room, c, [&](int i) { return load(room.sides[c * LD + i]); });
                    const double rest = residual(room, c, [&](int i) { return side(i, c); }, inf, size, nothing);
                    for_rows(n, [&](int i) { store(answers, Index(i) * all + c, load(room.sides[c * LD + i])); });
                    if (threadIdx.x == 0) rests[c] = rest, sizes[c] = size;
                }
            } else if (job < k) {
                const double rest = rests[job], size = sizes[job];
                const auto corrected = [&](int i) { return plus(answer(i), load(room.sides[LD + i])); };
                const double new_size = keep_rounded(room, 0, corrected);
                const double new_rest = residual(room, 0, of_b, inf, new_size, nothing);
                if (new_rest * size < rest * new_size) {
                    for_rows(n, [&](int i) { store(answers, Index(i) * all + job, load(room.sides[i])); });
                    if (threadIdx.x == 0) rests[job] = new_rest, sizes[job] = new_size;
                }
            } else {
                of_inverse = larger(of_inverse, largest_sum(room, 0, min(SLOTS, n - first)));
            }
            __syncthreads();
            do ++job; while (job < k && rests[job] <= bound * inf * sizes[job]);
            if (job < k) {
                keep_rounded(room, 0, answer);
                residual(room, 0, of_b, inf, sizes[job], [&](int i, Number r) { save(room.sides[LD + i], r); });
                continue;
            }
            if (!found.is_near(near)) break;
            if (known >= 0 && job > k) {
                if (!found.needs_more(of_inverse, n)) break;
                known = -1, job = k;
            }
            first = known >= 0 ? known : SLOTS * (job - k);
            if (first >= n) break;
            for (int e = threadIdx.x; e < SLOTS * MOST; e += THREADS) {
                save(room.sides[e / MOST * LD + e % MOST], {double(e % MOST == first + e / MOST), 0.0});
            }
            __syncthreads();
        }
        if (job > k) found.grown = of_inverse;

        if (BANDED) {
            seen.apart = over_block<WARPS>(seen.apart, larger), seen.largest = over_block<WARPS>(seen.largest, larger);
        }
        seen.beyond = __syncthreads_or(seen.beyond), seen.spoilt = __syncthreads_or(seen.spoilt);
        seen.zero = __syncthreads_or(seen.zero);
        const Limits limits = {kind, bound, least, safe, agrees};
        if (threadIdx.x == 0) {
            found.report(seen, limits, rests, sizes, k, slice, count, board, doubtful, doubt, first_side, all);
        }
        __syncthreads();  // the next system uses the same memory
    }
}
