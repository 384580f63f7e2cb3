// Definitions for all kernels: index type, 16-byte access, and the formats of tensor-core operands.
#pragma once

using Index = long long;  // for offsets in a matrix: n * n passes 2**31 at n = 46341

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// True if every row of a matrix starts on a 16-byte boundary.
template <typename T>
__device__ __forceinline__ bool aligned16(const T* a, Index ld) {
    return ((reinterpret_cast<unsigned long long>(a) | ld * sizeof(T)) & 15) == 0;
}

// N consecutive elements in registers.  They move 16 bytes at a time if `vector`; otherwise the first `count` move one
// by one, and a load makes the others zero.
template <typename T, int N>
struct Run {
    static_assert(N * sizeof(T) % 16 == 0, "a run is a whole number of 16-byte words");
    T at[N];

    __device__ __forceinline__ void load(const T* from, bool vector, Index count) {
        if (vector) {
            #pragma unroll
            for (int i = 0; i < N * int(sizeof(T)) / 16; ++i) {
                const uint4 word = reinterpret_cast<const uint4*>(from)[i];
                memcpy(reinterpret_cast<char*>(at) + 16 * i, &word, 16);
            }
        } else {
            #pragma unroll
            for (int i = 0; i < N; ++i) at[i] = i < count ? from[i] : T{};
        }
    }

    __device__ __forceinline__ void store(T* to, bool vector, Index count) const {
        if (vector) {
            #pragma unroll
            for (int i = 0; i < N * int(sizeof(T)) / 16; ++i) {
                uint4 word;
                memcpy(&word, reinterpret_cast<const char*>(at) + 16 * i, 16);
                reinterpret_cast<uint4*>(to)[i] = word;
            }
        } else {
            #pragma unroll
            for (int i = 0; i < N; ++i) if (i < count) to[i] = at[i];
        }
    }
};

// Formats of tensor-core operands.  All round to nearest even and keep subnormal numbers; a number too large for the
// format becomes infinity.
struct fp16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
struct tf32 { unsigned bits; };

// Rounds off the last DROP bits of an FP32 number.  It uses integers, because `cvt` to BF16 does not exist before
// sm_80, and `cvt` to TF32 rounds ties away from zero before sm_90.
template <int DROP>
__device__ __forceinline__ unsigned round_bits(float x) {
    const unsigned bits = __float_as_uint(x);
    constexpr unsigned HALF = (1u << (DROP - 1)) - 1;
    const unsigned rounded = bits + HALF + ((bits >> DROP) & 1);
    // Rounding a NaN could carry through its exponent and give zero, so a NaN is not rounded.  The quiet bit keeps it a
    // NaN when the rest of its payload is cut off.
    return (x != x ? bits | 0x00400000u : rounded) & (~0u << DROP);
}

template <typename T> __device__ __forceinline__ T round_to(float x);
template <> __device__ __forceinline__ fp16 round_to<fp16>(float x) {
    fp16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> __device__ __forceinline__ bf16 round_to<bf16>(float x) {
    return {static_cast<unsigned short>(round_bits<16>(x) >> 16)};
}
template <> __device__ __forceinline__ tf32 round_to<tf32>(float x) { return {round_bits<13>(x)}; }

__device__ __forceinline__ float widen(fp16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ __forceinline__ float widen(tf32 x) { return __uint_as_float(x.bits); }
