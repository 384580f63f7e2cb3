// What solve_rows.cu and solve_block.cu share: arguments, kinds of matrices, arithmetic.  Each solves and verifies
// small systems in one launch.
//
//   x      T_A (or pairs) [count][n]: the answers.
//   a      count matrices n x n, entry (s, i, j) at s a_step + i a_row + j a_col; b likewise, (s, i) at s b_step + i
//          b_row.  a, b and x are T_A, or pairs of T_A if COMPLEX; steps count entries.
//   below, above, mirror  how a is read, see reading.cuh.
//   kind   of the matrix that is read: 0 any, by LU with partial pivoting; 1 positive definite, by LU without pivoting,
//          where all pivots must be positive; 2 a triangle or a diagonal, by the same elimination.
//   bound  on max |b - A x| / (||A||_inf max |x|).  If the ratio exceeds it, x is corrected once by its residual; the
//          correction is kept if it makes the ratio smaller.
//   board  double[SEEN + 6][count]: the numbers of `tell` (reading.cuh), ||A||_inf, ||A||_1, the largest ||A^-1 g||_1
//          of two random g (probe.cuh), the step at which the factorization broke down or 0, max |b - A x|, max |x|.
//          A NaN in the data makes them NaN, except the first two.
//
// Defines T_A (float or double), COMPLEX (0 or 1).
// Rounding: FP64 factors, with multiplications by reciprocals of the pivots; x is rounded to T_A; the residual of that
// x is summed in two doubles.
#pragma once

#include "batched/reading.cuh"
#include "common/probe.cuh"
#include "common/sum.cuh"

constexpr int PROBES = 2, SIDES = 1 + PROBES;  // right-hand sides: b, then random vectors
constexpr int GENERAL = 0, DEFINITE = 1, TRIANGLE = 2;

__device__ __forceinline__ Number plus(Number u, Number v) { return {u.re + v.re, COMPLEX ? u.im + v.im : 0.0}; }

__device__ __forceinline__ Number times(Number u, Number v) {
    if (!COMPLEX) return {u.re * v.re, 0.0};
    return {fma(u.re, v.re, -u.im * v.im), fma(u.re, v.im, u.im * v.re)};
}

// w - u v.
__device__ __forceinline__ Number less(Number w, Number u, Number v) {
    if (!COMPLEX) return {fma(-u.re, v.re, w.re), 0.0};
    return {fma(u.im, v.im, fma(-u.re, v.re, w.re)), fma(-u.im, v.re, fma(-u.re, v.im, w.im))};
}

__device__ __forceinline__ Number reciprocal(Number v) {
    if (!COMPLEX) return {1.0 / v.re, 0.0};
    // Divide by the larger part first (Smith), so that no square overflows or underflows.
    if (fabs(v.re) >= fabs(v.im)) {
        const double q = v.im / v.re, d = 1.0 / fma(v.im, q, v.re);
        return {d, -q * d};
    }
    const double q = v.re / v.im, d = 1.0 / fma(v.re, q, v.im);
    return {q * d, -d};
}

// A key for the search of a pivot.  Larger numbers have larger keys, to about 13 bits; `low` < KEY_ROWS is the row.
constexpr unsigned KEY_ROWS = 128;

__device__ __forceinline__ unsigned key_of(Number v, unsigned low) {
    const double size = COMPLEX ? fabs(v.re) + fabs(v.im) : fabs(v.re);
    const unsigned high = size == size ? unsigned(__double2hiint(size)) : 0x7ff00000u;
    return high / KEY_ROWS * KEY_ROWS + low;
}

__device__ __forceinline__ bool is_broken(Number pivot, Index kind) {
    return kind == DEFINITE ? !(pivot.re > 0) : pivot.re == 0 && pivot.im == 0;
}

// v rounded to the type of x.
__device__ __forceinline__ Number rounded(Number v) { return {double(T_A(v.re)), double(T_A(v.im))}; }

__device__ __forceinline__ void store(T_A* x, Index i, Number v) {
    x[PARTS * i] = T_A(v.re);
    if (COMPLEX) x[PARTS * i + PARTS - 1] = T_A(v.im);
}

// A sum of products; the real and the imaginary part have two doubles each.
struct NumberSum {
    Sum<true> re, im;

    __device__ __forceinline__ void add_product(Number u, Number v) {
        re.add_product(u.re, v.re);
        if (COMPLEX) {
            re.add_product(-u.im, v.im);
            im.add_product(u.re, v.im), im.add_product(u.im, v.re);
        }
    }

    __device__ __forceinline__ Number from(Number v) { return {re.from(v.re), COMPLEX ? im.from(v.im) : 0.0}; }
};
