// How gemm_wgmma.cu stores its sums: by the copy engine, or by the threads themselves.
#pragma once

#include "common/bulk_copy.cuh"
#include "gemm/wgmma.cuh"

// Hands one box of results to the copy engine, which stores or adds it.
__device__ __forceinline__ void copy_out(const TensorMap& map, int how, int x, int y, unsigned from) {
    if (how == PASSING) add_passing_box(map, x, y, from);
    else if (how == ADDED) add_box(map, x, y, from);
    else store_box(map, x, y, from);
    commit_bulk();
}

// The largest `top` of the rows and columns of one thread's sums; 0 if nothing was scaled.  top_a is tested at run
// time, although SCALED is known at compile time: otherwise the compiler reads `top` so early that sums spill.
__device__ __forceinline__ unsigned largest_top(const Origin<T_LOW>& origin, Index row, Index col) {
    if (origin.top_a == nullptr) return 0;
    unsigned largest = max(origin.top_a[row], origin.top_a[row + 8]);
    #pragma unroll
    for (int j = 0; j < SUMS / 4; ++j) {
        largest = max(largest, max(origin.top_b[col + 8 * j], origin.top_b[col + 8 * j + 1]));
    }
    return largest;
}

// Stores one thread's sums in the simple case: all are inside C, results are FP32 and are stored in pairs, and none is
// broken.  The reads of c for FLIGHT groups of 8 columns are issued together.
template <bool ADD>
__device__ __forceinline__ void store_whole(
    const float (&sum)[SUMS], const Target& target, const Origin<T_LOW>& origin, Index row, Index col
) {
    constexpr int FLIGHT = 8;
    const float alpha = float(target.alpha), beta = float(target.beta);
    float* const out = static_cast<float*>(target.out) + row * target.ld_out + col;
    const float* const c = static_cast<const float*>(target.c) + row * target.ld_c + col;
    const bool is_scaled = origin.top_a != nullptr;
    const int exponent[2] = {
        is_scaled ? fit<T_LOW>(origin.top_a[row]) : 0, is_scaled ? fit<T_LOW>(origin.top_a[row + 8]) : 0
    };
    #pragma unroll
    for (int j0 = 0; j0 < SUMS / 4; j0 += FLIGHT) {
        float2 old[FLIGHT][2];
        if (ADD) {
            #pragma unroll
            for (int e = 0; e < 2 * FLIGHT; ++e) {
                const float* const from = c + e % 2 * 8 * target.ld_c + 8 * (j0 + e / 2);
                old[e / 2][e % 2] = *reinterpret_cast<const float2*>(from);
            }
        }
        #pragma unroll
        for (int e = 0; e < 2 * FLIGHT; ++e) {
            const int j = j0 + e / 2, half = e % 2;
            float2 x = make_float2(sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
            if (is_scaled) {
                x.x = scaled<T_LOW>(x.x, -(exponent[half] + fit<T_LOW>(origin.top_b[col + 8 * j])));
                x.y = scaled<T_LOW>(x.y, -(exponent[half] + fit<T_LOW>(origin.top_b[col + 8 * j + 1])));
            }
            x.x *= alpha;
            x.y *= alpha;
            if (ADD) {
                x.x += beta * old[e / 2][half].x;
                x.y += beta * old[e / 2][half].y;
            }
            *reinterpret_cast<float2*>(out + half * 8 * target.ld_out + 8 * j) = x;
        }
    }
}

// Hands the sums of a warp, 16 rows from `row` on, to the copy engine.  A lane holds two neighbours of every 8 columns,
// in rows lane / 4 and lane / 4 + 8.  A box has rows of 128 bytes whose words of 16 bytes are swizzled.  In odd rows
// the second half of the box's columns is written first; otherwise two rows would use the same banks.
__device__ __forceinline__ void send_whole(
    const float (&sum)[SUMS], const Target& target, const Origin<T_LOW>& origin,
    const TensorMap& results, int how, unsigned boxes, int row, int col
) {
    constexpr int EIGHTS = BOX_COLS / 8;
    const int lane = threadIdx.x % WARP, in_box = lane / 4, pair = lane % 4;
    const bool odd = in_box & 1;
    const float alpha = float(target.alpha);
    const int exponent[2] = {
        SCALED ? fit<T_LOW>(origin.top_a[row + in_box]) : 0, SCALED ? fit<T_LOW>(origin.top_a[row + in_box + 8]) : 0
    };
    const unsigned turn = (pair / 2 ^ in_box ^ (odd ? EIGHTS : 0)) * 16;
    const unsigned at = boxes + in_box * 128 + pair % 2 * 8;
    #pragma unroll
    for (int box = 0; box < SUMS / 16; ++box) {
        const int offset = box % BOXES * BOX_BYTES;
        if (lane == 0) wait_until_read<BOXES - 1>();
        __syncwarp();
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            float2 x[EIGHTS];
            #pragma unroll
            for (int j = 0; j < EIGHTS; ++j) {
                const int e = 4 * (EIGHTS * box + j) + 2 * half;
                x[j] = make_float2(sum[e], sum[e + 1]);
                if (SCALED) {
                    const unsigned* const top = origin.top_b + col + BOX_COLS * box + 8 * j + 2 * pair;
                    x[j].x = scaled<T_LOW>(x[j].x, -(exponent[half] + fit<T_LOW>(top[0])));
                    x[j].y = scaled<T_LOW>(x[j].y, -(exponent[half] + fit<T_LOW>(top[1])));
                }
                x[j].x *= alpha;
                x[j].y *= alpha;
            }
            #pragma unroll
            for (int j = 0; j < EIGHTS; ++j) {
                const float2 y = odd ? x[j ^ EIGHTS / 2] : x[j];
                const unsigned to = at + (32 * j ^ turn) + (offset + half * 8 * 128);
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(to), "f"(y.x), "f"(y.y) : "memory");
            }
        }
        show_to_copies();
        __syncwarp();
        if (lane == 0) copy_out(results, how, col + BOX_COLS * box, row, boxes + offset);
    }
}

