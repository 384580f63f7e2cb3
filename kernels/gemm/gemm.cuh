// What all GEMM kernels on tensor cores use: scales, words of operands, instructions, and the last step of a
// product.
//
// A word is 32 bits along k: two numbers of a 16-bit format, one TF32 number, or four INT8 numbers.  In words, all
// mma.sync shapes used here have the same fragments.  A slice of k is 8 words; with g = lane / 4, t = lane % 4
//   A (16 x 8 words): a0 (g, t), a1 (g + 8, t), a2 (g, t + 4), a3 (g + 8, t + 4)
//   B (8 words x 8):  b0 (t, g), b1 (t + 4, g)
//   C (16 x 8):       c0 (g, 2t), c1 (g, 2t + 1), c2 (g + 8, 2t), c3 (g + 8, 2t + 1)
//
// Scaling: before FP32 operands are rounded, each row of op(A) and each column of op(B) is multiplied by a power of two
// (at most 2^LARGEST_EXPONENT) that brings its largest entry into [2^13, 2^14); the last step divides by it.  `top`
// holds the bits of the largest |entry|: as integers they compare like |x|, and Inf and NaN are above all numbers.
//
// Rows of subnormal FP32 numbers are scaled in the same way.  Without scaling, a row below 2^-14 would lose bits:
// tensor cores do not normalize subnormal FP16 operands, and truncate their products as if the operands had the
// exponent -14.
//
// Inf and NaN cannot be split: if x is Inf, then hi is Inf and lo = x - hi is NaN.  So a result is `broken` if its row
// of op(A) or its column of op(B) holds an Inf or NaN.  It is computed again as a plain sum in FP64, where no sum of
// products of finite FP32 numbers overflows.  In FP32, a sum that overflows to Inf could meet an Inf of the other sign
// and give NaN.
#pragma once

#include "common/common.cuh"
#include "common/hi_lo.cuh"

struct int8 { signed char bits; };

constexpr unsigned INFINITE = 0x7f800000u;
constexpr int LARGEST_FACTOR = 126;  // 2^126 and 2^-126 are normal numbers

template <typename T, typename U> constexpr bool SAME = false;
template <typename T> constexpr bool SAME<T, T> = true;

constexpr int SLICE_WORDS = 8;

// ---- scales ----------------------------------------------------------------------------------

// The largest exponent of a scale.  2^162 brings the smallest FP32 number to 2^13, for FP16.  For formats with the
// range of FP32 a scale that is one FP32 number is enough.
template <typename T> constexpr int LARGEST_EXPONENT = SAME<T, fp16> ? 162 : LARGEST_FACTOR;

// The largest exponent e <= LARGEST_EXPONENT for which `top` times 2^e is below 2^14; 0 for zero, Inf and NaN.
template <typename T> __device__ __forceinline__ int fit(unsigned top) {
    if (top == 0 || top >= INFINITE) return 0;
    const int e = 140 - int(top >> 23);
    if (LARGEST_EXPONENT<T> == LARGEST_FACTOR) return min(e, LARGEST_FACTOR);
    return top >> 23 ? e : 131 + __clz(top);
}

__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// x 2^e for e <= 252, by two factors that are both FP32 numbers.  An exponent below -252 counts as -252.  This does not
// change the result, which is zero either way, because x is a sum of the tensor cores, below 2^100.
template <typename T> __device__ __forceinline__ float scaled(float x, int e) {
    if (LARGEST_EXPONENT<T> > LARGEST_FACTOR) e = max(e, -2 * LARGEST_FACTOR);
    const int half = e >> 1;
    return x * power_of_two(half) * power_of_two(e - half);
}

// Multiplies the entries of a row or column by 2^fit(top), in two steps if the exponent is above LARGEST_FACTOR.
template <typename T>
struct Scale {
    float first = 1, second = 1;

    Scale() = default;
    __device__ __forceinline__ explicit Scale(unsigned top) {
        const int e = fit<T>(top), most = min(e, LARGEST_FACTOR);
        first = power_of_two(most);
        second = power_of_two(e - most);
    }
    __device__ __forceinline__ float operator()(float x) const {
        return LARGEST_EXPONENT<T> > LARGEST_FACTOR ? x * first * second : x * first;
    }
};

