// Solves real positive definite systems by elimination of 16 x 16 squares, each system on many multiprocessors.
//
//   y      double [count][k + probes][n]: A^-1 times the k columns of b, then A^-1 times `probes` random vectors
//          (probe.cuh).
//   info   int[count]: 0, or the number, from 1 on, of the first row whose pivot is zero or negative.  Then y must not
//          be used.  If A holds NaN or Inf, y is not finite, or info is not 0.
//   room   double[count (N^2 + 16 N + 2) + 1], N = n rounded up to a multiple of 16, on a boundary of 16 bytes.  For
//          each system its panels, and the first row without a positive pivot; at the end the number of blocks that
//          have started.  Before the launch, all bits of this memory are ones.
//   a, b   T_A; entry (s, i, j) of a is at s a_step + i a_row + j a_col, and (s, i, c) of b is at s b_step + i b_row +
//          c b_col.
//
// A block keeps 16 columns of (A, b, random vectors), padded to N rows, in shared memory, cut into squares of 16 rows.
// Step k is a step of Gauss-Jordan elimination with square (k, k) as the pivot, so no back substitution follows.  In
// each block, with columns j,
//
//     X = A_kk^-1 A_kj,   A_ij = A_ij - A_ik X for i != k,   A_kj = X.
//
// In step k, the block with columns k only sends panel k: its squares as they are before the step, and A_kk^-1.  All
// blocks with columns to the right read the panel.  If A_kk is ill-conditioned, its rounded inverse is too inaccurate,
// so X is corrected once: X = X + A_kk^-1 (A_kj - A_kk X).
//
// All blocks wait for the inverses, one after the other.  So the last warp of a block does only what the next inverse
// waits for: it computes X, then updates the square with the rows of the next pivot, and at the end inverts the square
// on the diagonal.  The other warps update the other squares.
//
// A block takes its columns when it starts, and waits only for blocks of the same system with columns to the left,
// which have started before.  So some block can always go on, also if the device has no room for all of them.
//
// Grid: for each system one block for every 16 columns of A, then one for every 16 right-hand sides and random vectors;
// block THREADS, with N / 16 squares in dynamic shared memory.
// Defines T_A, COMPLEX (0), THREADS.
// Rounding: FP64.  The backward error may be as large as epsilon times the root of the condition number.

#include "batched/sent_words.cuh"
#include "batched/small_solve.cuh"
#include "common/tile_product.cuh"

// Warps 3, 7, 11, ... share a scheduler and its arithmetic units.  Of these, only the last one has work: other products
// would delay its operations, and all blocks wait for these.  The OTHERS are the warps 0, 1, 2, 4, 5, 6, 8, ...
constexpr int WARPS = THREADS / WARP, OTHERS = WARPS / 4 * 3;
constexpr int AHEAD = 2;  // squares of a panel that a warp reads at the same time
constexpr int SIDE = 16, AREA = SIDE * SIDE;
constexpr int STRIDE = SIDE + 2;  // of the columns of a factor in shared memory, so that reads use all banks
static_assert(!COMPLEX && WARPS % 4 == 0, "shape");

using Pair = Words<2>;

// A lane has 4 entries of each of 2 rows (or columns) of a square: of row_of_lane() and of this plus 8, the entries
// 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, q = quarter_of_lane().
__device__ __forceinline__ int row_of_lane() { return threadIdx.x % WARP / 4; }
__device__ __forceinline__ int quarter_of_lane() { return threadIdx.x % 4; }
__device__ __forceinline__ int entry_of_lane(int e) { return 2 * quarter_of_lane() + e % 2 + e / 2 * 8; }

// A square that another block sends: the left factor of products.  In memory, lane i has four pairs, 32 pairs apart.
// Pair e has the entries of both rows of the lane in column entry_of_lane(e).
struct Left {
    Pair at[4];

    __device__ __forceinline__ void look_at(const Pair* square) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) at[e].look_at(square + WARP * e + threadIdx.x % WARP);
    }
    __device__ __forceinline__ bool is_there() const {
        return at[0].are_there() && at[1].are_there() && at[2].are_there() && at[3].are_there();
    }
    // Reads the square again until the other block has written it.
    __device__ __forceinline__ void wait(const Pair* square) {
        while (__any_sync(ALL_LANES, !is_there())) look_at(square);
    }
    // The same; meanwhile another square is read again if it is not there.
    __device__ __forceinline__ void wait(const Pair* square, Left& other, const Pair* of_other) {
        while (__any_sync(ALL_LANES, !is_there())) {
            look_at(square);
            if (!other.is_there()) other.look_at(of_other);
        }
    }
};

