// Fragments of gemm_batched.cu: how a warp loads, scales and splits its operands, multiplies them, and removes the
// scales.
#pragma once

#include "batched/batched_layout.cuh"
#include "common/reduce.cuh"
#include "gemm/load_blocks.cuh"

// The larger of `top` and the bits of |x|; NaN is the largest.
__device__ __forceinline__ unsigned larger(unsigned top, float x) {
#if __CUDA_ARCH__ >= 800
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(__uint_as_float(top)), "f"(fabsf(x)));
    return __float_as_uint(y);
#else
    return max(top, bits_of_size(x));
#endif
}

// `top` has the bits of the largest |entry| of a row of op(A), or of a column of op(B).  The row or column is scaled by
// 2^fit(top), as in gemm.cuh.  scale_for(top) is this power, but at most 2^126.  If fit(top) is above 126, the row or
// column is *faint*, and `lift` also multiplies it by the rest.  If top is zero, Inf or NaN, scale_for may have any
// value.  If top is `ordinary` (see below), inverse_scale is the inverse of scale_for.
constexpr unsigned FAINT = 14u << 23;
constexpr unsigned EXPONENT = 0xff800000u;
__device__ __forceinline__ float scale_for(unsigned top) {
    return __uint_as_float(min((267u << 23) - (top & EXPONENT), unsigned(LARGEST_FACTOR + 127) << 23));
}
__device__ __forceinline__ float inverse_scale(unsigned top) { return __uint_as_float((top & EXPONENT) - (13u << 23)); }

// True if 2^fit(top) is between 2^-60 and 2^60, so that the product of the inverses for a row and a column is an FP32
// number.
__device__ __forceinline__ bool ordinary(unsigned top) { return top - (80u << 23) < 121u << 23; }

// The entries that make a register of a fragment, before they are rounded.
template <typename T> struct Raw { using type = unsigned; };
template <> struct Raw<float> { using type = float[WORD]; };
using Entries = typename Raw<T_IN>::type;

// A fragment of A (4 registers for each slice) or B (2 registers).  It has entries of LINES rows of A, or columns of B,
// which are called lines.  Register r belongs to line r % LINES, and is zero unless bit r of USED is set.
template <int REGISTERS, int LINES, unsigned USED, bool SPLIT>
struct Fragment {
    unsigned hi[SLICES][REGISTERS], lo[SLICES][REGISTERS];
    unsigned top[LINES];

    __device__ static constexpr bool used(int r) { return USED >> r & 1; }

    __device__ __forceinline__ void set(const unsigned (&x)[SLICES][REGISTERS]) {
        #pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            #pragma unroll
            for (int r = 0; r < REGISTERS; ++r) hi[s][r] = used(r) ? x[s][r] : 0;
        }
    }

    __device__ __forceinline__ void set(float (&x)[SLICES][REGISTERS][WORD]) {
        float scale[LINES];
        #pragma unroll
        for (int line = 0; line < LINES; ++line) {
            top[line] = 0;
            #pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                #pragma unroll
                for (int r = line; r < REGISTERS; r += LINES) {
                    #pragma unroll
                    for (int e = 0; e < WORD; ++e) if (used(r)) top[line] = larger(top[line], x[s][r][e]);
                }
            }
            top[line] = largest_of_lanes<4>(top[line]);  // of the four lanes that share a row (column)
            scale[line] = scale_for(top[line]);
        }
        if (LARGEST_EXPONENT<T_LOW> > LARGEST_FACTOR && has_faint()) lift(x);
        #pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            #pragma unroll
            for (int r = 0; r < REGISTERS; ++r) {
                const Parts parts = used(r) ? parts_of<T_LOW, SPLIT>(x[s][r], scale[r % LINES]) : Parts{0, 0};
                hi[s][r] = parts.hi;
                lo[s][r] = parts.lo;
            }
        }
    }

    __device__ __forceinline__ bool has_faint() const { return min(top[0], top[LINES - 1]) < FAINT; }

    // Multiplies the entries of faint lines by 2^(fit(top) - 126), the factor that scale_for leaves out.
    __device__ __forceinline__ void lift(float (&x)[SLICES][REGISTERS][WORD]) const {
        #pragma unroll
        for (int i = 0; i < SLICES * REGISTERS * WORD; ++i) {
            const int r = i / WORD % REGISTERS, missing = fit<T_LOW>(top[r % LINES]) - LARGEST_FACTOR;
            if (used(r)) x[i / WORD / REGISTERS][r][i % WORD] *= power_of_two(max(missing, 0));
        }
    }

    __device__ __forceinline__ bool is_ordinary() const {
        bool all = true;
        #pragma unroll
        for (int line = 0; line < LINES; ++line) all = all && ordinary(top[line]);
        return all;
    }
};

