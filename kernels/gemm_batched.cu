// out[s] = alpha op(A[s]) op(B[s]) + beta c[s] for many small matrices, at the speed of memory.
//
// A block takes COUNT consecutive products at a time and copies their operands to shared memory some steps ahead (as
// one run of bytes where they lie one behind the other).  A warp multiplies HEIGHT strips of 16 rows of a product on
// the tensor cores, so that what it loads and rounds of B serves all of them.  Products of at most 8 rows and 4 words
// of k are computed two at a time, as [A 0; 0 A'] [B; B'].  Sizes are macros, so that no index is divided at run time.
//
//   a, b   STORE_A 0: A[s]_iq is a[s batch_a + i row_a + q col_a], any strides.  1: the matrices lie one behind the
//          other, rows contiguous, as op(A) (TRANS_A 0) or its transpose (1); strides are not read.  2: one matrix for
//          all s, by its strides.  b alike.  In cases 0 and 2 TRANS is 0.
//   out, c row-major with leading dimensions ld_out, ld_c, batch strides, of kind KIND (see gemm.cuh).  DENSE 1: the
//          matrices of out lie one behind the other from a 16-byte word on; its strides are not read.  ADDEND 0: c and
//          beta are not read.
//
// Dense results leave the registers in runs of 2 or 4; where rows are no whole number of runs, they are gathered in
// shared memory and leave as one run of bytes.
//
// With STORE 1 and rows of whole 16-byte words, a (b) starts on such a word.
// Grid: any, with BRIEF a block for COUNT products; block THREADS; dynamic shared memory SHARED_BYTES.
// Defines SIZE_M, SIZE_N, SIZE_K (1 to 64), THREADS, COUNT, HEIGHT, STAGES, SHARED_BYTES, T_IN (fp16, bf16,
// float, int8), T_LOW (fp16, bf16, tf32, int8), REFINE (0 to 4: none, 'a', 'b', 'ab', 'full'; 0 unless T_IN is float),
// TRANS_A, TRANS_B, STORE_A, STORE_B, KIND, ADDEND, DENSE, and for large products
//
//   BRIEF 1: a block ends after its first COUNT products, so that the device gives the next ones to whichever
//     multiprocessor is free.  Then all tiles of a step of FP32 operands are multiplied before any is looked at, so
//     that as many chains of sums as tiles overlap; else each ends in a branch before the next begins.
//   BULK  1: dense results of whole 16-byte words leave shared memory by the copy engine (compute capability 9).
//
// With one stage the copies of a block wait for its products; others on the multiprocessor work meanwhile.
//
// Rounding and scaling as in gemm.cuh, with the scales found in the registers; all k in one sum on the
// tensor cores, small products first.

#include "gemm.cuh"

constexpr int M = SIZE_M, N = SIZE_N, K = SIZE_K;
constexpr int WARPS = THREADS / WARP;
constexpr bool SCALED = SAME<T_IN, float>;
static_assert(SCALED || (SAME<T_IN, T_LOW> && REFINE == 0), "only FP32 operands are rounded");
static_assert(M >= 1 && M <= 64 && N >= 1 && N <= 64 && K >= 1 && K <= 64, "small products");
using Acc = typename Accumulator<T_LOW>::type;
static_assert(!BRIEF || STAGES == 1, "a block that ends has nothing to copy ahead");
constexpr int WORD = PER_WORD<T_LOW>, SIZE = sizeof(T_IN);
constexpr int SLICES = (K + SLICE_WORDS * WORD - 1) / (SLICE_WORDS * WORD);
constexpr bool TWO = M <= 8 && K <= 4 * WORD;             // two products at a time
constexpr int STRIPS = TWO ? 1 : (M + 15) / 16;
constexpr int PARTS = (STRIPS + HEIGHT - 1) / HEIGHT;      // tasks that a product is made of
constexpr int TASKS = TWO ? (COUNT + 1) / 2 : COUNT * PARTS;
constexpr int TILES = N > 8 ? 2 : 1;                       // of 8 columns, multiplied together
constexpr int COLS = 8 * TILES, STEPS = (N + COLS - 1) / COLS;
constexpr int STEPS_AT_ONCE = SCALED || ADDEND || HEIGHT > 1 ? 1 : 2;
constexpr int LINES_B = TWO ? 2 : 1;                       // columns that meet in a fragment of B

