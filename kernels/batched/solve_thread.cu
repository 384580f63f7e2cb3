// Solves and verifies systems of at most MOST unknowns in one launch.  A thread takes a matrix.  small_solve.cuh
// describes the arguments.
//
// A warp copies its matrices to shared memory, where they stay for the residual.  The LU factors are computed column by
// column, from left to right, and stay in registers.
//
// Grid ceil(count / THREADS), block THREADS; shared memory for each warp: SIZE entries for each thread, rounded up to
// 16 bytes.
// Defines T_A, COMPLEX, BANDED (0 if all entries are read), MOST (a power of two), THREADS, RESIDENT (blocks on a
// multiprocessor).

constexpr int LANES = 1;

#include "batched/matrices_of_warp.cuh"

// P A = L U: row i of the factors comes from the row of the matrix that starts at `place[i]` in shared memory.
struct Factors {
    Number f[N][N];  // L without its diagonal, and U with the reciprocals of the pivots
    int place[N];    // a multiple of STRIDE
    int broken;      // the first step, from 1 on, whose pivot is not allowed, or 0

    __device__ __forceinline__ Factors(const Matrix& matrix, Index kind) : broken(0) {
        #pragma unroll
        for (int i = 0; i < N; ++i) place[i] = i * STRIDE;
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            Number c[N];
            #pragma unroll
            for (int i = 0; i < N; ++i) c[i] = matrix.at(place[i] + j);
            #pragma unroll
            for (int k = 0; k < j; ++k) {
                #pragma unroll
                for (int i = k + 1; i < N; ++i) c[i] = less(c[i], f[i][k], c[k]);
            }
            if (kind == GENERAL) exchange(j, c);
            const Number inverse = inverse_of(c[j]);
            if (!broken && is_broken(c[j], kind)) broken = j + 1;
            #pragma unroll
            for (int i = 0; i < N; ++i) f[i][j] = i < j ? c[i] : i == j ? inverse : times(c[i], inverse);
        }
    }

    // Finds the pivot of column j among c[j] to c[N - 1], and exchanges its row with row j.
    __device__ __forceinline__ void exchange(int j, Number (&c)[N]) {
        unsigned best = 0;
        #pragma unroll
        for (int i = j; i < N; ++i) {
            const double size = COMPLEX ? fabs(c[i].re) + fabs(c[i].im) : c[i].re;
            best = max(best, unsigned(__double2hiint(size)) & (0x7fffffffu / N * N) | unsigned(N - 1 - i));
        }
        const int pivot = N - 1 - int(best % N);
        #pragma unroll
        for (int i = j + 1; i < N; ++i) {
            if (i != pivot) continue;
            swap(c[i], c[j]), swap(place[i], place[j]);
            #pragma unroll
            for (int k = 0; k < j; ++k) swap(f[i][k], f[j][k]);
        }
    }

    template <typename T>
    __device__ __forceinline__ static void swap(T& u, T& v) {
        const T w = u;
        u = v, v = w;
    }

    // Replaces right-hand sides, whose rows are in the order of the factors, by the solutions.
    template <int COUNT>
    __device__ __forceinline__ void solve(Number (&y)[N][COUNT]) const {
        #pragma unroll
        for (int k = 0; k < N; ++k) {
            #pragma unroll
            for (int i = k + 1; i < N; ++i) {
                #pragma unroll
                for (int s = 0; s < COUNT; ++s) y[i][s] = less(y[i][s], f[i][k], y[k][s]);
            }
        }
        #pragma unroll
        for (int j = N - 1; j >= 0; --j) {
            #pragma unroll
            for (int s = 0; s < COUNT; ++s) y[j][s] = times(y[j][s], f[j][j]);
            #pragma unroll
            for (int i = 0; i < j; ++i) {
                #pragma unroll
                for (int s = 0; s < COUNT; ++s) y[i][s] = less(y[i][s], f[i][j], y[j][s]);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_thread(
    T_A* x, double* board, char* doubtful, int* doubt, const T_A* a, Index a_step, Index a_row, Index a_col,
    const T_A* b, Index b_step, Index b_row, Index below, Index above, Index mirror, Index kind, double bound,
    double near, double least, double safe, double agrees, Index count, Index unknowns
) {
    extern __shared__ double2 memory[];
    __shared__ double probes[PROBES][N * STRIDE];  // random vectors, entry i at i STRIDE, as row i of a matrix
    constexpr int MATRICES = (WARP * SIZE * int(sizeof(Given)) + 15) / 16;
    const int n = int(unknowns), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Index first = Index(blockIdx.x) * THREADS + warp * WARP, slice = first + lane;
    for (int e = threadIdx.x; e < PROBES * N; e += THREADS) {
        probes[e / N][e % N * STRIDE] = e % N < n ? random_probe(e % N, e / N) : 0.0;
    }
    __syncthreads();
    if (first >= count) return;
    Given* matrices = reinterpret_cast<Given*>(memory + warp * MATRICES);
    const Matrix matrix = {matrices + lane * SIZE, 0, n};

    matrix.begin();
    if (n == N && a_col == 1 && a_row == N && a_step == N * N && first + WARP <= count) {
        stage_packed(matrices, a + PARTS * first * (N * N));
    } else {
        stage(matrices, a, a_step, a_row, a_col, first, count, n, n, 0);
    }
    stage(matrices, b, b_step, b_row, 0, first, count, n, 1, N);
    wait_for_copies();
    __syncwarp();

    Seen seen;
    if (BANDED) matrix.apply({below, above, mirror}, seen);
    double inf = 0, one = 0, of_columns[N] = {};
    #pragma unroll (COMPLEX ? 1 : N)
    for (int i = 0; i < N; ++i) {
        double of_row = 0;
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            const double v = modulus(matrix(i, j));
            of_row += v, of_columns[j] += v;
        }
        if (i < n) inf = larger(inf, of_row);
    }
    #pragma unroll
    for (int j = 0; j < N; ++j) if (j < n) one = larger(one, of_columns[j]);
    if (BANDED && mirror) one = inf;  // the sums differ by the order of their terms only
    if (!BANDED && !isfinite(inf)) {  // NaN or Inf, or a sum that has overflowed
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < n; ++j) {
                const Number v = matrix(i, j);
                seen.spoilt = seen.spoilt || !isfinite(v.re) || COMPLEX && !isfinite(v.im);
            }
        }
    }

    const Factors factors(matrix, kind);
    Measured found = {inf, one, 0.0, double(factors.broken)};
    Number x_of[N][1], corrected[N][1];
    double size = 0;
    {
        Number y[N][SIDES];
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            y[i][0] = matrix.at(factors.place[i] + N);
            #pragma unroll
            for (int p = 0; p < PROBES; ++p) y[i][1 + p] = {probes[p][factors.place[i]], 0.0};
        }
        factors.solve(y);
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            x_of[j][0] = y[j][0], size = larger(size, modulus(rounded(y[j][0])));
        }
        #pragma unroll
        for (int p = 0; p < PROBES; ++p) {
            double sum = 0;
            #pragma unroll
            for (int j = 0; j < N; ++j) sum += modulus(y[j][1 + p]);
            found.grown = larger(found.grown, sum);
        }
    }

    // The residual, and one correction if the answer misses the bound.  The rows are in the order of the factors.
    Number rest[N][1];
    const auto residual = [&](const Number (&v)[N][1], double of_v) {
        double largest = 0;
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            Residual<> sum;
            sum.begin(matrix.at(factors.place[i] + N), inf * of_v);
            #pragma unroll
            for (int j = 0; j < N; ++j) sum.subtract(matrix.at(factors.place[i] + j), rounded(v[j][0]));
            rest[i][0] = sum.over_group();
            largest = larger(largest, modulus(rest[i][0]));
        }
        return largest;
    };
    double of_rest = residual(x_of, size);
    const bool misses = !(of_rest <= bound * inf * size);
    if (__any_sync(ALL_LANES, misses)) {
        factors.solve(rest);
        double new_size = 0;
        #pragma unroll
        for (int j = 0; j < N; ++j) {
            corrected[j][0] = plus(x_of[j][0], rest[j][0]);
            new_size = larger(new_size, modulus(rounded(corrected[j][0])));
        }
        const double largest = residual(corrected, new_size);
        // A system that meets the bound keeps its first answer, so that the bits of an answer do not depend on the
        // warp's other systems.
        if (misses && largest * size < of_rest * new_size) {
            of_rest = largest, size = new_size;
            #pragma unroll
            for (int j = 0; j < N; ++j) x_of[j][0] = corrected[j][0];
        }
    }

    // The norm of A^-1, for the few matrices that may be singular to working precision.
    if (found.is_near(near)) {
        double norm = 0;
        #pragma unroll 1
        for (int c = 0; c < n; ++c) {
            Number column[N][1];
            #pragma unroll
            for (int i = 0; i < N; ++i) column[i][0] = {double(factors.place[i] == c * STRIDE), 0.0};
            factors.solve(column);
            double sum = 0;
            #pragma unroll
            for (int j = 0; j < N; ++j) sum += modulus(column[j][0]);
            norm = larger(norm, sum);
        }
        found.grown = norm;
    }

    __syncwarp();
    // The answers go to memory through the column of b in shared memory, so that neighbouring lanes write neighbours.
    #pragma unroll
    for (int j = 0; j < N; ++j) {
        if (j < n) store(reinterpret_cast<T_A*>(matrix.a + j * STRIDE + N), 0, rounded(x_of[j][0]));
    }
    __syncwarp();
    unstage(x, matrices, first, count, n);
    if (slice >= count) return;
    const Limits limits = {kind, bound, least, safe, agrees};
    found.report(seen, limits, &of_rest, &size, 1, slice, count, board, doubtful, doubt, 0, 1);
}