// With two products, the matrix is [A 0; 0 A'], so registers 1 and 2 are zero.
using FragmentA = Fragment<4, 2, TWO ? 9u : 15u, SPLITS_A<REFINE>>;
using FragmentB = Fragment<2, LINES_B, 3u, SPLITS_B<REFINE>>;

// The index along k of the word that lane t loads into half `half` of the registers of a slice.  The sums run over all
// words, so any order is correct if it is the same for A and B.  Usually lane t takes words t and t + 4 of each slice.
// With these words, neighbours in a column use the same banks if the length of a row is near a multiple of 64 bytes,
// but no multiple of 16.  If this holds for both operands, a lane takes 4 consecutive words of two slices instead, or 2
// of the last slice if the number of slices is odd.
__device__ constexpr bool near_banks(int row_bytes) { return row_bytes % 16 != 0 && (row_bytes + 8) % 64 <= 16; }
constexpr bool IN_LANE_RUNS = !TWO && near_banks(OperandA::ROW_BYTES) && near_banks(OperandB::ROW_BYTES);
__device__ __forceinline__ int word_of(int slice, int half, int t) {
    if (TWO) return t;
    if (!IN_LANE_RUNS) return slice * SLICE_WORDS + t + 4 * half;
    if (slice == SLICES - 1 && SLICES % 2 == 1) return slice * SLICE_WORDS + 2 * t + half;
    return slice / 2 * (2 * SLICE_WORDS) + 4 * t + slice % 2 * 2 + half;
}

// Loads rows row0 to row0 + 15 of a matrix, or the 8 rows of each of two.
__device__ __forceinline__ void load_rows(FragmentA& f, const char* const (&a)[2], int row0) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, block = lane / 8, r = lane % 8;
    if constexpr (OperandA::BLOCKS && TWO) {
        unsigned x[2];
        load_blocks<TRANS_A>(x, OperandA::block_row(block % 2 ? a[1] : a[0], 0, 0, r));
        f.hi[0][0] = x[0];
        f.hi[0][1] = f.hi[0][2] = 0;
        f.hi[0][3] = x[1];
    } else if constexpr (OperandA::BLOCKS) {
        #pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            load_blocks<TRANS_A>(f.hi[s], OperandA::block_row(a[0], row0 / 8 + block % 2, 2 * s + block / 2, r));
            if ((2 * s + 1) * 8 >= K) f.hi[s][2] = f.hi[s][3] = 0;
        }
    } else {
        Entries x[SLICES][4];
        #pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            #pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int row = TWO ? g : row0 + g + r % 2 * 8;
                if (f.used(r)) OperandA::load(x[s][r], a[r % 2], row, word_of(s, r / 2, t) * WORD);
            }
        }
        f.set(x);
    }
}

// The column of op(B) that is column g of tile `tile`.
__device__ __forceinline__ int column(int step, int tile, int g) {
    return step * COLS + (IN_TURN ? 2 * g + tile : 8 * tile + g);
}

// Loads the columns of one step, of a matrix or of two.
__device__ __forceinline__ void load_columns(FragmentB (&f)[TILES], const char* const (&b)[2], int step) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, block = lane / 8, row = lane % 8;
    if constexpr (OperandB::BLOCKS) {
        #pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            unsigned x[2 * TILES];
            const int z = TWO ? 0 : 2 * s + block % 2, tile = TILES == 2 ? block / 2 : 0;
            load_blocks<!TRANS_B>(x, OperandB::block_row(TWO && block % 2 ? b[1] : b[0], step * TILES + tile, z, row));
            #pragma unroll
            for (int i = 0; i < 2 * TILES; ++i) {
                const bool exists = TWO || (2 * s + i % 2) * 8 < K;
                f[i / 2].hi[s][i % 2] = exists ? x[i] : 0;
            }
        }
    } else {
        Entries x[TILES][SLICES][2];
        #pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            #pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int q = word_of(s, r, t) * WORD;
                if constexpr (IN_TURN && OperandB::PAIRS) {
                    OperandB::load(x[0][s][r], x[TILES - 1][s][r], b[r], column(step, 0, g), q);
                } else {
                    #pragma unroll
                    for (int i = 0; i < TILES; ++i) OperandB::load(x[i][s][r], b[r], column(step, i, g), q);
                }
            }
        }
        #pragma unroll
        for (int i = 0; i < TILES; ++i) f[i].set(x[i]);
    }
}

__device__ __forceinline__ void multiply(Acc (&d)[4], const FragmentA& a, const FragmentB& b) {
    #pragma unroll
    for (int s = 0; s < SLICES; ++s) {
        if (REFINE == 4) mma(T_LOW{}, d, a.lo[s], b.lo[s]);
        if (SPLITS_A<REFINE>) mma(T_LOW{}, d, a.lo[s], b.hi[s]);
        if (SPLITS_B<REFINE>) mma(T_LOW{}, d, a.hi[s], b.lo[s]);
    }
    #pragma unroll
    for (int s = 0; s < SLICES; ++s) mma(T_LOW{}, d, a.hi[s], b.hi[s]);
}