// ---- an operand in shared memory -----------------------------------------------------------------

// ACROSS entries along m or n, K along k.  Rows keep the order in memory.  So that what 8 of them hold at one place
// falls into different banks, units of rows of whole 16-byte words change places; rows of FP32 that fill the 128 bytes
// of all banks are padded instead.  (Copies into rows padded otherwise are slower than memory.)
template <int ACROSS, bool ALONG_K, int STORE>
struct Operand {
    static constexpr int ROWS = ALONG_K ? ACROSS : K, LENGTH = ALONG_K ? K : ACROSS, ROW_BYTES = LENGTH * SIZE;
    static constexpr bool WHOLE = ROW_BYTES % 16 == 0;
    // 8 x 8 blocks of 16-bit numbers, which ldmatrix takes as they are.
    static constexpr bool BLOCKS = !SCALED && SIZE == 2 && WHOLE && K % 8 == 0;
    static constexpr int PITCH = SCALED && ROW_BYTES % 128 == 0 ? ROW_BYTES + 16 : ROW_BYTES;
    static constexpr int MATRIX_BYTES = ROWS * PITCH;
    // A run of bytes that starts inside a 16-byte word keeps its place in it.
    static constexpr int BYTES = (((STORE == 2 ? 1 : COUNT) * MATRIX_BYTES + 15) & ~15) + (WHOLE ? 0 : 16);
    // Units that are read at a time, how many of them the banks hold, and in groups of how many they change places.
    static constexpr int UNIT = SCALED ? 32 : 16, IN_BANKS = 128 / UNIT;
    static constexpr int MIXED = !WHOLE || PITCH != ROW_BYTES || ROW_BYTES % (2 * UNIT) != 0 ? 1
                                 : ROW_BYTES % (8 * UNIT) == 0 && IN_BANKS == 8 ? 8
                                 : ROW_BYTES % (4 * UNIT) == 0 ? 4 : 2;

    // Where byte `byte` of a row is.
    __device__ __forceinline__ static int place(int row, int byte) {
        return row * PITCH + (byte ^ row / (IN_BANKS / MIXED) % MIXED * UNIT);
    }

    __device__ __forceinline__ static const char* matrix(const char* stage, const T_IN* x, Index first, int s) {
        if (STORE == 2) return stage;
        const int shift = STORE == 1 && !WHOLE ? start(x, first) & 15 : 0;
        return stage + shift + s * MATRIX_BYTES;
    }

    // WORD numbers of row or column i from q on, zero from K on.  A row that does not exist reads as the last one,
    // for results that nobody stores.
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

    // The same of columns i and i + 1, i even.
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

    // Row r of the block at entry 8 x across and 8 z along k, or of another block if that does not exist.
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
            // A step is a number of rows that leaves the places in them alone.
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
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes) : "memory");
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
// One matrix for all products comes first, and once; the stages follow.
constexpr int KEPT_A = STORE_A == 2 ? OperandA::BYTES : 0, KEPT_B = STORE_B == 2 ? OperandB::BYTES : 0;
constexpr int STAGE_A = OperandA::BYTES - KEPT_A, STAGE_BYTES = STAGE_A + OperandB::BYTES - KEPT_B;

// ---- the result --------------------------------------------------------------------------------------

constexpr int OUT_SIZE = KIND == KIND_FP32 || KIND == KIND_INT32 ? 4 : 2;
// Two tiles of B that are loaded entry by entry share its columns in turn, so that a lane has 4 neighbours of a row.
constexpr bool IN_TURN = TILES == 2 && !OperandB::BLOCKS;
// Other neighbours are traded between lanes for 4 of them, if these are short or far from those of the next row.
constexpr bool TRADED = TILES == 2 && !IN_TURN && DENSE && N % 8 == 0 && (OUT_SIZE == 2 || N >= 32);
constexpr int RUN = IN_TURN || TRADED ? 4 : 2;
constexpr bool IN_RUNS = DENSE && N % RUN == 0, GATHERED = DENSE && (!IN_RUNS || BULK);
// What a warp gathers: its rows of a result, or two results, from their place in a 16-byte word on.
constexpr int GATHERED_ROWS = TWO ? 2 * M : M < 16 * HEIGHT ? M : 16 * HEIGHT;
static_assert(!BULK || (DENSE && M * N * OUT_SIZE % 16 == 0), "whole words are copied");
constexpr int GATHERED_BYTES = GATHERED ? ((GATHERED_ROWS * N * OUT_SIZE + 15) & ~15) + 16 : 0;
// So that the host and this file agree: SHARED_BYTES is what the host allots.
static_assert(
    KEPT_A + KEPT_B + STAGES * STAGE_BYTES + WARPS * GATHERED_BYTES == SHARED_BYTES,
    "shared memory as the host computed it"
);

