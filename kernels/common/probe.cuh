// Random vectors for condition estimates.
#pragma once

#include "common/common.cuh"

// Entry i < 2^27 of random vector c < 32: uniform, of mean 0 and variance 1, the same in every call.
__device__ __forceinline__ double random_probe(Index i, unsigned c) {
    // The last steps of MurmurHash3 mix the bits of the number of the entry.
    unsigned bits = 2 * unsigned(i) + c % 2 + (c / 2 << 28);
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    bits ^= bits >> 16;
    return (double(bits) * 0x1p-31 - 1.0) * 1.7320508075688772;
}