// The right factor of products, by columns.
struct Right {
    double at[2][4];

    // From shared memory, column j at j STRIDE.
    __device__ __forceinline__ void read(const double* columns) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            #pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const double* const from = columns + (row_of_lane() + 8 * h) * STRIDE + entry_of_lane(e);
                const double2 v = *reinterpret_cast<const double2*>(from);
                at[h][e] = v.x, at[h][e + 1] = v.y;
            }
        }
    }
};

// The row and the column of a pivot, in shared memory.
struct Cross { alignas(16) double row[SIDE], column[SIDE]; };

// A square of this block, by rows: a sum of products.  at[t][2 h + e] is in row row_of_lane() + 8 h and column
// entry_of_lane(2 t + e).
struct Square {
    double at[2][4];

    __device__ __forceinline__ double& entry(int h, int e) { return at[e / 2][2 * h + e % 2]; }

    // Calls f(entry, row, column) for each entry that this lane has.
    template <typename F>
    __device__ __forceinline__ void each(F f) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) f(entry(h, e), row_of_lane() + 8 * h, entry_of_lane(e));
        }
    }

    __device__ __forceinline__ void add_product(const Left& left, const Right& right) {
        double factor[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) factor[i] = left.at[i / 2].number(i % 2);
        #pragma unroll
        for (int t = 0; t < 2; ++t) add_long_product(at[t], factor, right.at[t]);
    }

    // In shared memory, a lane has four pairs.
    __device__ __forceinline__ void load(const double2* square) {
        #pragma unroll
        for (int p = 0; p < 4; ++p) {
            const double2 v = square[WARP * p + threadIdx.x % WARP];
            at[p / 2][p % 2 * 2] = v.x, at[p / 2][p % 2 * 2 + 1] = v.y;
        }
    }
    __device__ __forceinline__ void save(double2* square) const {
        #pragma unroll
        for (int p = 0; p < 4; ++p) {
            square[WARP * p + threadIdx.x % WARP] = make_double2(at[p / 2][p % 2 * 2], at[p / 2][p % 2 * 2 + 1]);
        }
    }
    // Copies the square, times `sign`, to the columns of a factor.
    __device__ __forceinline__ void save_columns(double* to, double sign) {
        each([&](double& v, int i, int j) { to[j * STRIDE + i] = sign * v; });
    }

    __device__ __forceinline__ void send(Pair* to) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            Pair v;
            v.set(0, entry(0, e)), v.set(1, entry(1, e)), v.make_seen();
            v.write(to + WARP * e + threadIdx.x % WARP);
        }
    }

    // Replaces the square by its inverse.  Returns the first row whose pivot is zero or negative, or SIDE.
    __device__ __forceinline__ int invert(Cross (&cross)[2]) {
        int broken = SIDE;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            #pragma unroll 1
            for (int pair = 0; pair < 4; ++pair) {
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    if (!eliminate(half, pair, e, cross[e])) broken = min(broken, 8 * half + 2 * pair + e);
                }
            }
        }
        return broken;
    }

    // A step of the inversion, with the pivot in row 8 half + 2 pair + e.  Returns whether the pivot is allowed.
    __device__ __forceinline__ bool eliminate(int half, int pair, int e, Cross& cross) {
        const bool has_row = row_of_lane() == 2 * pair + e, has_column = quarter_of_lane() == pair;
        if (has_row) {
            #pragma unroll
            for (int t = 0; t < 2; ++t) {
                *reinterpret_cast<double2*>(&cross.row[entry_of_lane(2 * t)]) =
                    make_double2(at[t][2 * half], at[t][2 * half + 1]);
            }
        }
        if (has_column) {
            #pragma unroll
            for (int h = 0; h < 2; ++h) cross.column[row_of_lane() + 8 * h] = entry(h, 2 * half + e);
        }
        __syncwarp();
        const double pivot = cross.row[8 * half + 2 * pair + e];
        double of_row[4], of_column[2];
        #pragma unroll
        for (int t = 0; t < 2; ++t) {
            const double2 v = *reinterpret_cast<const double2*>(&cross.row[entry_of_lane(2 * t)]);
            of_row[2 * t] = v.x, of_row[2 * t + 1] = v.y;
        }
        #pragma unroll
        for (int h = 0; h < 2; ++h) of_column[h] = cross.column[row_of_lane() + 8 * h];
        // The new entries are a_ij - (column_i / pivot) row_j; those in the row and the column of the pivot too, if
        // a_ij there is replaced by 0, row_j of the pivot by 1, and column_i of the pivot by -1.
        if (has_row) of_column[half] = -1.0;
        if (has_column) of_row[2 * half + e] = 1.0;
        // 1 / pivot = start + start rest, but for the last bits.
        const double start = rough_reciprocal(pivot);
        const double error = fma(-pivot, start, 1.0), rest = fma(error, error, error);
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const double begun = -of_column[h] * start, multiplier = fma(begun, rest, begun);
            #pragma unroll
            for (int c = 0; c < 4; ++c) {
                const bool replaced = h == half && has_row || c == 2 * half + e && has_column;
                entry(h, c) = fma(multiplier, of_row[c], replaced ? 0.0 : entry(h, c));
            }
        }
        return !is_broken({pivot, 0.0}, DEFINITE);
    }
};