__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING> __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}

// ---- fragments -----------------------------------------------------------------------------------

__device__ __forceinline__ unsigned larger(unsigned top, float x) {
#if __CUDA_ARCH__ >= 800
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(__uint_as_float(top)), "f"(fabsf(x)));
    return __float_as_uint(y);
#else
    return max(top, bits_of_size(x));
#endif
}

// The larger of `top` in the four lanes that hold a row (column) together.
__device__ __forceinline__ unsigned top_of_line(unsigned top) {
    top = max(top, __shfl_xor_sync(ALL_LANES, top, 1));
    return max(top, __shfl_xor_sync(ALL_LANES, top, 2));
}

// Bits of 2^fit(top) but for zero, Inf and NaN, whose scales do not matter, and of its inverse for an ordinary top.
constexpr unsigned EXPONENT = 0xff800000u;
__device__ __forceinline__ float scale_for(unsigned top) {
    return __uint_as_float(min((267u << 23) - (top & EXPONENT), unsigned(LARGEST_EXPONENT + 127) << 23));
}
__device__ __forceinline__ float inverse_scale(unsigned top) { return __uint_as_float((top & EXPONENT) - (13u << 23)); }

// True if 2^fit(top) is between 2^-60 and 2^60, so that the scales of a row and a column multiply without care.
__device__ __forceinline__ bool ordinary(unsigned top) { return top - (80u << 23) < 121u << 23; }

// What a register of a fragment is made from.
template <typename T> struct Raw { using type = unsigned; };
template <> struct Raw<float> { using type = float[WORD]; };
using Entries = typename Raw<T_IN>::type;

// LINES rows or columns that meet in one fragment, of 4 (A) or 2 (B) registers a slice; register r is of line
// r % LINES, and zero unless it is one of USED.
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

    __device__ __forceinline__ void set(const float (&x)[SLICES][REGISTERS][WORD]) {
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
            top[line] = top_of_line(top[line]);
            scale[line] = scale_for(top[line]);
        }
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

    __device__ __forceinline__ bool is_ordinary() const {
        bool all = true;
        #pragma unroll
        for (int line = 0; line < LINES; ++line) all = all && ordinary(top[line]);
        return all;
    }
};

// Of [A 0; 0 A'] registers 1 and 2 are zero.
using FragmentA = Fragment<4, 2, TWO ? 9u : 15u, SPLITS_A<REFINE>>;
using FragmentB = Fragment<2, LINES_B, 3u, SPLITS_B<REFINE>>;

// Blocks of 8 x 8 16-bit numbers whose rows the lanes name, 8 lanes a block.
template <bool TURNED> __device__ __forceinline__ void load_blocks(unsigned (&x)[4], const char* row) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    }
}
template <bool TURNED> __device__ __forceinline__ void load_blocks(unsigned (&x)[2], const char* row) {
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
    }
}

// Where along k, in words, register half `half` of a slice is; any order will do that A and B share.  Rows that end
// near a multiple of 64 bytes put neighbours of a column into the same banks, unless each lane has its own run of 4
// words (2 in the last slice of an odd number).
__device__ constexpr bool near_banks(int row_bytes) { return row_bytes % 16 != 0 && (row_bytes + 8) % 64 <= 16; }
constexpr bool IN_LANE_RUNS = !TWO && near_banks(OperandA::ROW_BYTES) && near_banks(OperandB::ROW_BYTES);
__device__ __forceinline__ int word_of(int slice, int half, int t) {
    if (TWO) return t;
    if (!IN_LANE_RUNS) return slice * SLICE_WORDS + t + 4 * half;
    if (slice == SLICES - 1 && SLICES % 2 == 1) return slice * SLICE_WORDS + 2 * t + half;
    return slice / 2 * (2 * SLICE_WORDS) + 4 * t + slice % 2 * 2 + half;
}

