// What solve_thread.cu, solve_team.cu, solve_inverse.cu, solve_jordan.cu, solve_cholesky.cu and solve_block.cu share:
// arguments, kinds of matrices, arithmetic.  Each solves and verifies small systems in one launch.  solve_across.cu and
// solve_definite.cu have only the kinds and the arithmetic in common with them.
//
//   x      T_A (or pairs) [count][n]: the answers.
//   a      count matrices n x n, entry (s, i, j) at s a_step + i a_row + j a_col; b likewise, (s, i) at s b_step + i
//          b_row.  a, b and x are T_A, or pairs of T_A if COMPLEX; steps count entries.
//   below, above, mirror  how a is read, see reading.cuh.
//   kind   of the matrix that is read: 0 any, by elimination with partial pivoting; 1 positive definite, by elimination
//          without pivoting or by Cholesky, where all pivots must be positive; 2 a triangle or a diagonal, by
//          elimination without pivoting.
//   bound  on max |b - A x| / (||A||_inf max |x|).  If the ratio exceeds it, x is corrected once by its residual; the
//          correction is kept if it makes the ratio smaller.  solve_team.cu and solve_inverse.cu correct x more often.
//   board  null, or double[SEEN + 6][count]: the numbers of `tell` (reading.cuh), ||A||_inf, ||A||_1, the size of A^-1,
//          the first step whose pivot is not allowed or 0, max |b - A x|, max |x|.
//          A norm or size that is computed from a NaN is NaN; the step and the numbers of `tell` never are.
//          If all entries are read (BANDED 0), the first three numbers and the fifth are zero.
//          If `doubt` is given, the board is double[TOLD][1 + SEEN + 6] instead, with a line for each of the first TOLD
//          doubtful systems that are found: its index, then its numbers.
//   doubtful  char[count], or null: 0 for each system that is regular, meets its bounds and agrees with its structure.
//   doubt   int[1] in the memory of the host, zero before the launch: the number of doubtful systems.  If it is above
//           TOLD, there may be more, because not all further systems are counted.  If doubt is null, no system is
//           judged, and doubtful is not written.
//   left    unsigned char[count], or null: solve_jordan.cu and solve_block.cu take only systems for which it is not 0.
//           Unless it is UNKNOWN, it is 1 plus the number of the largest column of an approximate inverse.  Then the
//           largest norm of a few columns of A^-1, this one included, is taken for ||A^-1||_1, unless a random vector
//           shows that ||A^-1||_1 is larger.
//   near    The size of A^-1 is the largest ||A^-1 g||_1 of at least PROBES random g (probe.cuh).  If
//           1 / (||A||_1 times this size) is below `near`, the size is ||A^-1||_1 instead, from all columns of A^-1, or
//           from a few if `left` names one.  In solve_team.cu and solve_inverse.cu it always is ||A^-1||_1, from an
//           inverse in FP32 that is tested.
//   least   the lower bound on 1 / (||A||_1 times the size of A^-1).
//   safe    ||A||_inf and max |x| must lie between 1 / safe and safe, and ||A||_1 below safe.  If b = 0, x = 0 is
//           allowed.
//   agrees  the upper bound on differences between mirror images, relative to the largest |a_ij|; -1 if entries that
//           are not read must be zero.
//
// The file that includes this one defines T_A (float or double) and COMPLEX (0 or 1).
// Rounding: elimination or Cholesky in FP64, with multiplications by reciprocals of the pivots; solve_block.cu and
// solve_cholesky.cu also multiply by inverses of triangular 8 x 8 blocks on the diagonal.  solve_team.cu and
// solve_inverse.cu have an inverse in FP32, and refine x in FP64.  x is rounded to T_A; the residual of that x is
// summed in two doubles, or in one if T_A is float.
#pragma once

#include "batched/reading.cuh"
#include "common/async_copy.cuh"
#include "common/probe.cuh"
#include "common/reciprocal.cuh"
#include "common/sum.cuh"

// Right-hand sides: b, then random vectors.  With one vector, `near` has to be larger than with two.
constexpr int PROBES = sizeof(T_A) == sizeof(double) ? 1 : 2, SIDES = 1 + PROBES;
constexpr int GENERAL = 0, DEFINITE = 1, TRIANGLE = 2;
constexpr unsigned char UNKNOWN = 255;
constexpr int TOLD = 256;  // doubtful systems whose numbers are told to the host

struct Given { T_A part[PARTS]; };  // an entry of the caller's arrays
struct Entry { double part[PARTS]; };  // a number

__device__ __forceinline__ Number load(const Entry& v) { return {v.part[0], COMPLEX ? v.part[PARTS - 1] : 0.0}; }

