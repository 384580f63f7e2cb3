// Real and complex numbers in FP32, and products of small matrices of them on the tensor cores.
//
// The file that includes this one defines COMPLEX (0 or 1).
#pragma once

#include "common/number.cuh"
#include "gemm/gemm.cuh"

struct Small { float re, im; };

__device__ __forceinline__ float inverse_of(float v) {
    float y;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
}
__device__ __forceinline__ Small inverse_of(Small v) {
    if (!COMPLEX) return {inverse_of(v.re), 0.0f};
    const float d = inverse_of(fmaf(v.re, v.re, v.im * v.im));
    return {v.re * d, -v.im * d};
}
// Accurate except for the last few bits.
__device__ __forceinline__ float modulus(Small v) {
    if (!COMPLEX) return fabsf(v.re);
    float y;
    asm volatile("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaf(v.re, v.re, v.im * v.im)));
    return y;
}
// Reads or writes eight numbers; imaginary parts are `apart` places behind real ones.
__device__ __forceinline__ void read_eight(Small (&v)[8], const float* from, int apart) {
    #pragma unroll
    for (int c = 0; c < 8; c += 4) {
        const float4 re = *reinterpret_cast<const float4*>(from + c);
        v[c].re = re.x, v[c + 1].re = re.y, v[c + 2].re = re.z, v[c + 3].re = re.w;
        if (!COMPLEX) continue;
        const float4 im = *reinterpret_cast<const float4*>(from + apart + c);
        v[c].im = im.x, v[c + 1].im = im.y, v[c + 2].im = im.z, v[c + 3].im = im.w;
    }
}
__device__ __forceinline__ void write_eight(const Small (&v)[8], float* to, int apart) {
    #pragma unroll
    for (int c = 0; c < 8; c += 4) {
        *reinterpret_cast<float4*>(to + c) = make_float4(v[c].re, v[c + 1].re, v[c + 2].re, v[c + 3].re);
        if (!COMPLEX) continue;
        *reinterpret_cast<float4*>(to + apart + c) = make_float4(v[c].im, v[c + 1].im, v[c + 2].im, v[c + 3].im);
    }
}

// Two TF32 numbers whose sum is v, except for the last 13 bits of `lo`, which the tensor cores ignore.
struct Halves {
    unsigned hi, lo;
    __device__ __forceinline__ Halves(float v = 0) : hi(__float_as_uint(v) & 0xffffe000u) {
        lo = __float_as_uint(v - __uint_as_float(hi));
    }
    __device__ __forceinline__ void negate() { hi ^= 0x80000000u, lo ^= 0x80000000u; }
};

// Adds a term of the product a b to d, for a 16 x 8 and b 8 x 8 (gemm.cuh): 0 lo hi, 1 hi lo, 2 hi hi.  The smallest
// term, lo lo, is left out.
__device__ __forceinline__ void add_term(int term, float (&d)[4], const Halves (&a)[4], const Halves (&b)[2]) {
    unsigned u[4], v[2];
    #pragma unroll
    for (int e = 0; e < 4; ++e) u[e] = term == 0 ? a[e].lo : a[e].hi;
    #pragma unroll
    for (int e = 0; e < 2; ++e) v[e] = term == 1 ? b[e].lo : b[e].hi;
#if __CUDA_ARCH__ >= 800
    mma(tf32{}, d, u, v);
#endif
}

// A step of Gauss-Jordan elimination for one row: l times the pivot row is subtracted, and `last` replaces the number v
// in the column of the pivot.  `inverse` is the reciprocal of the pivot.
struct Elimination {
    Small l, last;
    __device__ __forceinline__ Elimination(Small v, Small inverse, bool has_pivot) {
        const Small t = times(v, inverse);
        // The pivot row u becomes u times `inverse`, computed as u - (1 - inverse) u.
        l = has_pivot ? Small{1.0f - inverse.re, -inverse.im} : t;
        last = has_pivot ? inverse : Small{-t.re, -t.im};
    }
};
