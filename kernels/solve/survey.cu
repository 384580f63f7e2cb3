// Norms of the rows and columns of A, and the FP32 copy of A, which may be scaled by powers of two.
//
//   A is m x n of T_IN, row-major, leading dimension lda; COMPLEX 1: (re, im) pairs, n and lda count pairs.
//
//   tcs_row_stats    row_max[i] = max_j |a_ij|,      row_sum[i] = sum_j |a_ij|
//   tcs_col_stats    col_max[c, j] = max_i r_i |a_ij|, col_sum[c, j] = sum_i r_i |a_ij|  over the rows i of
//                    chunk c; the caller reduces over c; r null: r_i = 1
//   tcs_survey       row_sum[c, i] over the columns of chunk c, SURVEY_COLUMNS each, col_sum as tcs_col_stats, and
//                    W = rn(A), all from one pass over a real A
//   tcs_add_chunks   adds the sums of rows and columns over all chunks, and puts them in the place of the first chunk
//   tcs_extremes     out = (max, min of the sums of rows, max, min of those of columns, min 2 |a_ii| - sum of row i,
//                    min 3 |a_jj| - sum of column j) of an n x n A whose diagonal entries are `step` apart; sums are
//                    given by chunks, as from tcs_col_stats
//   tcs_cast_scaled  W[i, j] = rn(r_i a_ij s_j), FP32 (or pairs), leading dimension ldw; r or s null: ones
//
// All vectors and statistics are FP64; r and s hold powers of two.  Sums are rounded in FP64, in an order that depends
// on the shape, the division into chunks and the macros alone; |a| of a pair is hypot.  A NaN makes maximum and sum
// NaN, except that |(Inf, NaN)| is Inf, as for hypot in C.
//
// Grid and block:  tcs_row_stats   ceil(m / 8) of (32, 8)
//                  tcs_col_stats   (ceil(n / 128), chunks) of 128, chunks = ceil(m / rows_per_chunk)
//                  tcs_survey      (ceil(n / 512), ceil(m / rows_per_chunk)) of 256
//                  tcs_add_chunks  (ceil(n / 256), 2) of 256
//                  tcs_extremes    1 of 1024
//                  tcs_cast_scaled (ceil(N / 128), ceil(m / 64)) of (32, 8), N = n, if COMPLEX 2 n
// Defines T_IN (float or double), COMPLEX (0 or 1).

#include "common/common.cuh"
#include "common/reduce.cuh"

constexpr int PARTS = COMPLEX ? 2 : 1;

__device__ __forceinline__ double magnitude(const T_IN* a) {
    return COMPLEX ? hypot(double(a[0]), double(a[PARTS - 1])) : fabs(double(a[0]));
}

// The maximum, or NaN if there was one: fmax drops a NaN, but a sum of magnitudes keeps it.
__device__ __forceinline__ double max_or_nan(double largest, double sum) {
    return isnan(sum) ? sum : largest;
}

extern "C" __global__ void __launch_bounds__(256)
tcs_row_stats(
    double* __restrict__ row_max, double* __restrict__ row_sum,
    const T_IN* __restrict__ a, Index lda, Index m, Index n
) {
    const Index row = Index(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= m) return;
    constexpr int N = 16 / sizeof(T_IN);
    const T_IN* begin = a + row * lda * PARTS;
    const Index length = n * PARTS;
    const bool aligned = aligned16(a, lda * PARTS);
    // Separate sums for the words in flight: a chain of additions would stall the loads.
    constexpr int FLIGHT = 4;
    double largest[FLIGHT] = {}, sum[FLIGHT] = {};
    for (Index q = threadIdx.x * N; q < length; q += FLIGHT * WARP * N) {
        Run<T_IN, N> x[FLIGHT];
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            const Index at = q + f * WARP * N;
            x[f].load(begin + at, aligned && at + N <= length, length - at);
        }
        #pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            #pragma unroll
            for (int e = 0; e < N; e += PARTS) {
                const double size = magnitude(&x[f].at[e]);
                largest[f] = fmax(largest[f], size);
                sum[f] += size;
            }
        }
    }
    double top = fmax(fmax(largest[0], largest[1]), fmax(largest[2], largest[3]));
    double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    butterfly([&](int d) {
        top = fmax(top, of_partner(top, d));
        total += of_partner(total, d);
    });
    if (threadIdx.x == 0) row_max[row] = max_or_nan(top, total), row_sum[row] = total;
}

