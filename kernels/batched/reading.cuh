// How a matrix is read under a structure, and checks of its entries.
// The file that includes this one defines T_A (float or double) and COMPLEX (0 or 1).
#pragma once

#include "common/number.cuh"
#include "common/reduce.cuh"

// Entries (i, j) with -below <= j - i <= above are read.  Instead of an entry outside this band, the matrix has zero if
// mirror is 0, the entry on the other side of the diagonal if mirror is 1, and the conjugate of that entry if mirror is
// 2.  If mirror is 2, the diagonal also has zero imaginary parts.  With a mirror, below or above is zero, and the other
// one is at least as large as the matrix: of two entries that mirror each other, one is read.
struct Band {
    int below, above, mirror;

    static constexpr Index FAR = 1 << 30;  // no matrix has more diagonals; 32-bit comparisons are cheaper

    __device__ __forceinline__ Band(Index below, Index above, Index mirror)
        : below(int(min(below, FAR))), above(int(min(above, FAR))), mirror(int(mirror)) {}

    __device__ __forceinline__ bool reads(int i, int j) const { return j - i <= above && i - j <= below; }

    // Whether the matrix that is read may have another value than a_ij.
    __device__ __forceinline__ bool changes(int i, int j) const {
        return !reads(i, j) || COMPLEX && mirror == 2 && i == j;
    }

    // The entry (i, j) of the matrix that is read, from a_ij (`given`) and, if there is a mirror, a_ji (`other`).
    __device__ __forceinline__ Number stands(int i, int j, Number given, Number other) const {
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

    __device__ __forceinline__ Number other(int i, int j) const {
        return band.mirror && !band.reads(i, j) ? given(j, i) : Number{0.0, 0.0};
    }

    // The same as band.stands(i, j, given(i, j), other(i, j)), by one load.
    __device__ __forceinline__ Number operator()(int i, int j) const {
        const bool reads = band.reads(i, j), mirrors = band.mirror && !reads;
        Number v = given(mirrors ? j : i, mirrors ? i : j);
        if (!reads && !mirrors) v = {0.0, 0.0};
        if (COMPLEX && band.mirror == 2) v.im = i == j ? 0.0 : mirrors ? -v.im : v.im;
        return v;
    }
};

// The imaginary part of a diagonal entry may be at most ROUNDED times its real part: 64 machine epsilons.
constexpr double ROUNDED = sizeof(T_A) == 4 ? 0x1p-17 : 0x1p-46;

// Properties of the entries of a matrix.  The first three ignore NaN.
struct Seen {
    // The largest difference between an entry that is not read and the value that stands for it.  If mirror is 2,
    // twice an imaginary part on the diagonal counts as such a difference.
    double apart = 0;
    double largest = 0;  // the largest |a_ij| of entries that are read
    // beyond: a nonzero entry is not read, or an imaginary part on the diagonal is beyond rounding.  spoilt: there is a
    // NaN or Inf.  zero: there is a zero on the diagonal.
    bool beyond = false, spoilt = false, zero = false;

    __device__ __forceinline__ void note(const Band& band, int i, int j, Number given, Number stands) {
        const auto raise = [](double& most, double v) { most = v > most ? v : most; };  // not by a NaN
        spoilt = spoilt || !isfinite(given.re) || COMPLEX && !isfinite(given.im);
        zero = zero || i == j && modulus(stands) == 0;
        if (COMPLEX && band.mirror == 2 && i == j) {
            raise(apart, 2 * fabs(given.im)), raise(largest, modulus(given));
            beyond = beyond || fabs(given.im) > ROUNDED * fabs(given.re);
        } else if (band.reads(i, j)) {
            raise(largest, modulus(given));
        } else {
            raise(apart, modulus(Number{given.re - stands.re, given.im - stands.im}));
            beyond = beyond || modulus(given) > 0;
        }
    }
};

// Collects the same as Seen for real matrices of which one triangle is read, by fewer operations.
struct Glance {
    double apart = 0, largest = 0;  // with any sign
    double rest = 0;                // NaN once an entry is NaN or Inf, else 0
    unsigned beyond = 0;            // bits of entries that are not read
    bool zero = false;

    // Notes an entry that is read and not on the diagonal, and its mirror image.
    __device__ __forceinline__ void note(double read, double mirrored) {
        note_sizes(read, mirrored);
        if (mirrored == mirrored) beyond |= __double2hiint(mirrored) & 0x7fffffff | __double2loint(mirrored);
    }
    __device__ __forceinline__ void note_diagonal(double read) {
        note_sizes(read, read), zero = zero || read == 0;
    }
    __device__ __forceinline__ Seen seen() const { return {fabs(apart), fabs(largest), beyond != 0, rest != 0, zero}; }

    __device__ __forceinline__ void note_sizes(double read, double mirrored) {
        const auto raise = [](double& most, double v) { most = fabs(v) > fabs(most) ? v : most; };  // not by a NaN
        raise(apart, read - mirrored), raise(largest, read);
        rest = fma(0.0, read, fma(0.0, mirrored, rest));
    }
};

constexpr int SEEN = 5;  // numbers in Seen

// Calls write(number, value) for each of the SEEN numbers.
template <typename Write>
__device__ __forceinline__ void tell(const Seen& seen, Write write) {
    write(0, seen.apart), write(1, seen.largest);
    write(2, double(seen.beyond)), write(3, double(seen.spoilt)), write(4, double(seen.zero));
}

// Stores the numbers of `tell` for the entries of all threads of a warp.
__device__ __forceinline__ void tell_warp(const Seen& seen, double* to) {
    tell(seen, [&](int number, double v) {
        // The first two are numbers that are not NaN, the others 0 or 1.
        if (number < 2) v = over_lanes(v, [](double x, double y) { return fmax(x, y); });
        else v = __any_sync(ALL_LANES, v != 0);
        if (threadIdx.x % WARP == 0) to[number] = v;
    });
}
