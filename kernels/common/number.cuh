// Entries of real and of complex arrays as pairs of doubles, so that one kernel serves both.
// The file that includes this one defines COMPLEX (0 or 1).
#pragma once

#include "common/common.cuh"

constexpr int PARTS = COMPLEX ? 2 : 1;

struct Number { double re, im; };

__device__ __forceinline__ float multiply_add(float u, float v, float w) { return fmaf(u, v, w); }
__device__ __forceinline__ double multiply_add(double u, double v, double w) { return fma(u, v, w); }

// The next three functions take a Number, or a structure with the same members in FP32 (fp32_number.cuh).

template <typename N>
__device__ __forceinline__ N times(N u, N v) {
    if (!COMPLEX) return {u.re * v.re, 0};
    return {multiply_add(u.re, v.re, -u.im * v.im), multiply_add(u.re, v.im, u.im * v.re)};
}

// w - u v.
template <typename N>
__device__ __forceinline__ N less(N w, N u, N v) {
    if (!COMPLEX) return {multiply_add(-u.re, v.re, w.re), 0};
    return {
        multiply_add(u.im, v.im, multiply_add(-u.re, v.re, w.re)),
        multiply_add(-u.im, v.re, multiply_add(-u.re, v.im, w.im))
    };
}

// The value that v has in lane `lane` of the warp.
template <typename N>
__device__ __forceinline__ N of_lane(N v, int lane) {
    return {__shfl_sync(ALL_LANES, v.re, lane), COMPLEX ? __shfl_sync(ALL_LANES, v.im, lane) : 0};
}

// Entry i of v.
template <typename T>
__device__ __forceinline__ Number number(const T* v, Index i) {
    return {double(v[PARTS * i]), COMPLEX ? double(v[PARTS * i + PARTS - 1]) : 0.0};
}

// Stores a number, rounded to T, as entry i of v.
template <typename T>
__device__ __forceinline__ void store(T* v, Index i, Number entry) {
    v[PARTS * i] = T(entry.re);
    if (COMPLEX) v[PARTS * i + PARTS - 1] = T(entry.im);
}

// sqrt(v) to about the last bit, for v > 0 between 2^-1000 and 2^1000.
__device__ __forceinline__ double root_of(double v) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
    // Each step of Newton's iteration for the root g and half the reciprocal root h doubles the number of right bits.
    double g = v * y, h = 0.5 * y;
    #pragma unroll
    for (int step = 0; step < 2; ++step) {
        const double r = fma(-g, h, 0.5);
        g = fma(g, r, g), h = fma(h, r, h);
    }
    return fma(fma(-g, g, v), h, g);
}

// Not inlined, because many copies of this rare case would fill the instruction cache.
__device__ __noinline__ double hypot_apart(double u, double v) { return hypot(u, v); }

__device__ __forceinline__ double modulus(Number v) {
    if (!COMPLEX) return fabs(v.re);
    const double square = fma(v.re, v.re, v.im * v.im);
    return square > 0x1p-900 && square < 0x1p1000 ? root_of(square) : hypot_apart(v.re, v.im);
}

// The larger of two numbers; NaN if one of them is NaN.
__device__ __forceinline__ double larger(double u, double v) { return v > u || v != v ? v : u; }

__device__ __forceinline__ double sum_of(double u, double v) { return u + v; }

// *place becomes the larger of *place and v, which are not negative; NaN counts as the largest.
__device__ __forceinline__ void raise(double* place, double v) {
    using Bits = unsigned long long;
    // As integers, the bits of such numbers compare like the numbers, and a positive NaN is above them all.
    const Bits bits = v != v ? 0x7ff8000000000000ull : Bits(__double_as_longlong(v));
    if (bits > *reinterpret_cast<volatile Bits*>(place)) atomicMax(reinterpret_cast<Bits*>(place), bits);
}
