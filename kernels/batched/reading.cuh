// How a matrix is read under a structure, and what is seen on the way.
// The file that includes this one defines T_A (float or double) and COMPLEX (0 or 1).
#pragma once

#include "common/number.cuh"

// An entry (i, j) with -below <= j - i <= above is read.  Of the others one is zero if mirror is 0, the entry on the
// other side of the diagonal if it is 1, and its conjugate if it is 2: then the diagonal is real.
struct Band {
    Index below, above, mirror;

    __device__ __forceinline__ bool reads(Index i, Index j) const { return j - i <= above && i - j <= below; }

    // What stands at (i, j) for a_ij, given a_ji too; a_ji counts only if there is a mirror.
    __device__ __forceinline__ Number stands(Index i, Index j, Number given, Number other) const {
        if (COMPLEX && mirror == 2) {
            if (i == j) return {given.re, 0.0};
            other.im = -other.im;
        }
        if (reads(i, j)) return given;
        return mirror ? other : Number{0.0, 0.0};
    }
};

// A matrix in memory, entry (i, j) at i row + j col, read under a band.
struct Reading {
    const T_A* at;
    Index row, col;
    Band band;

    __device__ __forceinline__ Number given(Index i, Index j) const { return number(at, i * row + j * col); }

    __device__ __forceinline__ Number other(Index i, Index j) const {
        return band.mirror && !band.reads(i, j) ? given(j, i) : Number{0.0, 0.0};
    }

    __device__ __forceinline__ Number operator()(Index i, Index j) const {
        return band.stands(i, j, given(i, j), other(i, j));
    }
};

// What is seen in the entries of a matrix.  NaN is passed over by the first two.
struct Seen {
    double apart = 0;    // the largest difference between an entry that is not read and what stands for it
    double largest = 0;  // |a_ij| of those that are read
    bool beyond = false, spoilt = false, zero = false;  // not zero, but not read; NaN or Inf; zero on the diagonal

    __device__ __forceinline__ void note(const Band& band, Index i, Index j, Number given, Number stands) {
        spoilt = spoilt || !isfinite(given.re) || COMPLEX && !isfinite(given.im);
        zero = zero || i == j && modulus(stands) == 0;
        if (COMPLEX && band.mirror == 2 && i == j) {
            apart = fmax(apart, 2 * fabs(given.im)), largest = fmax(largest, modulus(given));
            beyond = beyond || fabs(given.im) > 0;
        } else if (band.reads(i, j)) {
            largest = fmax(largest, modulus(given));
        } else {
            apart = fmax(apart, modulus({given.re - stands.re, given.im - stands.im}));
            beyond = beyond || modulus(given) > 0;
        }
    }
};

constexpr int SEEN = 5;  // numbers that tell what was seen

// Calls write(number, value) for each of them.
template <typename Write>
__device__ __forceinline__ void tell(const Seen& seen, Write write) {
    write(0, seen.apart), write(1, seen.largest);
    write(2, double(seen.beyond)), write(3, double(seen.spoilt)), write(4, double(seen.zero));
}
