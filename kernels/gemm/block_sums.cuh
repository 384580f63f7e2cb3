// One operation of a tensor core, in integers: a block of products is added to an FP32 number.
//
// The terms are truncated to multiples of 2^(e - DEPTH), where e is the largest exponent of a term, but at
// least LOWEST.  Then they are added exactly.  The sum is truncated to FP32.  NumPy does the same in
// tcsolve/_arithmetic/block_sums.py, and tcsolve/_arithmetic/tensor_cores.py has the numbers of each GPU.
#pragma once

constexpr int FRACTION_32 = 23, LEAST_32 = -126, BIAS_32 = 127, INFINITE_32 = 255;
// Significant bits of an operand behind the point; a product has twice as many.
constexpr int OPERAND_FRACTION = 10, PRODUCT_FRACTION = 2 * OPERAND_FRACTION;
// The exponents of an operand that is zero, and of one that is Inf or NaN.  The sum of the exponents of two factors is
// above MANY if one of them is Inf or NaN.
constexpr int NOTHING = -1024, SPECIAL = 4096, MANY = 2048;
constexpr unsigned NAN_32 = 0x7fffffffu, INF_32 = 0x7f800000u, SIGN_32 = 0x80000000u;

// x = significand 2^(exponent - fraction).  Inf has the significand 1 or -1 and the exponent SPECIAL; NaN has
// 0 and the same exponent.
struct Number {
    int significand, exponent;
};

// Reads an FP32 number with `fraction` bits behind the point.  `least` is the smallest exponent of a normal number.
__device__ __forceinline__ Number read_number(unsigned bits, int fraction, int least) {
    const int field = bits >> FRACTION_32 & 255;
    int size = bits & ((1 << FRACTION_32) - 1), exponent;
    if (field == INFINITE_32) {
        exponent = SPECIAL;
        size = size == 0;
    } else if (field == 0 && size == 0) {
        exponent = NOTHING;
    } else {
        exponent = field ? field - BIAS_32 : LEAST_32;
        if (field) size |= 1 << FRACTION_32;
        const int below = exponent < least ? least - exponent : 0;
        const int shift = FRACTION_32 - fraction + below;
        size = shift < 32 ? size >> shift : 0;  // in a number of the format, the dropped bits are zero
        exponent += below;
    }
    return {bits & SIGN_32 ? -size : size, exponent};
}

// value 2^up, truncated toward zero.
__device__ __forceinline__ long long shifted(int value, int up) {
    const long long size = value < 0 ? -static_cast<long long>(value) : value;
    const long long moved = up >= 0 ? size << up : up > -32 ? size >> -up : 0;
    return value < 0 ? -moved : moved;
}

// The bits of sum 2^exponent, truncated to FP32; too large a number becomes infinite, and zero is +0.
__device__ __forceinline__ unsigned truncated(long long sum, int exponent) {
    if (sum == 0) return 0;
    const unsigned sign = sum < 0 ? SIGN_32 : 0;
    const unsigned long long size = sum < 0 ? -sum : sum;
    const int top = 63 - __clzll(size), e = top + exponent;  // 2^e <= size 2^exponent < 2^(e + 1)
    if (e > BIAS_32) return sign | INF_32;
    // The unit of the result is 2^(unit) times that of `size`.
    const int unit = (e < LEAST_32 ? LEAST_32 : e) - FRACTION_32 - exponent;
    const unsigned kept = unit >= 0 ? (unit < 64 ? size >> unit : 0) : size << -unit;
    if (e < LEAST_32) return kept ? sign | kept : 0;
    return sign | static_cast<unsigned>(e + BIAS_32) << FRACTION_32 | (kept & ((1u << FRACTION_32) - 1));
}

// The bits of the result if a term is Inf or NaN; finite terms do not matter.
template <int COUNT>
__device__ __forceinline__ unsigned special_sum(const Number* a, const Number* b, int stride, const Number& c) {
    bool plus = c.exponent == SPECIAL && c.significand > 0, minus = c.exponent == SPECIAL && c.significand < 0;
    bool invalid = c.exponent == SPECIAL && c.significand == 0;
    for (int q = 0; q < COUNT; ++q) {
        const Number x = a[q], y = b[q * stride];
        if (x.exponent != SPECIAL && y.exponent != SPECIAL) continue;
        // Inf times zero is invalid, as is any product with NaN; zero and NaN have a significand of zero.
        if (x.significand == 0 || y.significand == 0) invalid = true;
        else if ((x.significand > 0) == (y.significand > 0)) plus = true;
        else minus = true;
    }
    if (invalid || (plus && minus)) return NAN_32;
    return plus ? INF_32 : SIGN_32 | INF_32;
}

// The bits of c + sum a[q] b[q stride] for COUNT products, which a tensor core adds in one operation.
template <int COUNT, int DEPTH, int LOWEST>
__device__ __forceinline__ unsigned add_block(const Number* a, const Number* b, int stride, unsigned bits) {
    const Number c = read_number(bits, FRACTION_32, LEAST_32);
    int top = c.exponent;
    #pragma unroll
    for (int q = 0; q < COUNT; ++q) {
        const int e = a[q].exponent + b[q * stride].exponent;
        top = e > top ? e : top;
    }
    if (top > MANY) return special_sum<COUNT>(a, b, stride, c);
    top = top > LOWEST ? top : LOWEST;
    long long sum = shifted(c.significand, DEPTH - FRACTION_32 + c.exponent - top);
    #pragma unroll
    for (int q = 0; q < COUNT; ++q) {
        const Number x = a[q], y = b[q * stride];
        sum += shifted(x.significand * y.significand, DEPTH - PRODUCT_FRACTION + x.exponent + y.exponent - top);
    }
    return truncated(sum, top - DEPTH);
}
