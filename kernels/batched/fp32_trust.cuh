// What the kernels that invert a matrix in FP32 share: limits, and scales.
#pragma once

#include "batched/small_solve.cuh"

constexpr bool SHORT = sizeof(T_A) == sizeof(float);
constexpr int MOST_SIDES = 2;  // the largest number of right-hand sides
// The number of first steps of the refinement whose residuals are plain sums in FP64.  These residuals are not compared
// with the bound; those of later steps are nearly exact.  If A is in FP32, all residuals are plain sums, and all are
// compared with the bound, because their errors are small compared with it.
constexpr int PLAIN_ROUNDS = SHORT ? 0 : 2;
// A larger pivot shows that entries have grown: before the elimination, the sum of the moduli of a row is below 2.
constexpr float MOST_PIVOT = 0x1p3f;
constexpr double LARGEST = 0x1.fffffffffffffp+1023;
// The least 1 / (||A||_1 ||A^-1||_1) for which the number of the largest column is stored in `left`, if A is in FP32.
// If A is in FP64, the number is never stored.  It would help only where rcond is near the epsilon of FP64, and there
// an inverse in FP32 is too inaccurate to show which column is the largest.
constexpr double TELLS = 0x1p-30;

// Where 1 / (||A||_1 ||A^-1||_1) is below SURE, an inverse in FP32 may look regular although A is singular, above all
// if entries grow in the elimination.  So then it has to pass a test.  Let B be A with scaled rows, and Y the inverse
// of B in FP32.  For CHECKS random vectors g, the 2-norm of g - B Y g must be at most REST.  If A is singular, and u is
// a unit vector with u^T B = 0, this norm is at least |u^T g|.  The probability that |u^T g| is at most REST for all
// CHECKS vectors is about 2e-6.
constexpr double SURE = 0x1p-16, REST = 0.25;
constexpr int CHECKS = 8;

// The power of two that brings v > 0 to between 1 and 2, or the nearest one that is a normal number; 1 if v is zero.
__device__ __forceinline__ double power_to_one(double v) {
    const unsigned exponent = unsigned(__double2hiint(v)) & 0x7ff00000u;
    return v == 0 ? 1.0 : __hiloint2double(int(min(0x7fe00000u - min(exponent, 0x7fd00000u), 0x7fd00000u)), 0);
}