__device__ __forceinline__ void save(Entry& to, Number v) {
    to.part[0] = v.re;
    if (COMPLEX) to.part[PARTS - 1] = v.im;
}

// Starts to copy an entry from global to shared memory.
__device__ __forceinline__ void copy_entry(Given* to, const T_A* from) {
#if __CUDA_ARCH__ >= 800
    copy_cached<sizeof(Given)>(to, from);
#else
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) to->part[p] = from[p];
#endif
}

__device__ __forceinline__ Number plus(Number u, Number v) { return {u.re + v.re, COMPLEX ? u.im + v.im : 0.0}; }

// 1 / v for a complex v of any size.  Not inlined, because this is a rare case.
__device__ __noinline__ Number reciprocal(Number v) {
    // Divide by the larger part first (Smith), so that no square overflows or underflows.
    if (fabs(v.re) >= fabs(v.im)) {
        const double q = v.im / v.re, d = 1.0 / fma(v.im, q, v.re);
        return {d, -q * d};
    }
    const double q = v.re / v.im, d = 1.0 / fma(v.re, q, v.im);
    return {q * d, -d};
}

// 1 / v to about the last bit.  If v is real, and v or 1 / v is subnormal, the result is zero or not finite, and x
// misses the bound.
__device__ __forceinline__ Number inverse_of(Number v) {
    if (!COMPLEX) return {fast_reciprocal(v.re), 0.0};
    const double square = fma(v.re, v.re, v.im * v.im);
    if (!(square > 0x1p-900 && square < 0x1p900)) return reciprocal(v);
    const double d = fast_reciprocal(square);
    return {v.re * d, -v.im * d};
}

// A key for the search of a pivot among at most KEY_ROWS rows, a power of two.  The upper bits are those of |v|, or of
// |re v| + |im v| if COMPLEX; the lower bits, `low` < KEY_ROWS, tell the row.  With 128 rows a key has 13 bits of the
// mantissa, with 1024 rows 10.
template <int KEY_ROWS>
__device__ __forceinline__ unsigned key_of(Number v, unsigned low) {
    constexpr unsigned INFINITE = 0x7ff00000u;  // the upper half of infinity; that of a NaN is not smaller
    const double size = COMPLEX ? fabs(v.re) + fabs(v.im) : v.re;
    return min(unsigned(__double2hiint(size)) & 0x7fffffffu, INFINITE) / KEY_ROWS * KEY_ROWS + low;
}

__device__ __forceinline__ unsigned larger_key(unsigned u, unsigned v) { return max(u, v); }

// Whether a pivot is not allowed.  A NaN counts as allowed: then x is NaN, too.
__device__ __forceinline__ bool is_broken(Number pivot, Index kind) {
    return kind == DEFINITE ? pivot.re <= 0 : pivot.re == 0 && pivot.im == 0;
}

// v rounded to the type of x.
__device__ __forceinline__ Number rounded(Number v) { return {double(T_A(v.re)), double(T_A(v.im))}; }

// The kind of a matrix, and limits that its system must meet.  A system that does not meet them is doubtful.
struct Limits {
    Index kind;
    double bound, least, safe, agrees;
};

// Starts to copy a matrix of n <= LARGEST_N rows to shared memory by a block of SIZE threads: entry (i, j) to i ld + j.
// Neighbouring lanes copy neighbours in memory.
template <int LARGEST_N, int SIZE>
__device__ __forceinline__ void copy_matrix(Given* to, const T_A* from, int n, int ld, Index row, Index col) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool by_rows = col <= row;
    const Index line = by_rows ? row : col, next = by_rows ? col : row;
    const int to_line = by_rows ? ld : 1, to_next = by_rows ? 1 : ld;
    from += PARTS * (warp * line + lane * next), to += warp * to_line + lane * to_next;
    #pragma unroll 2
    for (
        int major = warp; major < n;
        major += SIZE / WARP, from += PARTS * (SIZE / WARP) * line, to += SIZE / WARP * to_line
    ) {
        #pragma unroll
        for (int q = 0; q < LARGEST_N; q += WARP) {
            if (lane + q < n) copy_entry(to + q * to_next, from + PARTS * q * next);
        }
    }
}

// The first system from `slice` on, in steps of the grid, that a block of SIZE threads takes; `count` or more if there
// is none.  If another launch has run before, `left` tells which systems it has not solved; else all are taken.
template <int SIZE>
__device__ __forceinline__ Index next_system(const unsigned char* left, Index slice, Index count) {
    if (!left) return slice;
    for (; slice < count; slice += Index(SIZE) * gridDim.x) {
        const Index own = slice + Index(threadIdx.x) * gridDim.x;
        const int first = own < count && left[own] ? SIZE - int(threadIdx.x) : 0;  // the largest is that of the first
        const int best = int(over_block<SIZE / WARP>(first, larger));
        if (best) return slice + Index(SIZE - best) * gridDim.x;
    }
    return slice;
}

