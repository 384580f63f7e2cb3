// Solves systems of at most MOST unknowns by Gauss-Jordan elimination, each on many multiprocessors.
//
//   y      double (or pairs if COMPLEX) [count][k + probes][n]: A^-1 times the k columns of b, then A^-1 times `probes`
//          random vectors (probe.cuh).
//   info   int[count]: 0, or the number, from 1 on, of the first step whose pivot is not allowed.  Then y must not be
//          used.  If A holds NaN or Inf, y is not finite.
//   room   memory for count (n + n % 2) MOST + 1 entries, double or pairs; the last one counts the blocks that have
//          started.  Before the launch, all bits of this memory are ones.
//   a, b   T_A, or pairs; entry (s, i, j) of a is at s a_step + i a_row + j a_col, and (s, i, c) of b is at s b_step +
//          i b_row + c b_col.
//   kind   GENERAL, with partial pivoting; else step j takes row j.
//
// A block keeps COLUMNS columns of (A, b, random vectors) in registers.  Thread t has the rows t + THREADS r.  Step j
// subtracts multiples of the pivot row from all other rows, also from those of earlier pivots.  The block with column j
// chooses the pivot row and writes the multipliers to `room`; all blocks with columns to the right read them.  Because
// rows of earlier pivots are updated too, the right-hand sides become the solutions times the pivots, without a back
// substitution.  Rows are not moved.
//
// The blocks need no flags (sent_words.cuh).  A block takes its columns when it starts, and waits
// only for blocks of the same system with columns to the left, which have started before.  So some block can always go
// on, also if the device has no room for all of them.  The first blocks of all systems start first, then their second
// blocks, and so on.  In this order, when a block of a long stack starts, the blocks to its left have mostly ended.
//
// Grid: for each system one block for every COLUMNS columns of A, then one for every COLUMNS right-hand sides and
// random vectors; block THREADS.
// Defines T_A, COMPLEX, MOST, THREADS, COLUMNS.
// Rounding: FP64, with multiplications by reciprocals of the pivots.

#include "batched/sent_words.cuh"
#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = THREADS / WARP, ROWS = MOST / THREADS;
constexpr unsigned KEY_ROWS = 2048;  // more than MOST, so that `low` of a row that has had no pivot is not zero
constexpr int AHEAD = 4;  // steps whose multipliers are loaded at the same time
static_assert(MOST % THREADS == 0 && MOST < int(KEY_ROWS) && COLUMNS % 4 == 0 && WARPS % 4 == 0, "shape");

// A number that blocks send to each other: the multiplier of a row, or, for the pivot row, the reciprocal of the pivot.
// The last bit of the first part tells which.  So a multiplier loses its last bit, in all blocks alike.
struct Sent {
    Words<PARTS> part;

    static constexpr Bits OF_PIVOT = 1, BROKEN = 0x7ff8000100000000ull | OF_PIVOT;

    __device__ __forceinline__ bool is_of_pivot() const { return part.word[0] & OF_PIVOT; }
    __device__ __forceinline__ Number value() const {
        return {part.number(0), COMPLEX ? part.number(PARTS - 1) : 0.0};
    }

    __device__ __forceinline__ void set_multiplier(Number v) {
        part.set(0, v.re), part.word[0] &= ~OF_PIVOT;
        if (COMPLEX) part.set(PARTS - 1, v.im);
    }
    __device__ __forceinline__ void set_of_pivot(Number inverse, bool broken) {
        set_multiplier(inverse);
        part.word[0] = broken ? BROKEN : part.word[0] | OF_PIVOT;
    }
};

// The numbers of a step for the rows of this thread.
struct Step {
    Sent l[ROWS];

    __device__ __forceinline__ void look_at(const Sent* sent, int j) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) l[r].part.look_at(&sent[j * MOST + THREADS * r + threadIdx.x].part);
    }
    __device__ __forceinline__ void write(Sent* sent, int j) {
        if (!is_there()) {
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) l[r].part.make_seen();
        }
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) l[r].part.write(&sent[j * MOST + THREADS * r + threadIdx.x].part);
    }
    __device__ __forceinline__ bool is_there() const {
        bool all = true;
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) all = all && l[r].part.are_there();
        return all;
    }
    __device__ __forceinline__ bool has_pivot() const {
        Bits any = 0;
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) any |= l[r].part.word[0];
        return any & Sent::OF_PIVOT;
    }
};

// 1 / v to about the last bits.  If v or 1 / v is subnormal, the result may be zero or not finite, and x misses the
// bound.
__device__ __forceinline__ Number fast_inverse(Number v) {
    if (!COMPLEX) return inverse_of(v);
    // A power of two brings the larger part near 1, so that no square overflows or underflows.
    const auto exponent = [](double part) { return unsigned(__double2hiint(part)) & 0x7ff00000u; };
    const unsigned size = max(exponent(v.re), exponent(v.im));
    const double scale = __hiloint2double(int(0x7fe00000u - size), 0), re = v.re * scale, im = v.im * scale;
    const double inverse = fast_reciprocal(fma(re, re, im * im)) * scale;
    return {re * inverse, -im * inverse};
}

