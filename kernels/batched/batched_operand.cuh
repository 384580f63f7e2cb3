// The operands of gemm_batched.cu in shared memory, and their copies from global memory.
#pragma once

#include "batched/batched_sizes.cuh"
#include "common/async_copy.cuh"

// An operand of ACROSS entries along m or n, and K along k.  If STORE is 1, a row in shared memory has the entries of
// a row in global memory.  Lanes read 8 rows in the same column at a time, and these 8 reads must use different banks.
// Therefore, in rows of whole 16-byte words, units of UNIT bytes change places, and FP32 rows of a multiple of 128
// bytes are padded.  (With other paddings, copies would not reach the rate of the memory.)
template <int ACROSS, bool ALONG_K, int STORE>
struct Operand {
    static constexpr int ROWS = ALONG_K ? ACROSS : K, LENGTH = ALONG_K ? K : ACROSS, ROW_BYTES = LENGTH * SIZE;
    static constexpr bool WHOLE = ROW_BYTES % 16 == 0;
    // Whether ldmatrix can load 8 x 8 blocks of 16-bit numbers.
    static constexpr bool BLOCKS = !SCALED && SIZE == 2 && WHOLE && K % 8 == 0;
    static constexpr int PITCH = SCALED && ROW_BYTES % 128 == 0 ? ROW_BYTES + 16 : ROW_BYTES;
    static constexpr int MATRIX_BYTES = ROWS * PITCH;
    // Unless WHOLE, the bytes that are copied may start inside a 16-byte word of global memory.  Then they have the
    // same offset in a word here, for which there are 16 more bytes.
    static constexpr int BYTES = (((STORE == 2 ? 1 : COUNT) * MATRIX_BYTES + 15) & ~15) + (WHOLE ? 0 : 16);
    // Units of UNIT bytes, which are read at a time, change places within groups of MIXED units.  IN_BANKS units fill
    // all banks once.
    static constexpr int UNIT = SCALED ? 32 : 16, IN_BANKS = 128 / UNIT;
    static constexpr int MIXED = !WHOLE || PITCH != ROW_BYTES || ROW_BYTES % (2 * UNIT) != 0 ? 1
                                 : ROW_BYTES % (8 * UNIT) == 0 && IN_BANKS == 8 ? 8
                                 : ROW_BYTES % (4 * UNIT) == 0 ? 4 : 2;

    // The offset of byte `byte` of a row.
    __device__ __forceinline__ static int place(int row, int byte) {
        return row * PITCH + (byte ^ row / (IN_BANKS / MIXED) % MIXED * UNIT);
    }

    __device__ __forceinline__ static const char* matrix(const char* stage, const T_IN* x, Index first, int s) {
        if (STORE == 2) return stage;
        const int shift = STORE == 1 && !WHOLE ? start(x, first) & 15 : 0;
        return stage + shift + s * MATRIX_BYTES;
    }

    // Loads WORD numbers of row or column i from q on, zero from K on.  For a row that does not exist it loads the last
    // one; results of such a row are not stored.
    __device__ __forceinline__ static void load(float (&x)[WORD], const char* matrix, int i, int q) {
        i = min(i, ACROSS - 1);
        if (ALONG_K && WHOLE && q < K) {
            memcpy(x, __builtin_assume_aligned(matrix + place(i, q * SIZE), WORD * SIZE), WORD * SIZE);
            return;
        }
        #pragma unroll
        for (int e = 0; e < WORD; ++e) x[e] = q + e < K ? float_at(matrix, i, q + e) : 0.0f;
    }
    __device__ __forceinline__ static void load(unsigned& x, const char* matrix, int i, int q) {
        i = min(i, ACROSS - 1);
        if (ALONG_K && WHOLE && q < K) {
            x = *reinterpret_cast<const unsigned*>(matrix + place(i, q * SIZE));
            return;
        }
        x = 0;
        #pragma unroll
        for (int e = 0; e < WORD; ++e) if (q + e < K) x |= bits_at(matrix, i, q + e) << (8 * SIZE * e);
    }

    // The same for columns i and i + 1, i even.
    static constexpr bool PAIRS = !ALONG_K && WHOLE;
    __device__ __forceinline__ static void load(
        float (&x)[WORD], float (&y)[WORD], const char* matrix, int i, int q
    ) {
        i = min(i, ACROSS - 2);
        #pragma unroll
        for (int e = 0; e < WORD; ++e) {
            const float2 two = q + e < K ? *reinterpret_cast<const float2*>(matrix + place(q + e, i * SIZE)) : float2{};
            x[e] = two.x;
            y[e] = two.y;
        }
    }
    __device__ __forceinline__ static void load(unsigned& x, unsigned& y, const char* matrix, int i, int q) {
        i = min(i, ACROSS - 2);
        unsigned two[WORD];
        #pragma unroll
        for (int e = 0; e < WORD; ++e) two[e] = q + e < K ? two_at(matrix + place(q + e, i * SIZE)) : 0;
        if constexpr (WORD == 2) {
            x = __byte_perm(two[0], two[1], 0x5410);
            y = __byte_perm(two[0], two[1], 0x7632);
        } else if constexpr (WORD == 4) {
            const unsigned front = __byte_perm(two[0], two[1], 0x5410), back = __byte_perm(two[2], two[3], 0x5410);
            x = __byte_perm(front, back, 0x6420);
            y = __byte_perm(front, back, 0x7531);
        }
    }