// Stores one thread's sums one pair after the other, in every case.  They pass through the memory of the boxes, where a
// loop need not be unrolled as it must be for registers: this halves the time of compiling.
__device__ __forceinline__ void store_each(
    const float (&sum)[SUMS], const Target& target, const Origin<T_LOW>& origin,
    bool in_pairs, unsigned boxes, Index row, Index col
) {
    constexpr int AT_ONCE = BOXES * BOX_BYTES / (WARP * 16);
    static_assert(SUMS / 4 % AT_ONCE == 0, "the boxes are filled");
    const int lane = threadIdx.x % WARP;
    if (lane == 0) wait_until_read<0>();  // the copy engine may still read what the warp wrote for the tile before
    __syncwarp();
    #pragma unroll
    for (int first = 0; first < SUMS / 4; first += AT_ONCE) {
        #pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const float* const x = sum + 4 * (first + j);
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                         :: "r"(boxes + (WARP * j + lane) * 16), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
        }
        #pragma unroll 1
        for (int j = 0; j < AT_ONCE; ++j) {  // each lane reads what it wrote
            float x[4];
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                         : "r"(boxes + (WARP * j + lane) * 16) : "memory");
            target.store(origin, in_pairs, row, col + 8 * (first + j), x[0], x[1]);
            target.store(origin, in_pairs, row + 8, col + 8 * (first + j), x[2], x[3]);
        }
    }
}

__device__ __forceinline__ void store_sums(
    const float (&sum)[SUMS], const Target& target, const Origin<T_LOW>& origin,
    const TensorMap& results, int how, unsigned boxes, Index row, Index col
) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP_THREADS / WARP;
    const bool in_pairs = target.pairs(), inside = row + PANEL <= target.m && col + BLOCK_N <= target.n;
    const bool add = target.beta != 0;
    const bool c_in_pairs = ((reinterpret_cast<unsigned long long>(target.c) | target.ld_c * 4) & 7) == 0;
    row += 16 * warp;
    // On an edge, the copy engine cuts boxes off where C ends.  Scaled sums are sent to it only from tiles inside C,
    // because `top` must not be read beyond C, and only if no sum is broken.
    if (how != BY_HAND && (!SCALED || (inside &&
        __all_sync(ALL_LANES, largest_top(origin, row + lane / 4, col + lane % 4 * 2) < INFINITE)))) {
        send_whole(sum, target, origin, results, how, boxes, int(row), int(col));
        return;
    }
    row += lane / 4;
    col += lane % 4 * 2;
    if (how == BY_HAND && inside && in_pairs && target.kind == KIND_FP32 && (!add || c_in_pairs) &&
        __all_sync(ALL_LANES, largest_top(origin, row, col) < INFINITE)) {  // store_each needs the whole warp
        if (add) store_whole<true>(sum, target, origin, row, col);
        else store_whole<false>(sum, target, origin, row, col);
        return;
    }
    store_each(sum, target, origin, in_pairs, boxes, row, col);
    if (SCALED) {
        #pragma unroll 1
        for (int e = 0; e < SUMS; ++e) target.mend(origin, row + (e >> 1 & 1) * 8, col + e / 4 * 8 + e % 2);
    }
    __syncwarp();  // the next products need the whole warp
}
