// Fast reciprocals in FP64.
#pragma once

// 1 / v to about 20 bits.  If v or 1 / v is subnormal, the result is zero or not finite.
__device__ __forceinline__ double rough_reciprocal(double v) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
    return y;
}

// 1 / v to about the last bit, under the same condition.
__device__ __forceinline__ double fast_reciprocal(double v) {
    double y = rough_reciprocal(v);
    y = fma(y, fma(-v, y, 1.0), y);
    return fma(y, fma(-v, y, 1.0), y);
}
