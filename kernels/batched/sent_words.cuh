// Numbers that blocks send to each other through global memory, without flags.
//
// Before a number is written, all bits of its memory are ones.  Afterwards its upper half is not all ones.
#pragma once

#include "common/common.cuh"

using Bits = unsigned long long;

// WORDS numbers in FP64, which are neighbours in memory, on a boundary of their size.  WORDS is 1 or 2.
template <int WORDS>
struct Words {
    Bits word[WORDS];

    __device__ __forceinline__ double number(int i) const { return __longlong_as_double(word[i]); }
    __device__ __forceinline__ void set(int i, double v) { word[i] = Bits(__double_as_longlong(v)); }

    // Whether the numbers that were read from memory have been written.  An upper half of ones would be a NaN.
    __device__ __forceinline__ bool are_there() const {
        return unsigned(word[0] >> 32) != ~0u && unsigned(word[WORDS - 1] >> 32) != ~0u;
    }
    // Replaces NaN that other blocks would take for numbers that are not written yet.
    __device__ __forceinline__ void make_seen() {
        #pragma unroll
        for (int i = 0; i < WORDS; ++i) if (unsigned(word[i] >> 32) == ~0u) word[i] -= Bits(1) << 32;
    }

    // Loads and stores are volatile.  So each load reads the memory again, and other blocks see each store.
    __device__ __forceinline__ void look_at(const Words* from) {
        if (WORDS == 2) {
            asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                         : "=l"(word[0]), "=l"(word[WORDS - 1]) : "l"(from) : "memory");
        } else {
            asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(word[0]) : "l"(from) : "memory");
        }
    }
    __device__ __forceinline__ void write(Words* to) const {
        if (WORDS == 2) {
            asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};"
                         :: "l"(to), "l"(word[0]), "l"(word[WORDS - 1]) : "memory");
        } else {
            asm volatile("st.volatile.global.u64 [%0], %1;" :: "l"(to), "l"(word[0]) : "memory");
        }
    }
};
