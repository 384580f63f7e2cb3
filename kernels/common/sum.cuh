// Sums of products, as they are or in two doubles each.
#pragma once

#include "common/common.cuh"

// hi + lo; if EXACT what is lost of a sum or a product goes to lo, so that the whole is rounded about once.
template <bool EXACT>
struct Sum {
    double hi = 0, lo = 0;

    __device__ __forceinline__ void add(double v) {
        const double s = hi + v;
        if (EXACT) {  // Knuth's TwoSum
            const double t = s - hi;
            lo += (hi - (s - t)) + (v - t);
        }
        hi = s;
    }

    __device__ __forceinline__ void add_product(double u, double v) {
        if (!EXACT) {
            hi = fma(u, v, hi);
            return;
        }
        const double p = __dmul_rn(u, v);  // else the compiler may fuse it with the sum
        add(p);
        lo += fma(u, v, -p);
    }

    // Adds what the other OF threads have.
    template <int OF>
    __device__ __forceinline__ void join() {
        #pragma unroll
        for (int d = OF / 2; d; d /= 2) {
            const double rest = EXACT ? __shfl_xor_sync(ALL_LANES, lo, d) : 0.0;
            add(__shfl_xor_sync(ALL_LANES, hi, d));
            lo += rest;
        }
    }

    // v less the sum.
    __device__ __forceinline__ double from(double v) {
        hi = -hi, lo = -lo;
        add(v);
        return hi + lo;
    }
};
