// What follows a factorization in solve_block.cu and solve_cholesky.cu: the answers of one system are rounded and
// verified, and the few that miss the bound are corrected.  small_solve.cuh describes bounds and results.
//
// The factors are an object with
//
//   size     the number of rows, n rounded up to 8; beyond n the matrix is the identity.
//   side(i, c), answer(i, c)  entry i of column c before and after a solve; the two may be different places.
//   columns()  the largest number of columns, a multiple of 8.
//   solve(tiles)  solves for 8 `tiles` columns.
//   broken   the first step, from 1 on, whose pivot is not allowed; or 0.
//
// The file that includes this one defines T_A, COMPLEX, BANDED, WARPS and THREADS.
#pragma once

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr int GROUP = 8;  // threads that compute one entry of the residual
constexpr int AT_ONCE = COMPLEX ? 2 : 4;  // right-hand sides for which a row of A is read once

// The right-hand sides of one system.
struct Sides {
    const T_A* at;
    Index row, col;

    __device__ __forceinline__ Number operator()(int i, int c) const { return number(at, i * row + c * col); }
};

// Shared memory: one answer, and for each right-hand side max |b - A x| and max |x|.
struct Scratch {
    Entry* answer;
    double *rests, *sizes;
};

// The sizes of one system: unknowns, right-hand sides and random vectors.
struct Sizes { int n, k, probes; };

// Where the results of all systems are written.
struct Results {
    double* board;
    char* doubtful;
    int* doubt;
    Index count;
};

// For rare solves: not inlined, so that the code of a solve is compiled once for all of them.  It takes the factors by
// value, because a reference would keep those of the caller in memory.
template <typename Factors>
__device__ __noinline__ void solve_rarely(Factors factors, int tiles) { factors.solve(tiles); }

// Entries of a row of the matrix that is read, of every GROUP-th column.
struct RowOfMatrix {
    const Band band;
    const Index next, next_image;  // from one of these entries to the next one, and between their mirror images
    const int i;
    int j;
    const T_A *at, *image;

    // Row i, from column j on.
    __device__ __forceinline__ RowOfMatrix(const Reading& read, int i, int j)
        : band(read.band), next(GROUP * PARTS * read.col), next_image(GROUP * PARTS * read.row), i(i), j(j),
          at(read.at + PARTS * (i * read.row + j * read.col)), image(read.at + PARTS * (j * read.row + i * read.col)) {}

    // The entry in column j; j becomes the next column.
    __device__ __forceinline__ Number take() {
        const bool mirrors = BANDED && band.mirror && !band.reads(i, j);
        Number v = number(mirrors ? image : at, 0);
        if (BANDED) v = band.stands(i, j, v, v);
        j += GROUP, at += next, image += next_image;
        return v;
    }
};

// rest[q] = the largest |b_i,c+q - sum_j A_ij v(j, q)| of all i; `keep(i, q, r)` gets each difference.  most[q] is a
// bound on the sum of the moduli of the products.
template <int COUNT, typename Of, typename Keep>
__device__ __forceinline__ void residual(
    const Reading& read, const Sides& b, int c, Of v, int n, const double (&most)[COUNT], double (&rest)[COUNT],
    Keep keep
) {
    #pragma unroll
    for (int q = 0; q < COUNT; ++q) rest[q] = 0;
    for (int first = 0; first < n; first += THREADS / GROUP) {
        const int i = min(first + int(threadIdx.x) / GROUP, n - 1), in_group = threadIdx.x % GROUP;
        Residual<> sums[COUNT];
        #pragma unroll
        for (int q = 0; q < COUNT; ++q) {
            const Number given = b(i, c + q);
            const double of_b = fabs(given.re) + fabs(given.im);
            sums[q].begin(in_group ? Number{0.0, 0.0} : given, in_group ? most[q] + of_b : most[q]);
        }
        RowOfMatrix row(read, i, in_group);
        #pragma unroll 4
        for (int j = in_group; j < n; j += GROUP) {
            const Number u = row.take();
            #pragma unroll
            for (int q = 0; q < COUNT; ++q) sums[q].subtract(u, v(j, q));
        }
        #pragma unroll
        for (int q = 0; q < COUNT; ++q) {
            const Number r = sums[q].template over_group<GROUP>();
            rest[q] = larger(rest[q], modulus(r));
            if (in_group == 0 && first + int(threadIdx.x) / GROUP < n) keep(i, q, r);
        }
    }
    all_over_block<WARPS>(rest, larger);
}

