// How gemm_batched.cu makes results from its sums, and stores them.
#pragma once

#include "batched/batched_layout.cuh"
#include "common/bulk_copy.cuh"

struct Batch {
    char* out;
    const char* c;
    Index batch_out, ld_out, batch_c, ld_c;
    Acc alpha, beta;

    // First entry of row i of product `first` + s.
    __device__ __forceinline__ char* row_of_out(Index first, int s, int i) const {
        if (DENSE) return out + first * (M * N * OUT_SIZE) + (s * M + i) * (N * OUT_SIZE);
        return out + ((first + s) * batch_out + i * ld_out) * OUT_SIZE;
    }
    __device__ __forceinline__ const char* row_of_c(Index first, int s, int i) const {
        return c + ((first + s) * batch_c + i * ld_c) * OUT_SIZE;
    }

    __device__ __forceinline__ float result(float x, const char* old) const {
        x *= alpha;
        if (!ADDEND) return x;
        if (KIND == KIND_FP32) return x + beta * *reinterpret_cast<const float*>(old);
        const unsigned short bits = *reinterpret_cast<const unsigned short*>(old);
        return x + beta * (KIND == KIND_FP16 ? widen(fp16{bits}) : widen(bf16{bits}));
    }
    // Modulo 2^32, like unsigned arithmetic.
    __device__ __forceinline__ int result(int x, const char* old) const {
        unsigned y = unsigned(alpha) * unsigned(x);
        if (ADDEND) y += unsigned(beta) * *reinterpret_cast<const unsigned*>(old);
        return int(y);
    }
};

template <typename T> __device__ __forceinline__ T scalar(double x);
template <> __device__ __forceinline__ float scalar<float>(double x) { return float(x); }
template <> __device__ __forceinline__ int scalar<int>(double x) { return int(unsigned(static_cast<long long>(x))); }

__device__ __forceinline__ unsigned pack_two(float x, float y) {
    const float both[2] = {x, y};
    return KIND == KIND_FP16 ? pack<fp16>(both) : pack<bf16>(both);
}

__device__ __forceinline__ void put(char* to, int x) { *reinterpret_cast<int*>(to) = x; }
__device__ __forceinline__ void put(char* to, float x) {
    if (KIND == KIND_FP32) *reinterpret_cast<float*>(to) = x;
    else if (KIND == KIND_FP16) *reinterpret_cast<fp16*>(to) = round_to<fp16>(x);
    else *reinterpret_cast<bf16*>(to) = round_to<bf16>(x);
}
template <int LENGTH> __device__ __forceinline__ void put_run(char* to, const int (&x)[LENGTH]) {
    if constexpr (LENGTH == 4) *reinterpret_cast<int4*>(to) = make_int4(x[0], x[1], x[2], x[3]);
    else *reinterpret_cast<int2*>(to) = make_int2(x[0], x[1]);
}
template <int LENGTH> __device__ __forceinline__ void put_run(char* to, const float (&x)[LENGTH]) {
    if constexpr (KIND == KIND_FP32) {
        if constexpr (LENGTH == 4) *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
        else *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
    } else {
        const unsigned word = pack_two(x[0], x[1]);
        if constexpr (LENGTH == 4) *reinterpret_cast<uint2*>(to) = make_uint2(word, pack_two(x[2], x[3]));
        else *reinterpret_cast<unsigned*>(to) = word;
    }
}

