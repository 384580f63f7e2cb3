// Sums of products in FP64, or, nearly exact, in two doubles each.
#pragma once

#include "common/reduce.cuh"

// The sum is hi + lo.  If EXACT, lo collects the rounding errors of sums and products, so that the result has about the
// error of one rounding.
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
        const double p = __dmul_rn(u, v);  // the intrinsic keeps the compiler from fusing it with the sum
        add(p);
        lo += fma(u, v, -p);
    }

    // Adds the sums of groups of OF neighbouring lanes.  Two lanes may end with sums that differ in the last bit.
    template <int OF>
    __device__ __forceinline__ void join() {
        butterfly<OF>([&](int d) {
            const double rest = EXACT ? of_partner(lo, d) : 0.0;
            add(of_partner(hi, d));
            lo += rest;
        });
    }

    // v minus the sum.
    __device__ __forceinline__ double from(double v) {
        hi = -hi, lo = -lo;
        add(v);
        return hi + lo;
    }
};

// A sum of products in FP64.  If EXACT, it is nearly exact, and partial sums must stay below a known bound.  Then the
// sum starts at a large constant, so that all its values are multiples of one number, the spacing of FP64 numbers near
// this constant.  Therefore the difference of two successive values is exact, and gives the rounding error of each
// product; `rest` adds up these errors.
template <bool EXACT>
struct BoundedSum {
    double constant = 0, sum = 0, rest = 0;

    // `bound` is at least 0 and less than 2^1022.  With any other bound, the result must not be used.
    __device__ __forceinline__ void begin(double bound) {
        if (!EXACT) return;
        // The constant is 3 p for a power of two p that is larger than the bound.  So all sums lie between 2 p and 4 p.
        const unsigned above = (unsigned(__double2hiint(fmax(bound, 0x1p-960))) & 0x7ff00000u) + 0x00200000u;
        constant = sum = 1.5 * __hiloint2double(int(above), 0);
    }

    __device__ __forceinline__ void add_product(double u, double v) {
        if (!EXACT) {
            sum = fma(u, v, sum);
            return;
        }
        const double next = fma(u, v, sum), step = next - sum;
        rest += fma(u, v, -step), sum = next;
    }

    // Adds up the sums of some lanes that have the same bound, and returns the result; add(v) returns the sum of v over
    // these lanes.
    template <typename Add>
    __device__ __forceinline__ double total(Add add) const {
        return EXACT ? add(sum - constant) + add(rest) : add(sum);
    }
};