struct Shared {
    Entry rows[2][2][COLUMNS];  // pivot rows of one step (`lead`) or two (`follow`); the next steps use the other half
    // `lead`: the reciprocal of the pivot; `follow`: the multiplier that the second of two pivot rows has in the first
    // step.  The next steps use the other entry.
    Entry scale[2];
    uint4 keys[WARPS / 4];
    unsigned block;
    int broken;  // the first step whose pivot is not allowed
};

// The entries that a thread has.
struct Rows {
    Number at[ROWS][COLUMNS];
    // The key for the search of a pivot is (bits & mask) | low.  The bits are the upper half of the entry, or of
    // |re| + |im| if COMPLEX.  `low` tells the row; mask and low are zero once the row has had its pivot.  If there is
    // no choice, all masks are zero, and the key of row j is known.
    unsigned mask[ROWS], low[ROWS];
    // The step whose pivot is in a row, and the reciprocal of the pivot.  Only blocks with right-hand sides need them.
    int step[ROWS];
    Number inverse[ROWS];

    // Copies row r to shared memory.
    template <int LIVE>
    __device__ __forceinline__ void publish(int r, Entry* to) const {
        #pragma unroll
        for (int c = 0; c < LIVE; ++c) save(to[c], at[r][c]);
    }

    // Publishes the pivot row of a step of another block.  `l` becomes the multiplier that this row has in the step
    // before.  The multiplier in its own step becomes zero.
    __device__ __forceinline__ void publish_pivot(
        Step& of, Entry* to, int j, int& broken, const Step& before, Entry& l
    ) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (!of.l[r].is_of_pivot()) continue;
            publish<COLUMNS>(r, to), save(l, before.l[r].value());
            mask[r] = low[r] = 0, step[r] = j, inverse[r] = of.l[r].value();
            if (of.l[r].part.word[0] == Sent::BROKEN) atomicMin(&broken, j);
            of.l[r].set_multiplier({0.0, 0.0});
        }
    }

    // Applies two elimination steps whose pivots another block has chosen.
    __device__ __forceinline__ void follow(Step& one, Step& two, Shared& shared, int j) {
        const int half = j / 2 % 2;
        Entry ignored;
        if (one.has_pivot()) publish_pivot(one, shared.rows[half][0], j, shared.broken, one, ignored);
        if (two.has_pivot()) publish_pivot(two, shared.rows[half][1], j + 1, shared.broken, one, shared.scale[half]);
        __syncthreads();
        const Number between = load(shared.scale[half]);  // the multiplier of the second pivot row in the first step
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const Number u = load(shared.rows[half][0][c]), v = less(load(shared.rows[half][1][c]), between, u);
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                at[r][c] = less(less(at[r][c], one.l[r].value(), u), two.l[r].value(), v);
            }
        }
    }

    // Finds the best row of this thread for the pivot in place 0: its key, and the entry.
    __device__ __forceinline__ unsigned best_key(unsigned (&keys)[ROWS], Number& candidate) const {
        unsigned key = 0;
        candidate = at[0][0];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const double size = COMPLEX ? fabs(at[r][0].re) + fabs(at[r][0].im) : at[r][0].re;
            keys[r] = unsigned(__double2hiint(size)) & mask[r] | low[r];
            if (keys[r] > key) key = keys[r], candidate = at[r][0];
        }
        return key;
    }

    // Does the steps j to end - 1, whose pivots this block chooses, and sends their multipliers.  LIVE columns are
    // left, column j in place 0: a step moves all columns by one place.
    template <int LIVE>
    __device__ __forceinline__ void lead(Sent* sent, Shared& shared, Index kind, int j, int end) {
        unsigned keys[ROWS], *const of_warp = reinterpret_cast<unsigned*>(shared.keys) + threadIdx.x / WARP;
        Number candidate;
        unsigned own = best_key(keys, candidate), best = largest_of_warp(int(own));
        // Unless COMPLEX, the reciprocal is computed early, by all threads, so that its time overlaps that of other
        // operations.
        Number early = COMPLEX ? Number{} : fast_inverse(candidate);
        #pragma unroll 1
        for (; j < end; ++j) {
            if (kind == GENERAL) {
                if (threadIdx.x % WARP == 0) *of_warp = best;
                __syncthreads();
                #pragma unroll
                for (int w = 0; w < WARPS / 4; ++w) {
                    const uint4 some = shared.keys[w];
                    best = max(max(best, max(some.x, some.y)), max(some.z, some.w));
                }
            } else {
                best = KEY_ROWS - 1 - j;
            }
            Entry* const of_pivot = shared.rows[j % 2][0];
            const bool has_pivot = own == best;
            if (has_pivot) {
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) if (keys[r] == best) publish<LIVE>(r, of_pivot);
                save(shared.scale[j % 2], COMPLEX ? fast_inverse(candidate) : early);
            }
            __syncthreads();
            const Number scale = load(shared.scale[j % 2]);
            Step of_step;
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) of_step.l[r].set_multiplier(times(at[r][0], scale));
            if (has_pivot) {
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const Number v = at[r][0];
                    // A NaN does not count as a broken pivot: it comes from A, or from an earlier pivot whose
                    // reciprocal is not finite.
                    if (keys[r] == best) of_step.l[r].set_of_pivot(scale, is_broken(v, kind));
                }
            }
            of_step.write(sent, j);
            if (has_pivot) {
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    if (keys[r] == best) mask[r] = low[r] = 0, of_step.l[r].set_multiplier({0.0, 0.0});
                }
            }
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) at[r][0] = less(at[r][1], of_step.l[r].value(), load(of_pivot[1]));
            own = best_key(keys, candidate), best = largest_of_warp(int(own));
            if (!COMPLEX) early = fast_inverse(candidate);
            #pragma unroll
            for (int c = 2; c < LIVE; ++c) {
                const Number u = load(of_pivot[c]);
                #pragma unroll
                for (int r = 0; r < ROWS; ++r) at[r][c - 1] = less(at[r][c], of_step.l[r].value(), u);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_solve_across(
    double* y, int* info, Sent* room, const T_A* a, Index a_step, Index a_row, Index a_col, const T_A* b, Index b_step,
    Index b_row, Index b_col, Index kind, Index count, Index unknowns, Index k, Index probes
) {
    __shared__ __align__(16) Shared shared;
    const int n = int(unknowns), even = n + n % 2, of_a = (n + COLUMNS - 1) / COLUMNS;
    // The number of blocks that have started, minus 1.
    unsigned* const started = reinterpret_cast<unsigned*>(room + count * even * MOST);
    if (threadIdx.x == 0) shared.block = atomicAdd(started, 1) + 1, shared.broken = n;
    __syncthreads();
    const Index slice = shared.block % count;
    const int block = int(shared.block / count);
    const bool has_sides = block >= of_a;
    const int first = (has_sides ? block - of_a : block) * COLUMNS;
    Sent* const sent = room + slice * even * MOST;  // [even][MOST]; all multipliers of rows beyond n are sent, too
    const T_A *const of_slice = a + PARTS * slice * a_step, *const sides = b + PARTS * slice * b_step;
    double* const answers = y + PARTS * slice * (k + probes) * n;

    Rows rows;
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = threadIdx.x + THREADS * r;
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int j = first + c;
            Number v = {0.0, 0.0};
            if (i < n) {
                if (!has_sides) {
                    if (j < n) v = number(of_slice, i * a_row + j * a_col);
                } else if (j < k) {
                    v = number(sides, i * b_row + j * b_col);
                } else if (j < k + probes) {
                    v.re = random_probe(i, unsigned(j - k));
                }
            }
            rows.at[r][c] = v;
        }
        rows.mask[r] = i < n && kind == GENERAL ? 0x7fffffffu / KEY_ROWS * KEY_ROWS : 0;
        rows.low[r] = i < n ? KEY_ROWS - 1 - i : 0, rows.step[r] = -1;
    }

    const int others = has_sides ? even : first, last = max(others - 1, 0);
    Step steps[AHEAD];
    #pragma unroll
    for (int s = 0; s < AHEAD; ++s) steps[s].look_at(sent, min(s, last));
    #pragma unroll 1
    for (int group = 0; group < others; group += AHEAD) {
        #pragma unroll
        for (int s = 0; s < AHEAD; s += 2) {
            const int j = group + s;
            if (j >= others) break;
            Step &one = steps[s], &two = steps[s + 1];
            while (!(one.is_there() && two.is_there())) {
                #pragma unroll
                for (int q = s; q < s + AHEAD; ++q) {
                    Step& some = steps[q % AHEAD];
                    if (!some.is_there()) some.look_at(sent, min(group + q, last));
                }
            }
            if (j + 1 == n && threadIdx.x < COLUMNS) {  // the second step has no pivot row
                save(shared.rows[j / 2 % 2][1][threadIdx.x], {0.0, 0.0});
                if (threadIdx.x == 0) save(shared.scale[j / 2 % 2], {0.0, 0.0});
            }
            rows.follow(one, two, shared, j);
            one.look_at(sent, min(j + AHEAD, last)), two.look_at(sent, min(j + AHEAD + 1, last));
        }
    }

    __syncthreads();
    if (has_sides) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int j = rows.step[r];
            if (j < 0) continue;
            #pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                const Number x = times(rows.at[r][c], rows.inverse[r]);
                if (first + c < k + probes) store(answers, Index(first + c) * n + j, x);
            }
        }
        if (first == 0 && threadIdx.x == 0) info[slice] = shared.broken < n ? shared.broken + 1 : 0;
        return;
    }
    const int end = min(first + COLUMNS, n), middle = min(first + COLUMNS / 2, n);
    rows.lead<COLUMNS>(sent, shared, kind, first, middle);
    rows.lead<COLUMNS / 2>(sent, shared, kind, middle, end);
    if (end == n && n % 2) {
        Step none;
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) none.l[r].set_multiplier({0.0, 0.0});
        none.write(sent, n);
    }
}