// One row of two tiles: even lanes take 4 neighbours of the first tile, odd ones of the second.
template <int LENGTH>
__device__ __forceinline__ void put_traded(char* row, bool exists, int j0, const Acc (&x)[LENGTH]) {
    const int t = threadIdx.x % 4, j = j0 + t % 2 * 8 + t / 2 * 4;
    const bool odd = t % 2;
    if constexpr (OUT_SIZE == 2) {
        const unsigned first = pack_two(x[0], x[1]), second = pack_two(x[LENGTH - 2], x[LENGTH - 1]);
        const unsigned other = __shfl_xor_sync(ALL_LANES, odd ? first : second, 1);
        const uint2 words = odd ? make_uint2(other, second) : make_uint2(first, other);
        if (exists && j < N) *reinterpret_cast<uint2*>(row + j * OUT_SIZE) = words;
    } else {
        Acc run[4];
        #pragma unroll
        for (int e = 0; e < 2; ++e) {
            const Acc other = __shfl_xor_sync(ALL_LANES, odd ? x[e] : x[LENGTH - 2 + e], 1);
            run[e] = odd ? other : x[e];
            run[2 + e] = odd ? x[LENGTH - 2 + e] : other;
        }
        if (exists && j < N) put_run(row + j * OUT_SIZE, run);
    }
}

// Stores this lane's part x of one row of a step, by increasing columns, to `row`, if that row exists.
__device__ __forceinline__ void put_row(
    const Batch& batch, char* row, const char* old, bool exists, int step, Acc (&x)[2 * TILES]
) {
    const int t = threadIdx.x % 4;
    constexpr int LENGTH = IN_TURN ? 4 : 2;
    const auto col = [&](int i) { return step * COLS + (IN_TURN ? 4 * t + i : i / 2 * 8 + 2 * t + i % 2); };
    #pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
        if (!ADDEND) x[i] = batch.result(x[i], nullptr);
        else if (exists && col(i) < N) x[i] = batch.result(x[i], old + col(i) * OUT_SIZE);
    }
    if constexpr (TRADED) {
        put_traded(row, exists, step * COLS, x);
    } else if (exists) {
        #pragma unroll
        for (int i = 0; i < 2 * TILES; i += LENGTH) {
            Acc run[LENGTH];
            #pragma unroll
            for (int e = 0; e < LENGTH; ++e) run[e] = x[i + e];
            if (IN_RUNS) {
                if (col(i) < N) put_run(row + col(i) * OUT_SIZE, run);
            } else {
                #pragma unroll
                for (int e = 0; e < LENGTH; ++e) if (col(i + e) < N) put(row + col(i + e) * OUT_SIZE, run[e]);
            }
        }
    }
}

__device__ __forceinline__ int place_in_word(const char* x) {
    return int(reinterpret_cast<unsigned long long>(x) & 15);
}

// Writes `bytes` bytes to `to`.  `gathered` is on a 16-byte boundary, and the bytes start place_in_word(to) bytes after
// it, so source and destination have the same offset in a 16-byte word.
__device__ __forceinline__ void write_run(char* to, const char* gathered, int bytes) {
    const int lane = threadIdx.x % WARP, shift = place_in_word(to), end = shift + bytes;
    const int first = (shift + 15) & ~15, last = end & ~15;
    to -= shift;
    for (int at = first + 16 * lane; at < last; at += 16 * WARP) {
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(gathered + at);
    }
    // Half of the lanes write the entries before the first whole word, half those after the last.
    const int edge = lane < 16 ? shift + lane * OUT_SIZE : max(first, last) + (lane - 16) * OUT_SIZE;
    if (edge < (lane < 16 ? min(first, end) : end)) {
        const void* const from = __builtin_assume_aligned(gathered + edge, OUT_SIZE);
        memcpy(__builtin_assume_aligned(to + edge, OUT_SIZE), from, OUT_SIZE);
    }
}

// The same by one bulk copy of whole words, which start at `gathered`.  It may read them until wait_for_bulk.
__device__ __forceinline__ void write_bulk(char* to, const char* gathered, int bytes) {
#if __CUDA_ARCH__ >= 900
    show_to_copies();
    __syncwarp();
    if (threadIdx.x % WARP == 0) {
        store_bytes(to, shared_address(gathered), bytes);
        commit_bulk();
    }
#endif
}

// Waits until this warp's bulk copies have been read from `gathered`.
__device__ __forceinline__ void wait_for_bulk() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % WARP == 0) wait_until_read<0>();
#endif
    __syncwarp();
}