struct Shared {
    alignas(16) double rows[SIDE * STRIDE];  // A_kj
    alignas(16) double factor[2][SIDE * STRIDE];  // -X; the next step uses the other one
    Cross cross[2];
    unsigned block;
};

// The memory of a system.
struct Panels {
    Pair* room;
    int count;

    // Square (i, k) of panel k; row i = count has the inverse of square (k, k).
    __device__ __forceinline__ Pair* square(int i, int k) const { return room + (k * (count + 1) + i) * (AREA / 2); }
    __device__ __forceinline__ Pair* inverse(int k) const { return square(count, k); }
    // The first row whose pivot is not positive; more than any row if there is none.
    __device__ __forceinline__ unsigned* broken() const { return reinterpret_cast<unsigned*>(square(0, count)); }

    // Sends square (k, k), and then its inverse.
    __device__ __forceinline__ void send_pivot(Square& pivot, int k, Shared& shared) const {
        pivot.send(square(k, k));
        const int row = pivot.invert(shared.cross);
        if (row < SIDE) {
            if (threadIdx.x % WARP == 0) atomicMin(broken(), unsigned(SIDE * k + row));
            __threadfence();  // a block that has seen the inverse must also see the new number in `broken`
        }
        pivot.send(inverse(k));
    }
};

// The columns of a block.
struct Columns {
    double2* squares;  // in shared memory; square i has rows 16 i to 16 i + 15
    int count;  // of squares
    int own;  // the square on the diagonal; -1 if these are right-hand sides
    int steps;

    // The i-th square that is updated, from 0 on: the next block needs the one below the diagonal first.
    __device__ __forceinline__ int in_turn(int i) const {
        const int row = own + 1 + i;
        return row < count ? row : row - count;
    }
    __device__ __forceinline__ double2* square(int i) const { return squares + i * (AREA / 2); }
    // The square that the last warp updates in a step, because it needs this one next; -1 if none.
    __device__ __forceinline__ int urgent(int step) const { return step + 1 < steps ? step + 1 : own; }
};

// The work of the last warp.
__device__ __forceinline__ void update_urgent(const Panels& panels, const Columns& columns, Shared& shared) {
    Square square;
    if (columns.own > 0) {
        // This inverse is not used.  It is computed so that the instructions are in the cache for the inverse at the
        // end, for which all blocks to the right wait.
        square.load(columns.square(columns.own));
        square.invert(shared.cross);
        square.save_columns(shared.rows, 1.0);
        __syncwarp();  // so that the compiler keeps it
    }
    square.load(columns.square(columns.steps > 0 ? 0 : columns.own));
    #pragma unroll 1
    for (int step = 0; step < columns.steps; ++step) {
        double* const factor = shared.factor[step % 2];
        const int next = columns.urgent(step);
        const Pair *const of_inverse = panels.inverse(step), *const of_pivot = panels.square(step, step);
        Left inverse, pivot;
        inverse.look_at(of_inverse), pivot.look_at(of_pivot);
        square.save_columns(shared.rows, 1.0);
        __syncwarp();
        Right right;
        right.read(shared.rows);
        inverse.wait(of_inverse, pivot, of_pivot);
        pivot.wait(of_pivot);
        Square x = {};
        x.add_product(inverse, right);

        x.save_columns(factor, -1.0);
        __syncwarp();
        right.read(factor);
        square.add_product(pivot, right);
        Left left;
        if (next >= 0) left.look_at(panels.square(next, step));
        square.save_columns(shared.rows, 1.0);
        __syncwarp();
        right.read(shared.rows);
        x.add_product(inverse, right);

        x.save_columns(factor, -1.0);
        x.save(columns.square(step));
        __syncthreads();
        if (next < 0) break;
        right.read(factor);
        left.wait(panels.square(next, step));
        square.load(columns.square(next));
        square.add_product(left, right);
    }
    if (columns.own >= 0) panels.send_pivot(square, columns.own, shared);
}