    __device__ __forceinline__ static float float_at(const char* matrix, int i, int q) {
        const int row = ALONG_K ? i : q, col = ALONG_K ? q : i;
        return *reinterpret_cast<const float*>(matrix + place(row, col * SIZE));
    }
    __device__ __forceinline__ static unsigned bits_at(const char* matrix, int i, int q) {
        const int row = ALONG_K ? i : q, col = ALONG_K ? q : i;
        const char* const from = matrix + place(row, col * SIZE);
        if (SIZE == 1) return *reinterpret_cast<const unsigned char*>(from);
        return *reinterpret_cast<const unsigned short*>(from);
    }
    __device__ __forceinline__ static unsigned two_at(const char* from) {
        if (SIZE == 1) return *reinterpret_cast<const unsigned short*>(from);
        return *reinterpret_cast<const unsigned*>(from);
    }

    // Row r in memory of the 8 x 8 block (x, z); x counts blocks along m (or n), z along k.  For a row outside the
    // matrix, the function returns a row inside.
    __device__ __forceinline__ static const char* block_row(const char* matrix, int x, int z, int r) {
        z = min(z, K / 8 - 1);
        if (ALONG_K) return matrix + place(min(8 * x + r, ACROSS - 1), 16 * z);
        return matrix + place(8 * z + r, 16 * min(x, ACROSS / 8 - 1));
    }

    __device__ __forceinline__ static unsigned long long start(const T_IN* x, Index first) {
        return reinterpret_cast<unsigned long long>(x) + first * (ROWS * ROW_BYTES);
    }

    // Copies `count` matrices from number `first` on.
    __device__ __forceinline__ static void copy(
        char* stage, const T_IN* x, Index first, int count, Index batch, Index row, Index col
    ) {
        if (STORE == 1) copy_run(stage, x, first, count);
        else gather(stage, x + first * batch, count, batch, row, col);
    }

    __device__ __forceinline__ static void copy_run(char* stage, const T_IN* x, Index first, int count) {
        const unsigned long long from = start(x, first);
        const int shift = WHOLE ? 0 : int(from & 15), end = shift + count * ROWS * ROW_BYTES;
        const char* const words = reinterpret_cast<const char*>(from - shift);
        constexpr int STEP = 16 * THREADS, ROWS_A_STEP = STEP / ROW_BYTES;
        const int mine = 16 * threadIdx.x;
        if constexpr (WHOLE && STEP % ROW_BYTES == 0 && (MIXED == 1 || (ROWS % 8 == 0 && ROWS_A_STEP % 8 == 0))) {
            // The permutation repeats after STEP bytes, so consecutive places of a thread have a constant distance.
            char* const to = stage + place(mine / ROW_BYTES, mine % ROW_BYTES);
            constexpr bool ALL = BRIEF && COUNT == 1 && ROWS * ROW_BYTES % STEP == 0;
            #pragma unroll
            for (int i = 0; i * STEP < COUNT * ROWS * ROW_BYTES; ++i) {
                if (!ALL && mine + i * STEP >= end) continue;
                copy_word(to + i * (ROWS_A_STEP * PITCH), words + mine + i * STEP, 16);
            }
        } else {
            #pragma unroll 4
            for (int at = mine; at < end; at += STEP) {
                const int row = at / ROW_BYTES, s = row / ROWS;
                const int to = WHOLE ? s * MATRIX_BYTES + place(row % ROWS, at % ROW_BYTES) : at;
                copy_word(stage + to, words + at, WHOLE ? 16 : min(16, end - at));
            }
        }
    }

    __device__ __forceinline__ static void copy_word(char* to, const char* from, int bytes) {
#if __CUDA_ARCH__ >= 800
        copy_16(to, from, bytes);
#else
        if (bytes == 16) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        } else {
            for (int e = 0; e < bytes; ++e) to[e] = from[e];
        }
#endif
    }

    __device__ __forceinline__ static void gather(
        char* stage, const T_IN* x, int count, Index batch, Index row, Index col
    ) {
        #pragma unroll 2
        for (int e = threadIdx.x; e < count * ROWS * LENGTH; e += THREADS) {
            const int s = e / (ROWS * LENGTH), i = e / LENGTH % ROWS, j = e % LENGTH;
            char* const to = stage + s * MATRIX_BYTES + place(i, j * SIZE);
            *reinterpret_cast<T_IN*>(to) = x[s * batch + i * row + j * col];
        }
    }
};

using OperandA = Operand<M, !TRANS_A, STORE_A>;
using OperandB = Operand<N, TRANS_B, STORE_B>;
// An operand that is one matrix for all products lies in front of the stages in shared memory.
constexpr int KEPT_A = STORE_A == 2 ? OperandA::BYTES : 0, KEPT_B = STORE_B == 2 ? OperandB::BYTES : 0;
constexpr int STAGE_A = OperandA::BYTES - KEPT_A, STAGE_BYTES = STAGE_A + OperandB::BYTES - KEPT_B;