__device__ __forceinline__ unsigned bits_of_size(float x) { return __float_as_uint(fabsf(x)); }

// Whether a refinement level splits op(A), and op(B).  Levels: 0 none, 1 'a', 2 'b', 3 'ab', 4 'full'.
template <int LEVEL> constexpr bool SPLITS_A = LEVEL == 1 || LEVEL >= 3;
template <int LEVEL> constexpr bool SPLITS_B = LEVEL >= 2;

// ---- tensor-core steps: d += a b for one slice of k -----------------------------------------

__device__ __forceinline__ void mma(fp16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void mma(bf16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma(tf32, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma(int8, int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// The products of hi and lo of both operands, smallest first: 0 lo lo, 1 lo hi, 2 hi lo, 3 hi hi.
constexpr int TERMS = 4;
template <int LEVEL> __device__ constexpr bool has_term(int term) {
    return term == 3 || (term == 2 && SPLITS_B<LEVEL>) || (term == 1 && SPLITS_A<LEVEL>) || (term == 0 && LEVEL == 4);
}

// d += the products of a refinement level, smallest first.
template <typename T, int LEVEL, typename Acc>
__device__ __forceinline__ void mma_refined(
    Acc (&d)[4], const unsigned (&a_hi)[4], const unsigned (&a_lo)[4],
    const unsigned (&b_hi)[2], const unsigned (&b_lo)[2]
) {
    if (LEVEL == 4) mma(T{}, d, a_lo, b_lo);
    if (SPLITS_A<LEVEL>) mma(T{}, d, a_lo, b_hi);
    if (SPLITS_B<LEVEL>) mma(T{}, d, a_hi, b_lo);
    mma(T{}, d, a_hi, b_hi);
}

template <typename T> struct Accumulator { using type = float; };
template <> struct Accumulator<int8> { using type = int; };

// ---- the last step: out = alpha (op(A) op(B)) + beta c ----------------------------------------

// Kinds of out and c.
constexpr int KIND_FP32 = 0, KIND_FP16 = 1, KIND_BF16 = 2, KIND_INT32 = 3;

// The FP32 operands op(A) (m x k) and op(B) (k x n) before scaling, by their strides in entries.  If the
// operands were not scaled for the format T, top_a and top_b are null, and a and b are not read.
template <typename T>
struct Origin {
    const float *a, *b;
    Index row_a, col_a, row_b, col_b, k;
    const unsigned *top_a, *top_b;

    // True if the row or the column of a result holds an Inf or NaN.
    __device__ __forceinline__ bool broken(Index i, Index j) const {
        return top_a != nullptr && max(top_a[i], top_b[j]) >= INFINITE;
    }

    // Returns the Inf or NaN of a broken result.  The sum is finite only if the launch sums a part of k and the Inf
    // or NaN is in another part.  Then the function returns 0.
    __device__ __forceinline__ float plain(Index i, Index j) const {
        double sum = 0;
        #pragma unroll 1
        for (Index q = 0; q < k; ++q) sum += double(a[i * row_a + q * col_a]) * double(b[q * row_b + j * col_b]);
        return fabs(sum) < double(__uint_as_float(INFINITE)) ? 0.0f : float(sum);
    }
};

struct Target {
    void* out;
    const void* c;  // of the same kind as out; not read if beta is 0
    Index ld_out, ld_c, m, n;
    int kind;
    double alpha, beta;

    // Whether two neighbours can be stored at once, as far as addresses go.
    __device__ __forceinline__ bool pairs() const {
        const Index size = kind == KIND_FP32 || kind == KIND_INT32 ? 4 : 2;
        return ((reinterpret_cast<unsigned long long>(out) | ld_out * size) & (2 * size - 1)) == 0;
    }

    __device__ __forceinline__ float old(Index i, Index j) const {
        const Index at = i * ld_c + j;
        if (kind == KIND_FP32) return static_cast<const float*>(c)[at];
        const unsigned short bits = static_cast<const unsigned short*>(c)[at];
        return kind == KIND_FP16 ? widen(fp16{bits}) : widen(bf16{bits});
    }

    __device__ __forceinline__ float result(float x, Index i, Index j) const {
        x *= float(alpha);
        return beta == 0 ? x : x + float(beta) * old(i, j);
    }

    // Modulo 2^32, like unsigned arithmetic.
    __device__ __forceinline__ int result(int x, Index i, Index j) const {
        unsigned y = unsigned(static_cast<long long>(alpha)) * unsigned(x);
        if (beta != 0) y += unsigned(static_cast<long long>(beta)) * static_cast<const unsigned*>(c)[i * ld_c + j];
        return int(y);
    }

    // alpha x + beta y, for an entry y of c that was read before.
    __device__ __forceinline__ float combined(float x, float y) const { return float(alpha) * x + float(beta) * y; }
    __device__ __forceinline__ int combined(int x, int y) const {
        return int(unsigned(static_cast<long long>(alpha)) * unsigned(x) +
                   unsigned(static_cast<long long>(beta)) * unsigned(y));
    }

    __device__ __forceinline__ void put(Index i, Index j, int x) const {
        static_cast<int*>(out)[i * ld_out + j] = x;
    }
    __device__ __forceinline__ void put(Index i, Index j, float x) const {
        const Index at = i * ld_out + j;
        if (kind == KIND_FP32) static_cast<float*>(out)[at] = x;
        else if (kind == KIND_FP16) static_cast<fp16*>(out)[at] = round_to<fp16>(x);
        else static_cast<bf16*>(out)[at] = round_to<bf16>(x);
    }

    __device__ __forceinline__ void put_pair(Index i, Index j, int x, int y) const {
        *reinterpret_cast<int2*>(static_cast<int*>(out) + i * ld_out + j) = make_int2(x, y);
    }
    __device__ __forceinline__ void put_pair(Index i, Index j, float x, float y) const {
        const Index at = i * ld_out + j;
        const float both[2] = {x, y};
        if (kind == KIND_FP32) {
            *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = make_float2(x, y);
        } else {
            const unsigned word = kind == KIND_FP16 ? pack<fp16>(both) : pack<bf16>(both);
            *reinterpret_cast<unsigned*>(static_cast<unsigned short*>(out) + at) = word;
        }
    }

    // Removes the scales from entry (i, j) of the product; false if it is broken.
    template <typename T>
    __device__ __forceinline__ static bool unscale(const Origin<T>& origin, float& x, Index i, Index j) {
        if (origin.top_a == nullptr) return true;
        const unsigned ta = origin.top_a[i], tb = origin.top_b[j];
        x = scaled<T>(x, -(fit<T>(ta) + fit<T>(tb)));
        return max(ta, tb) < INFINITE;
    }
    template <typename T>
    __device__ __forceinline__ static bool unscale(const Origin<T>&, int&, Index, Index) { return true; }

    // Stores the results for entries (i, j) and (i, j + 1), j even, of the product, which are still scaled.  Broken
    // ones are not stored; `mend` does that.
    template <typename T, typename Acc>
    __device__ __forceinline__ void store(
        const Origin<T>& origin, bool in_pairs, Index i, Index j, Acc x, Acc y
    ) const {
        if (i >= m || j >= n) return;
        const bool second = j + 1 < n;
        const bool x_good = unscale(origin, x, i, j), y_good = second && unscale(origin, y, i, j + 1);
        x = result(x, i, j);
        if (second) y = result(y, i, j + 1);
        if (in_pairs && x_good && y_good) {
            put_pair(i, j, x, y);
        } else {
            if (x_good) put(i, j, x);
            if (y_good) put(i, j + 1, y);
        }
    }

    // Stores a broken entry, computed without the tensor cores.  Call it in a loop that is not unrolled: its code is
    // long and rarely runs.
    template <typename T>
    __device__ __forceinline__ void mend(const Origin<T>& origin, Index i, Index j) const {
        if (i < m && j < n && origin.broken(i, j)) put(i, j, result(origin.plain(i, j), i, j));
    }
};

// The order of the tiles of a result.  Tiles that are computed at the same time are near each other in rows and
// columns, so that they share operands in the cache: bands of `group` rows of tiles, each column by column.
template <typename Int = Index>
struct TileOrder {
    Int rows, cols;

    __device__ __forceinline__ void find(Int tile, Int group, Int& row, Int& col) const {
        const Int band = tile / (group * cols), first = band * group;
        const Int height = min(group, rows - first), rest = tile - band * group * cols;
        row = first + rest % height;
        col = rest / height;
    }
};