// Rows row0 to row0 + 15 of a matrix, or the 8 of each of two.
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

// Column of op(B) that column g of tile `tile` multiplies.
__device__ __forceinline__ int column(int step, int tile, int g) {
    return step * COLS + (IN_TURN ? 2 * g + tile : 8 * tile + g);
}

// The columns of one step of a matrix, or of two.
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

// The same of all strips and tiles, in turn at every slice, so that their sums need not wait for themselves.
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

// Two products apart, because 0 Inf of the zeros that part them is NaN; rounded operands are looked at anyway.
__device__ __forceinline__ void multiply_two(Acc (&d)[4], const FragmentA& a, const FragmentB& b) {
    Acc second[4] = {};
    const unsigned upper[4] = {a.hi[0][0], 0, 0, 0}, lower[4] = {0, a.hi[0][3], 0, 0};
    const unsigned first_b[2] = {b.hi[0][0], 0}, second_b[2] = {b.hi[0][1], 0};
    mma(T_LOW{}, d, upper, first_b);
    mma(T_LOW{}, second, lower, second_b);
    d[2] = second[2];
    d[3] = second[3];
}

// ---- scales undone ---------------------------------------------------------------------------------

// Of the columns 2 t and 2 t + 1 of a tile, which this lane's results are of.
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

// Scales of ordinary rows and columns.
template <typename T>
__device__ __forceinline__ void unscale(T (&d)[4], const FragmentA& a, const Columns& b) {
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        d[e] *= inverse_scale(a.top[e / 2]) * inverse_scale(b.top[e / 2 % LINES_B][e % 2]);
    }
}

template <typename A, typename B>
__device__ __forceinline__ float plain(const char* a, const char* b, int i, int j) {
    float sum = 0;
    #pragma unroll 1
    for (int q = 0; q < K; ++q) sum += A::float_at(a, i, q) * B::float_at(b, j, q);
    return sum;
}

// Any scales, and Inf and NaN.
template <typename A, typename B, typename T>
__device__ __forceinline__ void unscale_any(
    T (&d)[4], const FragmentA& fa, const Columns& columns, const char* const (&a)[2], const char* const (&b)[2],
    const int (&row)[2], int step, int tile
) {
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int half = e / 2, j = column(step, tile, 2 * (threadIdx.x % 4) + e % 2);
        const unsigned top_a = fa.top[half], top_b = columns.top[half % LINES_B][e % 2];
        d[e] = scaled(d[e], -(fit(top_a) + fit(top_b)));
        // The columns of two products meet in one sum.
        const unsigned worst = max(top_a, max(top_b, columns.top[LINES_B - 1 - half % LINES_B][e % 2]));
        if (worst >= INFINITE && row[half] < M && j < N) d[e] = plain<A, B>(a[half], b[half], row[half], j);
    }
}

// ---- the last step -----------------------------------------------------------------------------------

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
    // Modulo 2^32, as C has it.
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

// This lane's part of one row of a step, in the order of column(), to `row` if that exists.
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

// Writes `bytes` gathered bytes to `to`; their place in a 16-byte word is the same in both.
__device__ __forceinline__ void write_run(char* to, const char* gathered, int bytes) {
    const int lane = threadIdx.x % WARP, shift = place_in_word(to), end = shift + bytes;
    const int first = (shift + 15) & ~15, last = end & ~15;
    to -= shift;
    for (int at = first + 16 * lane; at < last; at += 16 * WARP) {
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(gathered + at);
    }
    // What is no whole word: half of the lanes before, half behind.
    const int edge = lane < 16 ? shift + lane * OUT_SIZE : max(first, last) + (lane - 16) * OUT_SIZE;
    if (edge < (lane < 16 ? min(first, end) : end)) {
        const void* const from = __builtin_assume_aligned(gathered + edge, OUT_SIZE);
        memcpy(__builtin_assume_aligned(to + edge, OUT_SIZE), from, OUT_SIZE);
    }
}