extern "C" __global__ void __launch_bounds__(128)
tcs_col_stats(
    double* __restrict__ col_max, double* __restrict__ col_sum,
    const T_IN* __restrict__ a, Index lda, Index m, Index n, const double* __restrict__ r,
    Index rows_per_chunk
) {
    const Index j = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (j >= n) return;
    const Index start = blockIdx.y * rows_per_chunk, stop = min(m, start + rows_per_chunk);
    double largest = 0, sum = 0;
    #pragma unroll 8
    for (Index i = start; i < stop; ++i) {
        const double size = magnitude(a + (i * lda + j) * PARTS) * (r ? r[i] : 1.0);
        largest = fmax(largest, size);
        sum += size;
    }
    col_max[blockIdx.y * n + j] = max_or_nan(largest, sum);
    col_sum[blockIdx.y * n + j] = sum;
}

constexpr int SURVEY_THREADS = 256, SURVEY_WARPS = SURVEY_THREADS / WARP, SURVEY_COLUMNS = 2 * SURVEY_THREADS;
constexpr int GROUP = 16;  // rows added up across a warp together
template <typename T> struct PairOf;
template <> struct PairOf<float> { using Type = float2; };
template <> struct PairOf<double> { using Type = double2; };
using Pair = PairOf<T_IN>::Type;

// Rows of W are padded to whole 16-byte words, so that a pair may always be stored.  This is in assembly, because the
// compiler splits a plain store of a float2.
__device__ __forceinline__ void store_pair(float* to, float x, float y) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" :: "l"(to), "f"(x), "f"(y) : "memory");
}

// A step of sum_across.  Two lanes, 2 HALF apart, have partial sums of the same 2 HALF numbers, and divide these: the
// lower lane keeps the first half, the upper one the second, each with the partner's sums added.
template <int HALF>
__device__ __forceinline__ void fold(double (&half)[HALF], const double (&x)[2 * HALF]) {
    const bool upper = threadIdx.x & 2 * HALF;
    #pragma unroll
    for (int i = 0; i < HALF; ++i) {
        const double mine = upper ? x[i + HALF] : x[i], other = upper ? x[i] : x[i + HALF];
        half[i] = mine + of_partner(other, 2 * HALF);
    }
}

// Adds up each of GROUP numbers over the lanes of a warp; lane l gets the total of number l / 2.
__device__ __forceinline__ double sum_across(const double (&x)[GROUP]) {
    static_assert(GROUP == WARP / 2, "two lanes for each");
    double eight[8], four[4], two[2], one[1];
    fold(eight, x), fold(four, eight), fold(two, four), fold(one, two);
    return one[0] + of_partner(one[0], 1);
}

extern "C" __global__ void __launch_bounds__(SURVEY_THREADS)
tcs_survey(
    double* __restrict__ row_sum, double* __restrict__ col_sum, float* __restrict__ w, Index ldw,
    const T_IN* __restrict__ a, Index lda, Index m, Index n, Index rows_per_chunk
) {
    __shared__ double of_warp[2][GROUP][SURVEY_WARPS];
    const Index q = Index(blockIdx.x) * SURVEY_COLUMNS + 2 * threadIdx.x;
    const Index start = blockIdx.y * rows_per_chunk, stop = min(m, start + rows_per_chunk);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const bool whole = q + 2 <= n, pairs = whole && lda % 2 == 0 && reinterpret_cast<Index>(a) % sizeof(Pair) == 0;
    double first = 0, second = 0;
    int parity = 0;
    for (Index i = start; i < stop; i += GROUP, parity ^= 1) {
        Pair x[GROUP];
        const T_IN* from = a + i * lda + q;
        if (pairs && i + GROUP <= stop) {  // without conditions, so that all loads are in flight at once
            #pragma unroll
            for (int k = 0; k < GROUP; ++k) x[k] = __ldcg(reinterpret_cast<const Pair*>(from + k * lda));
        } else {
            #pragma unroll
            for (int k = 0; k < GROUP; ++k) {
                const bool inside = i + k < stop && q < n;
                x[k].x = inside ? from[k * lda] : T_IN(0);
                x[k].y = inside && whole ? from[k * lda + 1] : T_IN(0);
            }
        }
        double sum[GROUP];
        #pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const double left = fabs(double(x[k].x)), right = fabs(double(x[k].y));
            first += left, second += right, sum[k] = left + right;
            float* to = w + (i + k) * ldw + q;
            if (q < n && i + k < stop) store_pair(to, float(x[k].x), float(x[k].y));
        }
        const double across = sum_across(sum);
        if (lane % 2 == 0) of_warp[parity][lane / 2][warp] = across;
        __syncthreads();
        if (threadIdx.x >= GROUP || i + threadIdx.x >= stop) continue;
        double total = 0;
        #pragma unroll
        for (int k = 0; k < SURVEY_WARPS; ++k) total += of_warp[parity][threadIdx.x][k];
        row_sum[blockIdx.x * m + i + threadIdx.x] = total;
    }
    if (q < n) col_sum[blockIdx.y * n + q] = first;
    if (whole) col_sum[blockIdx.y * n + q + 1] = second;
}