// Judges the answers of a system.  The first k columns in `factors` are the solutions for b, the others those for the
// random vectors.  `seen` is what this thread has noted about the entries of A (reading.cuh).  Unless `known` is
// negative, the largest column of A^-1 is expected among the factors.columns() columns from column `known` on.
template <typename Factors>
__device__ __forceinline__ void judge_answers(
    Factors& factors, const Reading& read, const Sides& sides, T_A* answers, const Scratch& room, Sizes of,
    const Limits& limits, double near, const Results& results, Index slice, double inf, double one, Seen& seen,
    int known = -1
) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n = of.n, k = of.k;
    const int tiles = (k + of.probes) / 8;
    const double bound = limits.bound;
    Measured found = {inf, one, 0.0, double(factors.broken)};
    for (int p = warp; p < of.probes; p += WARPS) {
        double sum = 0;
        for (int i = lane; i < n; i += WARP) sum += modulus(load(factors.answer(i, k + p)));
        found.grown = larger(found.grown, over_lanes(sum, sum_of));
    }
    found.grown = over_block<WARPS>(found.grown, larger);

    // Stores the answers.  Their residuals become the right-hand sides of a correction.
    bool any_misses = false;
    const auto note = [&](int c, double rest, double of_x) {
        if (threadIdx.x == 0) room.rests[c] = rest, room.sizes[c] = of_x;
        any_misses = any_misses || !(rest <= bound * inf * of_x);
    };
    int c = 0;
    for (; c + AT_ONCE <= k; c += AT_ONCE) {
        double of_x[AT_ONCE] = {}, most[AT_ONCE], rest[AT_ONCE];
        for (int i = threadIdx.x; i < n; i += THREADS) {
            #pragma unroll
            for (int q = 0; q < AT_ONCE; ++q) {
                const Number v = rounded(load(factors.answer(i, c + q)));
                store(answers, Index(i) * k + c + q, v), of_x[q] = larger(of_x[q], modulus(v));
            }
        }
        all_over_block<WARPS>(of_x, larger);
        #pragma unroll
        for (int q = 0; q < AT_ONCE; ++q) most[q] = inf * of_x[q];
        const auto answer = [&](int j, int q) { return number(answers, Index(j) * k + c + q); };
        const auto keep = [&](int i, int q, Number r) { save(factors.side(i, c + q), r); };
        residual(read, sides, c, answer, n, most, rest, keep);
        #pragma unroll
        for (int q = 0; q < AT_ONCE; ++q) note(c + q, rest[q], of_x[q]);
    }
    const auto answer = [&](int j, int) { return load(room.answer[j]); };
    for (; c < k; ++c) {
        double of_x = 0, rest[1];
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const Number v = rounded(load(factors.answer(i, c)));
            save(room.answer[i], v), store(answers, Index(i) * k + c, v);
            of_x = larger(of_x, modulus(v));
        }
        of_x = over_block<WARPS>(of_x, larger);
        const auto keep = [&](int i, int, Number r) { save(factors.side(i, c), r); };
        residual(read, sides, c, answer, n, {inf * of_x}, rest, keep);
        note(c, rest[0], of_x);
    }
    __syncthreads();

    // Corrections; each right-hand side keeps the better of its answers.
    if (any_misses) solve_rarely(factors, tiles);
    for (int c = 0; c < k && any_misses; ++c) {
        const double rest = room.rests[c], of_x = room.sizes[c];
        if (rest <= bound * inf * of_x) continue;
        double new_size = 0;
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const Number v = rounded(plus(number(answers, Index(i) * k + c), load(factors.answer(i, c))));
            save(room.answer[i], v);
            new_size = larger(new_size, modulus(v));
        }
        new_size = over_block<WARPS>(new_size, larger);
        double of_new[1];
        residual(read, sides, c, answer, n, {inf * new_size}, of_new, [](int, int, Number) {});
        const double new_rest = of_new[0];
        if (!(new_rest * of_x < rest * new_size)) continue;
        for (int i = threadIdx.x; i < n; i += THREADS) store(answers, Index(i) * k + c, load(room.answer[i]));
        if (threadIdx.x == 0) room.rests[c] = new_rest, room.sizes[c] = new_size;
    }
    __syncthreads();

    // The norm of A^-1, for the few matrices that may be singular to working precision.
    if (found.is_near(near)) {
        double norm = 0;
        int first = max(known, 0);
        while (first < factors.size) {
            const int width = min(factors.columns(), factors.size - first);
            for (int e = threadIdx.x; e < factors.size * width; e += THREADS) {
                const int i = e / width, c = e % width;
                save(factors.side(i, c), {double(i == first + c), 0.0});
            }
            __syncthreads();
            solve_rarely(factors, width / 8);
            for (int c = warp; c < min(width, n - first); c += WARPS) {
                double sum = 0;
                for (int i = lane; i < n; i += WARP) sum += modulus(load(factors.answer(i, c)));
                norm = larger(norm, over_lanes(sum, sum_of));
            }
            __syncthreads();
            first += factors.columns();
            if (known < 0) continue;
            if (!found.needs_more(over_block<WARPS>(norm, larger), n)) break;
            known = -1, first = 0;
        }
        found.grown = over_block<WARPS>(norm, larger);
    }

    double most[] = {seen.apart, seen.largest};
    all_over_block<WARPS>(most, larger);
    seen.apart = most[0], seen.largest = most[1];
    seen.beyond = __syncthreads_or(seen.beyond), seen.spoilt = __syncthreads_or(seen.spoilt);
    seen.zero = __syncthreads_or(seen.zero);
    if (threadIdx.x == 0) {
        found.report(
            seen, limits, room.rests, room.sizes, k, slice, results.count, results.board, results.doubtful,
            results.doubt, 0, k
        );
    }
    __syncthreads();
}