// The same by one bulk copy of whole words, which reads `gathered` until wait_for_bulk.
__device__ __forceinline__ void write_bulk(char* to, const char* gathered, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x % WARP == 0) {
        const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(gathered));
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     :: "l"(to), "r"(from), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
#endif
}

// This warp's bulk copies have read what it gathered.
__device__ __forceinline__ void wait_for_bulk() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % WARP == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
    __syncwarp();
}

// ---- one task: HEIGHT strips of a product, or two products -------------------------------------------

template <bool IS_SCALED>
__device__ __forceinline__ void compute(
    const Batch& batch, const char* stage_a, const char* stage_b, const T_IN* from_a, const T_IN* from_b,
    Index first, int count, int task, char* gathered
) {
    const int g = threadIdx.x % WARP / 4;
    const int s = TWO ? 2 * task : task / PARTS, row0 = TWO ? 0 : task % PARTS * (16 * HEIGHT);
    if (s >= count) return;
    const bool second = !TWO || s + 1 < count;
    const int other = TWO && second ? s + 1 : s;
    const char* const a[2] = {
        OperandA::matrix(stage_a, from_a, first, s), OperandA::matrix(stage_a, from_a, first, other)
    };
    const char* const b[2] = {
        OperandB::matrix(stage_b, from_b, first, s), OperandB::matrix(stage_b, from_b, first, other)
    };
    char* const out = batch.row_of_out(first, s, row0);
    if (GATHERED) gathered += place_in_word(out);

    const auto row_of = [&](int strip, int half) { return row0 + 16 * strip + g + (TWO ? 0 : 8 * half); };
    FragmentA fa[HEIGHT];
    bool ordinary_a = true;
    #pragma unroll
    for (int strip = 0; strip < HEIGHT; ++strip) {
        load_rows(fa[strip], a, row0 + 16 * strip);
        if constexpr (IS_SCALED) ordinary_a = ordinary_a && fa[strip].is_ordinary();
    }
    if (BULK) wait_for_bulk();  // of the task before
    #pragma unroll (STEPS_AT_ONCE)
    for (int step = 0; step < STEPS; ++step) {
        FragmentB fb[TILES];
        load_columns(fb, b, step);
        Columns columns[TILES];
        bool all_ordinary = true;
        if constexpr (IS_SCALED) {
            bool mine = ordinary_a;
            #pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                columns[tile] = columns_of(fb[tile]);
                mine = mine && fb[tile].is_ordinary();
            }
            all_ordinary = __all_sync(ALL_LANES, mine);
        }
        const auto put_strip = [&](int strip, const Acc (&d)[TILES][4]) {
            const int row[2] = {row_of(strip, 0), row_of(strip, 1)};
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int product = TWO && half ? s + 1 : s;
                const bool exists = row[half] < M && (half == 0 || second);
                const int local = (TWO ? half * M : 0) + row[half] - row0;
                char* const to = DENSE ? (GATHERED ? gathered : out) + local * (N * OUT_SIZE)
                                 : batch.row_of_out(first, product, row[half]);
                const char* const old = ADDEND ? batch.row_of_c(first, product, row[half]) : nullptr;
                Acc x[2 * TILES];
                #pragma unroll
                for (int e = 0; e < 2 * TILES; ++e) {
                    x[e] = IN_TURN ? d[e % 2][2 * half + e / 2] : d[e / 2][2 * half + e % 2];
                }
                put_row(batch, to, old, exists, step, x);
            }
        };
        const auto mend = [&](Acc (&d)[4], int strip, int tile) {
            const int row[2] = {row_of(strip, 0), row_of(strip, 1)};
            unscale_any<OperandA, OperandB>(d, fa[strip], columns[tile], a, b, row, step, tile);
        };
        if constexpr (IS_SCALED && BRIEF) {
            Acc d[HEIGHT][TILES][4] = {};
            multiply_all(d, fa, fb);
            if (__builtin_expect(all_ordinary, true)) {
                #pragma unroll
                for (int i = 0; i < HEIGHT * TILES; ++i) {
                    unscale(d[i / TILES][i % TILES], fa[i / TILES], columns[i % TILES]);
                }
            } else {
                #pragma unroll
                for (int i = 0; i < HEIGHT * TILES; ++i) mend(d[i / TILES][i % TILES], i / TILES, i % TILES);
            }
            #pragma unroll
            for (int strip = 0; strip < HEIGHT; ++strip) put_strip(strip, d[strip]);
        } else {
            #pragma unroll
            for (int strip = 0; strip < HEIGHT; ++strip) {
                Acc d[TILES][4] = {};
                #pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    if (TWO && !SCALED) multiply_two(d[tile], fa[strip], fb[tile]);
                    else multiply(d[tile], fa[strip], fb[tile]);
                    if constexpr (IS_SCALED) {
                        if (all_ordinary) unscale(d[tile], fa[strip], columns[tile]);
                        else mend(d[tile], strip, tile);
                    }
                }
                put_strip(strip, d);
            }
        }
    }
    if (BULK) {
        const int rows = TWO ? (second ? 2 * M : M) : min(16 * HEIGHT, M - row0);
        write_bulk(out, gathered, rows * N * OUT_SIZE);
    } else if (GATHERED) {
        __syncwarp();
        const int rows = TWO ? (second ? 2 * M : M) : min(16 * HEIGHT, M - row0);
        write_run(out, gathered - place_in_word(out), rows * N * OUT_SIZE);
        __syncwarp();  // the next task gathers in the same place
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_gemm_batched(
    void* out, Index batch_out, Index ld_out, const void* c, Index batch_c, Index ld_c,
    const T_IN* __restrict__ a, Index batch_a, Index row_a, Index col_a,
    const T_IN* __restrict__ b, Index batch_b, Index row_b, Index col_b,
    Index products, double alpha, double beta
) {
    extern __shared__ __align__(16) char memory[];
    char* const kept_b = memory + KEPT_A;
    char* const stages = kept_b + KEPT_B;
    char* const gathered = stages + STAGES * STAGE_BYTES + threadIdx.x / WARP * GATHERED_BYTES;
    if (STORE_A == 2) OperandA::copy(memory, a, 0, 1, 0, row_a, col_a);
    if (STORE_B == 2) OperandB::copy(kept_b, b, 0, 1, 0, row_b, col_b);

    const Batch batch = {
        static_cast<char*>(out), static_cast<const char*>(c), batch_out, ld_out, batch_c, ld_c,
        scalar<Acc>(alpha), scalar<Acc>(beta)
    };
    const Index chunks = (products + COUNT - 1) / COUNT;
    const auto count_from = [&](Index first) {
        return BRIEF && COUNT == 1 ? 1 : int(min(Index(COUNT), products - first));
    };
    const auto fetch = [&](Index chunk, int stage) {
        if (chunk < chunks) {
            char* const to = stages + stage * STAGE_BYTES;
            const Index first = chunk * COUNT;
            const int count = count_from(first);
            if (STORE_A != 2) OperandA::copy(to, a, first, count, batch_a, row_a, col_a);
            if (STORE_B != 2) OperandB::copy(to + STAGE_A, b, first, count, batch_b, row_b, col_b);
        }
        commit();
    };
    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(blockIdx.x + Index(s) * gridDim.x, s);
    int stage = 0, ahead = STAGES - 1;
    for (Index chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        if (STAGES == 1) {
            if (!BRIEF) __syncthreads();  // all warps are done with the chunk before
            fetch(chunk, 0);
        }
        wait<(STAGES > 1 ? STAGES - 2 : 0)>();
        __syncthreads();  // this chunk has arrived, and all warps are done with the one before
        if (STAGES > 1) fetch(chunk + Index(STAGES - 1) * gridDim.x, ahead);
        const Index first = chunk * COUNT;
        const int count = count_from(first);
        const char* const here = stages + stage * STAGE_BYTES;
        #pragma unroll 1
        for (int task = threadIdx.x / WARP; task < TASKS; task += WARPS) {
            compute<SCALED>(batch, STORE_A == 2 ? memory : here, STORE_B == 2 ? kept_b : here + STAGE_A, a, b,
                    first, count, task, gathered);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        ahead = ahead + 1 == STAGES ? 0 : ahead + 1;
        if (BRIEF) break;
    }
    if (BULK) wait_for_bulk();  // or they would read what is no longer this block's
}
