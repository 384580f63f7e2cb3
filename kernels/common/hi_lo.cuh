// Splits FP32 numbers into two numbers of a tensor-core format: s x = hi + lo, up to the rounding of lo.
//
// s is a power of two.  hi is s x rounded to the format; s x - hi is exact in FP32, and lo is this difference rounded
// to the format.  There are two forms: by entries, and by words of 32 bits.
#pragma once

#include "common/common.cuh"

// ---- by entries --------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ void split_entry(float scaled, T& hi, T& lo) {
    hi = round_to<T>(scaled);
    lo = round_to<T>(scaled - widen(hi));
}

template <typename T, int N>
struct SplitRun {
    Run<T, N> hi, lo;

    __device__ __forceinline__ SplitRun(const Run<float, N>& x, float scale) {
        #pragma unroll
        for (int i = 0; i < N; ++i) split_entry(scale * x.at[i], hi.at[i], lo.at[i]);
    }
};

// ---- by words of 32 bits: two numbers of a 16-bit format, or one TF32 ------------------------------

template <typename T> constexpr int PER_WORD = 4 / int(sizeof(T));

template <typename T> __device__ __forceinline__ unsigned pack(const float (&x)[PER_WORD<T>]);
template <> __device__ __forceinline__ unsigned pack<fp16>(const float (&x)[2]) {
#if __CUDA_ARCH__ >= 800
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x[1]), "f"(x[0]));
    return word;
#else
    return round_to<fp16>(x[0]).bits | unsigned(round_to<fp16>(x[1]).bits) << 16;
#endif
}
template <> __device__ __forceinline__ unsigned pack<bf16>(const float (&x)[2]) {
#if __CUDA_ARCH__ >= 800
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(x[1]), "f"(x[0]));
    return word;
#else
    return round_to<bf16>(x[0]).bits | unsigned(round_to<bf16>(x[1]).bits) << 16;
#endif
}
template <> __device__ __forceinline__ unsigned pack<tf32>(const float (&x)[1]) {
    return round_to<tf32>(x[0]).bits;
}

template <typename T> __device__ __forceinline__ void unpack(unsigned word, float (&x)[PER_WORD<T>]);
template <> __device__ __forceinline__ void unpack<fp16>(unsigned word, float (&x)[2]) {
    x[0] = widen(fp16{static_cast<unsigned short>(word)});
    x[1] = widen(fp16{static_cast<unsigned short>(word >> 16)});
}
template <> __device__ __forceinline__ void unpack<bf16>(unsigned word, float (&x)[2]) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xffff0000u);
}
template <> __device__ __forceinline__ void unpack<tf32>(unsigned word, float (&x)[1]) {
    x[0] = __uint_as_float(word);
}

// A word of hi and one of lo; lo is zero unless SPLIT.
struct Parts { unsigned hi, lo; };

template <typename T, bool SPLIT>
__device__ __forceinline__ Parts parts_of(const float (&x)[PER_WORD<T>], float scale) {
    float rest[PER_WORD<T>], high[PER_WORD<T>];
    #pragma unroll
    for (int e = 0; e < PER_WORD<T>; ++e) rest[e] = scale * x[e];
    Parts parts = {pack<T>(rest), 0};
    if (SPLIT) {
        unpack<T>(parts.hi, high);
        #pragma unroll
        for (int e = 0; e < PER_WORD<T>; ++e) rest[e] -= high[e];
        parts.lo = pack<T>(rest);
    }
    return parts;
}