// The products of all strips and tiles for one slice, in turn, so that no product waits for the sum of the one before.
template <bool LOW_A, bool LOW_B>
__device__ __forceinline__ void multiply_slice(
    Acc (&d)[HEIGHT][TILES][4], const FragmentA (&a)[HEIGHT], const FragmentB (&b)[TILES], int s
) {
    #pragma unroll
    for (int i = 0; i < HEIGHT * TILES; ++i) {
        const FragmentA& x = a[i / TILES];
        const FragmentB& y = b[i % TILES];
        mma(T_LOW{}, d[i / TILES][i % TILES], LOW_A ? x.lo[s] : x.hi[s], LOW_B ? y.lo[s] : y.hi[s]);
    }
}
__device__ __forceinline__ void multiply_all(
    Acc (&d)[HEIGHT][TILES][4], const FragmentA (&a)[HEIGHT], const FragmentB (&b)[TILES]
) {
    #pragma unroll
    for (int s = 0; s < SLICES; ++s) {
        if (REFINE == 4) multiply_slice<true, true>(d, a, b, s);
        if (SPLITS_A<REFINE>) multiply_slice<true, false>(d, a, b, s);
        if (SPLITS_B<REFINE>) multiply_slice<false, true>(d, a, b, s);
    }
    #pragma unroll
    for (int s = 0; s < SLICES; ++s) multiply_slice<false, false>(d, a, b, s);
}

// Two products, one after the other.  In a single product, an Inf of B or B' times a zero of [A 0; 0 A'] would be NaN.
// Scaled operands do not need this, because they are checked for Inf and NaN.
__device__ __forceinline__ void multiply_two(Acc (&d)[4], const FragmentA& a, const FragmentB& b) {
    Acc second[4] = {};
    const unsigned upper[4] = {a.hi[0][0], 0, 0, 0}, lower[4] = {0, a.hi[0][3], 0, 0};
    const unsigned first_b[2] = {b.hi[0][0], 0}, second_b[2] = {b.hi[0][1], 0};
    mma(T_LOW{}, d, upper, first_b);
    mma(T_LOW{}, second, lower, second_b);
    d[2] = second[2];
    d[3] = second[3];
}

// The `top` of columns 2 t and 2 t + 1 of a tile, to which this lane's results belong.
struct Columns { unsigned top[LINES_B][2]; };

__device__ __forceinline__ Columns columns_of(const FragmentB& b) {
    const int t = threadIdx.x % 4;
    Columns columns;
    #pragma unroll
    for (int line = 0; line < LINES_B; ++line) {
        #pragma unroll
        for (int e = 0; e < 2; ++e) columns.top[line][e] = __shfl_sync(ALL_LANES, b.top[line], 4 * (2 * t + e));
    }
    return columns;
}

// Removes the scales of ordinary rows and columns.
template <typename T>
__device__ __forceinline__ void unscale(T (&d)[4], const FragmentA& a, const Columns& b) {
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        d[e] *= inverse_scale(a.top[e / 2]) * inverse_scale(b.top[e / 2 % LINES_B][e % 2]);
    }
}

template <typename A, typename B>
__device__ __forceinline__ float plain(const char* a, const char* b, int i, int j) {
    double sum = 0;
    #pragma unroll 1
    for (int q = 0; q < K; ++q) sum += double(A::float_at(a, i, q)) * double(B::float_at(b, j, q));
    return float(sum);
}

// Removes scales of any size.  Recomputes each result whose row of A or column of B has an Inf or NaN.
template <typename A, typename B, typename T>
__device__ __forceinline__ void unscale_any(
    T (&d)[4], const FragmentA& fa, const Columns& columns, const char* const (&a)[2], const char* const (&b)[2],
    const int (&row)[2], int step, int tile
) {
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int half = e / 2, j = column(step, tile, 2 * (threadIdx.x % 4) + e % 2);
        const unsigned top_a = fa.top[half], top_b = columns.top[half % LINES_B][e % 2];
        d[e] = scaled<T_LOW>(d[e], -(fit<T_LOW>(top_a) + fit<T_LOW>(top_b)));
        // With two products, the column of the other one is multiplied by zeros: its Inf or NaN makes the sum NaN.
        const unsigned worst = max(top_a, max(top_b, columns.top[LINES_B - 1 - half % LINES_B][e % 2]));
        if (worst >= INFINITE && row[half] < M && j < N) d[e] = plain<A, B>(a[half], b[half], row[half], j);
    }
    __syncwarp();  // the next products need the whole warp
}