// Columns are taken in groups of `width`.  Returns the first column of the group with the column that `left` names, or
// -1 if it names none.
__device__ __forceinline__ int first_of_largest(const unsigned char* left, Index slice, int width) {
    return left && left[slice] != UNKNOWN ? (left[slice] - 1) / width * width : -1;
}

// Numbers of one system as on the board: ||A||_inf, ||A||_1, the size of A^-1, and the step of a breakdown or 0.
// `rests` and `sizes` below are max |b - A x| and max |x| of its k answers.
struct Measured {
    double inf, one, grown, broken;

    // Whether a regular matrix may be singular to working precision, judged by the random vectors.
    __device__ __forceinline__ bool is_near(double near) const {
        return !broken && one > 0 && isfinite(one) && !(1 / one / grown >= near);
    }

    // Whether a random vector shows that `norm`, the largest norm of some columns of A^-1, is not that of all: the
    // moduli of the entries of the vector are at most sqrt(3).
    __device__ __forceinline__ bool needs_more(double norm, int n) const {
        return grown > 1.7320508075688772 * n * norm;
    }

    __device__ __forceinline__ bool is_ordinary(
        const Seen& seen, const Limits& limits, const double* rests, const double* sizes, int k
    ) const {
        const double safe = limits.safe;
        bool good = !seen.spoilt && (!seen.beyond || seen.apart <= limits.agrees * seen.largest) && broken == 0;
        good = good && !(limits.kind == TRIANGLE && seen.zero) && inf > 1 / safe && inf < safe && one < safe;
        good = good && 1 / one / grown >= limits.least;
        for (int c = 0; c < k; ++c) {
            const double rest = rests[c], size = sizes[c];
            good = good && size < safe;
            good = good && (size > 1 / safe ? rest / inf / size <= limits.bound : size == 0 && rest == 0);
        }
        return good;
    }

    // Writes the results of one system as the arguments of the kernel say.  The system has `all` answers, of which
    // these are the k from number `first` on.
    __device__ __forceinline__ void report(
        const Seen& seen, const Limits& limits, const double* rests, const double* sizes, int k, Index slice,
        Index count, double* board, char* doubtful, int* doubt, int first, int all
    ) const {
        double* numbers = board + slice;
        Index step = count;
        if (doubt) {
            const bool good = is_ordinary(seen, limits, rests, sizes, k);
            if (doubtful) doubtful[slice] = !good;
            // Reading the number first avoids an atomic operation, which is slow, for each of many doubtful systems.
            if (good || *static_cast<volatile int*>(doubt) > TOLD) return;
            const int place = atomicAdd(doubt, 1);
            if (!board || place >= TOLD) return;
            numbers = board + place * (1 + SEEN + 4 + 2 * all), step = 1;
            *numbers++ = double(slice);
        }
        if (!board) return;
        const auto write = [&](int number, double v) { numbers[number * step] = v; };
        if (first == 0) {
            tell(seen, write);
            write(SEEN, inf), write(SEEN + 1, one), write(SEEN + 2, grown), write(SEEN + 3, broken);
        }
        const int at = SEEN + 4 + first;
        for (int c = 0; c < k; ++c) write(at + c, rests[c]), write(at + all + c, sizes[c]);
    }
};

// b minus a sum of products: nearly exact, or a plain sum in FP64.  If A and x are in FP32, a plain sum is accurate
// enough, because each product is exact.
template <bool EXACT = sizeof(T_A) == sizeof(double)>
struct Residual {
    BoundedSum<EXACT> re, im;

    // `most` is a bound on the sum of the moduli of the products.
    __device__ __forceinline__ void begin(Number b, double most) {
        most += fabs(b.re) + fabs(b.im);
        re.begin(most), re.add_product(1.0, b.re);
        if (COMPLEX) im.begin(most), im.add_product(1.0, b.im);
    }
    __device__ __forceinline__ void subtract(Number u, Number v) {
        re.add_product(-u.re, v.re);
        if (!COMPLEX) return;
        re.add_product(u.im, v.im), im.add_product(-u.re, v.im), im.add_product(-u.im, v.re);
    }
    // The result of some lanes, of which one began with b, the others with 0, all with the same bound.  add(v) returns
    // the sum of v over these lanes.
    template <typename Add>
    __device__ __forceinline__ Number result(Add add) const { return {re.total(add), COMPLEX ? im.total(add) : 0.0}; }

    // The same for groups of OF neighbouring lanes.
    template <int OF = 1>
    __device__ __forceinline__ Number over_group() const {
        return result([](double v) { return sum_of_lanes<OF>(v); });
    }
};