// The work of the other warps.
__device__ __forceinline__ void update_others(const Panels& panels, const Columns& columns, Shared& shared) {
    const int warp = threadIdx.x / WARP, first = warp % 4 < 3 ? warp / 4 * 3 + warp % 4 : columns.count;
    #pragma unroll 1
    for (int step = 0; step < columns.steps; ++step) {
        const bool sends = columns.own >= 0 && step + 1 == columns.steps;
        // The last step sends X, too.
        const int urgent = columns.urgent(step), done = sends ? -1 : step;
        const auto takes = [&](int i) {
            const int row = columns.in_turn(i);
            return i < columns.count && row != done && row != urgent;
        };
        const auto sent = [&](int i) { return panels.square(columns.in_turn(i), step); };
        Left left[AHEAD];
        #pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            const int i = first + OTHERS * s;
            if (takes(i)) left[s].look_at(sent(i));
        }
        __syncthreads();
        Right right;
        right.read(shared.factor[step % 2]);
        #pragma unroll 1
        for (int group = first; group < columns.count; group += OTHERS * AHEAD) {
            #pragma unroll
            for (int s = 0; s < AHEAD; ++s) {
                const int i = group + OTHERS * s, later = i + OTHERS * AHEAD;
                if (takes(i)) {
                    Square square;
                    const int row = columns.in_turn(i);
                    square.load(columns.square(row));
                    left[s].wait(sent(i));
                    if (row != step) square.add_product(left[s], right);
                    if (sends) square.send(panels.square(row, columns.own));
                    else square.save(columns.square(row));
                }
                if (takes(later)) left[s].look_at(sent(later));
            }
        }
    }
}

// Not inlined, because its code would be repeated for each entry of a lane.
__device__ __noinline__ double probe(int i, int number) { return random_probe(i, unsigned(number)); }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_solve_definite(
    double* y, int* info, Pair* room, const T_A* a, Index a_step, Index a_row, Index a_col, const T_A* b, Index b_step,
    Index b_row, Index b_col, Index count, Index unknowns, Index k, Index probes
) {
    extern __shared__ __align__(16) double2 squares_of_block[];
    __shared__ Shared shared;
    const int n = int(unknowns), squares = (n + SIDE - 1) / SIDE, warp = threadIdx.x / WARP;
    const Index of_system = Index(squares) * (squares + 1) * (AREA / 2) + 1;
    // The number of blocks that have started, minus 1.
    unsigned* const started = reinterpret_cast<unsigned*>(room + count * of_system);
    if (threadIdx.x == 0) shared.block = atomicAdd(started, 1u) + 1;
    __syncthreads();
    const Index slice = shared.block % count;
    const int block = int(shared.block / count);
    const bool has_sides = block >= squares;
    const int first = SIDE * (has_sides ? block - squares : block);
    const Panels panels = {room + slice * of_system, squares};
    const Columns columns = {squares_of_block, squares, has_sides ? -1 : block, has_sides ? squares : block};

    const T_A *const of_slice = a + slice * a_step, *const sides = b + slice * b_step;
    for (int i = warp; i < squares; i += WARPS) {
        Square square;
        square.each([&](double& v, int row, int column) {
            const int r = SIDE * i + row, j = first + column;
            if (!has_sides) {
                v = r < n && j < n ? double(of_slice[r * a_row + j * a_col]) : double(r == j);
            } else if (r < n && j < k) {
                v = double(sides[r * b_row + j * b_col]);
            } else {
                v = r < n && j < k + probes ? probe(r, j - int(k)) : 0.0;
            }
        });
        square.save(columns.square(i));
        if (block == 0 && i > 0) square.send(panels.square(i, 0));
    }
    __syncthreads();
    if (warp == WARPS - 1) update_urgent(panels, columns, shared);
    else update_others(panels, columns, shared);
    if (!has_sides) return;

    __syncthreads();
    double* const answers = y + slice * (k + probes) * n;
    for (int i = warp; i < squares; i += WARPS) {
        Square square;
        square.load(columns.square(i));
        square.each([&](double& v, int row, int column) {
            const int r = SIDE * i + row, j = first + column;
            if (r < n && j < k + probes) answers[Index(j) * n + r] = v;
        });
    }
    if (first == 0 && threadIdx.x == 0) {
        __threadfence();  // this block has seen all inverses, so it sees the final number in `broken`
        const unsigned broken = *reinterpret_cast<volatile unsigned*>(panels.broken());
        info[slice] = broken < unsigned(n) ? int(broken) + 1 : 0;
    }
}
