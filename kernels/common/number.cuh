// Entries of real and of complex arrays as pairs of doubles, so that one kernel serves both.
// The file that includes this one defines COMPLEX (0 or 1).
#pragma once

#include "common/common.cuh"

constexpr int PARTS = COMPLEX ? 2 : 1;

struct Number { double re, im; };

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

__device__ __forceinline__ double modulus(Number v) { return COMPLEX ? hypot(v.re, v.im) : fabs(v.re); }

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
