// The power of two that brings a block of U into the range of FP16.
#pragma once

#include "common/common.cuh"

// The power 2^e that brings x >= 0, given by its bits, into (2^13, 2^14]; 1 if x is zero or not finite.  Then hi
// (hi_lo.cuh) stays below 65504, the largest FP16 number.  For entries of about the size x, a nonzero |lo| is far above
// 2^-24, the smallest FP16 number.  For very small x, e is limited to 112, so that 2^-e / 2^14 is a normal number.
__device__ __forceinline__ float scale_to_top(unsigned bits) {
    constexpr int TOP_EXPONENT = 14, MOST = 126 - TOP_EXPONENT;
    constexpr unsigned NO_NUMBER = 0x7f800000u;
    if (bits == 0 || bits >= NO_NUMBER) return 1.0f;
    int exponent;  // x = f 2^exponent with f in [1/2, 1)
    const float f = frexpf(__uint_as_float(bits), &exponent);
    return ldexpf(1.0f, min(TOP_EXPONENT - exponent + (f == 0.5f), MOST));
}

// The alpha for which C + alpha P Q is C - L U, where P = L scale_l and Q = U scale.
__device__ __forceinline__ float alpha_of(float scale, double scale_l) {
    return float(-1.0 / (double(scale) * scale_l));
}