// 2^e a, rounded once, to FP32, for every e that can occur.  The product r s may overflow or underflow in FP64 although
// r a s does not, so the exponents of r and s are added.  a is multiplied by two powers, 2^half and 2^(e - half).  Both
// exponents have the same sign, so the first product overflows or underflows only if the result is infinite or 0 in
// FP32.  e may be limited, because beyond the limits the result is infinite or 0 for every a.
__device__ __forceinline__ float scaled(double a, int e) {
    e = max(-2040, min(2040, e));
    const int half = e / 2;
    return float(a * __hiloint2double((half + 1023) << 20, 0) * __hiloint2double((e - half + 1023) << 20, 0));
}

// The larger (smaller) of two numbers; NaN if one of them is NaN.
__device__ __forceinline__ double larger(double x, double y) { return isnan(x) || x > y ? x : y; }
__device__ __forceinline__ double smaller(double x, double y) { return isnan(x) || x < y ? x : y; }

// Entry i of the sum of `chunks` vectors of n entries, which follow each other in memory.
__device__ __forceinline__ double over_chunks(const double* sums, Index chunks, Index n, Index i) {
    double total = sums[i];
    #pragma unroll 8
    for (Index c = 1; c < chunks; ++c) total += sums[c * n + i];
    return total;
}

extern "C" __global__ void __launch_bounds__(256)
tcs_add_chunks(double* row_sum, Index row_chunks, double* col_sum, Index col_chunks, Index n) {
    double* sums = blockIdx.y ? col_sum : row_sum;
    const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) sums[i] = over_chunks(sums, blockIdx.y ? col_chunks : row_chunks, n, i);
}

constexpr int EXTREMES = 6, EXTREMES_THREADS = 1024;

// Joins two values of number `which` of the six extremes; the first and the third are maxima, the others minima.
__device__ __forceinline__ double extreme(int which, double x, double y) {
    return which == 0 || which == 2 ? larger(x, y) : smaller(x, y);
}

extern "C" __global__ void __launch_bounds__(EXTREMES_THREADS)
tcs_extremes(
    double* __restrict__ out, const double* __restrict__ row_sum, Index row_chunks,
    const double* __restrict__ col_sum, Index col_chunks, const T_IN* __restrict__ a, Index step, Index n
) {
    __shared__ double found[EXTREMES][EXTREMES_THREADS / WARP];
    const double none = __longlong_as_double(0x7ff0000000000000);
    double mine[EXTREMES] = {0.0, none, 0.0, none, none, none};
    for (Index i = threadIdx.x; i < n; i += EXTREMES_THREADS) {
        const double row = over_chunks(row_sum, row_chunks, n, i), col = over_chunks(col_sum, col_chunks, n, i);
        const double size = magnitude(a + i * step * PARTS);
        const double x[EXTREMES] = {row, row, col, col, 2 * size - row, 3 * size - col};
        #pragma unroll
        for (int e = 0; e < EXTREMES; ++e) mine[e] = extreme(e, x[e], mine[e]);
    }
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    #pragma unroll
    for (int e = 0; e < EXTREMES; ++e) {
        const double of_warp = over_lanes(mine[e], [&](double x, double y) { return extreme(e, x, y); });
        if (lane == 0) found[e][warp] = of_warp;
    }
    __syncthreads();
    if (warp >= EXTREMES) return;
    const double all = over_lanes(found[warp][lane], [&](double x, double y) { return extreme(warp, x, y); });
    if (lane == 0) out[warp] = all;
}

extern "C" __global__ void __launch_bounds__(256)
tcs_cast_scaled(
    float* __restrict__ w, Index ldw, const T_IN* __restrict__ a, Index lda, Index m, Index n,
    const double* __restrict__ r, const double* __restrict__ s
) {
    constexpr int N = 4, ROWS = 64;
    const Index length = n * PARTS, q = (Index(blockIdx.x) * WARP + threadIdx.x) * N;
    if (q >= length) return;
    const bool whole = q + N <= length;
    const bool vector_in = whole && aligned16(a, lda * PARTS), vector_out = whole && aligned16(w, ldw * PARTS);
    int exponent[N];
    #pragma unroll
    for (int e = 0; e < N; ++e) exponent[e] = s && q + e < length ? ilogb(s[(q + e) / PARTS]) : 0;
    const Index start = Index(blockIdx.y) * ROWS, stop = min(m, start + ROWS);
    #pragma unroll 4
    for (Index i = start + threadIdx.y; i < stop; i += 8) {
        Run<T_IN, N> x;
        x.load(a + i * lda * PARTS + q, vector_in, length - q);
        const int row_exponent = r ? ilogb(r[i]) : 0;
        Run<float, N> y;
        #pragma unroll
        for (int e = 0; e < N; ++e) y.at[e] = scaled(double(x.at[e]), row_exponent + exponent[e]);
        y.store(w + i * ldw * PARTS + q, vector_out, length - q);
    }
}
