// out[s] = alpha op(A[s]) op(B[s]) + beta c[s] for many small matrices, at the speed of memory.
//
// A block takes COUNT consecutive products at a time, copies their operands to shared memory some steps ahead
// (as one run of bytes where they lie one behind the other), and a warp multiplies 16 rows of a product on the tensor
// cores; results go from registers to memory in runs of four.  Products of at most 8 rows and 4 words of k are
// computed two at a time, as [A 0; 0 A'] [B; B'].  Sizes are macros, so that no index is divided at run time.
//
//   a, b   STORE_A 0: A[s]_iq is a[s batch_a + i row_a + q col_a], any strides.  1: the matrices lie one behind the
//          other, rows contiguous, as op(A) (TRANS_A 0) or its transpose (1); strides are not read.  2: one matrix for
//          all s, by its strides.  b alike.  In cases 0 and 2 TRANS is 0.
//   out, c row-major with leading dimensions ld_out, ld_c, batch strides, of `kind` (see gemm.cuh); c is not read if
//          beta = 0
//
// With STORE 1 and rows of whole 16-byte words, a (b) starts on such a word.
// Grid: any; block 128; dynamic shared memory SHARED_BYTES.
// Defines SIZE_M, SIZE_N, SIZE_K (1 to 64), COUNT, STAGES (2 or 3), SHARED_BYTES, T_IN (fp16, bf16, float, int8),
// T_LOW (fp16, bf16, tf32, int8), REFINE (0 to 4: none, 'a', 'b', 'ab', 'full'; 0 unless T_IN is float), TRANS_A,
// TRANS_B, STORE_A, STORE_B.
//
// Rounding and scaling as in gemm.cuh, with the scales found in the registers; all k in one sum on the
// tensor cores, small products first.

#include "gemm.cuh"

constexpr int M = SIZE_M, N = SIZE_N, K = SIZE_K;
constexpr int THREADS = 128, WARPS = THREADS / WARP;
constexpr bool SCALED = SAME<T_IN, float>;
static_assert(SCALED || (SAME<T_IN, T_LOW> && REFINE == 0), "only FP32 operands are rounded");
static_assert(M >= 1 && M <= 64 && N >= 1 && N <= 64 && K >= 1 && K <= 64, "small products");
static_assert(STAGES >= 2, "copies run ahead");
using Acc = typename Accumulator<T_LOW>::type;
constexpr int WORD = PER_WORD<T_LOW>, SIZE = sizeof(T_IN);
constexpr int SLICES = (K + SLICE_WORDS * WORD - 1) / (SLICE_WORDS * WORD);
constexpr bool TWO = M <= 8 && K <= 4 * WORD;             // two products at a time
constexpr int STRIPS = TWO ? 1 : (M + 15) / 16;
constexpr int TASKS = TWO ? (COUNT + 1) / 2 : COUNT * STRIPS;
constexpr int TILES = N > 8 ? 2 : 1;                       // of 8 columns, multiplied together
constexpr int COLS = 8 * TILES, STEPS = (N + COLS - 1) / COLS;

// ---- an operand in shared memory -----------------------------------------------------------------

// ACROSS entries along m or n, K along k.  Rows keep the order in memory; whole 16-byte rows are padded to an odd
// number of words, so that 8 of them fall into different banks.
template <int ACROSS, bool ALONG_K, int STORE>
struct Operand {
    static constexpr int ROWS = ALONG_K ? ACROSS : K, LENGTH = ALONG_K ? K : ACROSS, ROW_BYTES = LENGTH * SIZE;
    static constexpr bool WHOLE = ROW_BYTES % 16 == 0;
    static constexpr int PITCH = WHOLE && ROW_BYTES / 16 % 2 == 0 ? ROW_BYTES + 16 : ROW_BYTES;
    static constexpr int MATRIX_BYTES = ROWS * PITCH;
    // A run of bytes that starts inside a 16-byte word keeps its place in it.
    static constexpr int BYTES = (((STORE == 2 ? 1 : COUNT) * MATRIX_BYTES + 15) & ~15) + (WHOLE ? 0 : 16);

    __device__ __forceinline__ static const char* matrix(const char* stage, const T_IN* x, Index first, int s) {
        if (STORE == 2) return stage;
        const int shift = STORE == 1 && !WHOLE ? start(x, first) & 15 : 0;
        return stage + shift + s * MATRIX_BYTES;
    }

    __device__ __forceinline__ static T_IN entry(const char* matrix, int i, int q) {
        const int row = ALONG_K ? i : q, col = ALONG_K ? q : i;
        return *reinterpret_cast<const T_IN*>(matrix + row * PITCH + col * SIZE);
    }

    // WORD entries of row or column i from q on, zero outside.
    __device__ __forceinline__ static void load(T_IN (&x)[WORD], const char* matrix, int i, int q) {
        if (ALONG_K && WHOLE && i < ACROSS && q < K) {
            memcpy(x, __builtin_assume_aligned(matrix + i * PITCH + q * SIZE, WORD * SIZE), WORD * SIZE);
            return;
        }
        #pragma unroll
        for (int e = 0; e < WORD; ++e) x[e] = i < ACROSS && q + e < K ? entry(matrix, i, q + e) : T_IN{};
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
        const int shift = int(from & 15), end = shift + count * ROWS * ROW_BYTES;
        const char* words = reinterpret_cast<const char*>(from - shift);
        #pragma unroll 4
        for (int at = 16 * threadIdx.x; at < end; at += 16 * THREADS) {
            const int to = WHOLE ? at / ROW_BYTES * PITCH + at % ROW_BYTES : at;
            copy_word(stage + to, words + at, min(16, end - at));
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
            char* const to = stage + s * MATRIX_BYTES + i * PITCH + j * SIZE;
            *reinterpret_cast<T_IN*>(to) = x[s * batch + i * row + j * col];
        }
    }
};

using OperandA = Operand<M, !TRANS_A, STORE_A>;
using OperandB = Operand<N, TRANS_B, STORE_B>;
// One matrix for all products comes first, and once; the stages follow.
constexpr int KEPT_A = STORE_A == 2 ? OperandA::BYTES : 0, KEPT_B = STORE_B == 2 ? OperandB::BYTES : 0;
constexpr int STAGE_A = OperandA::BYTES - KEPT_A, STAGE_BYTES = STAGE_A + OperandB::BYTES - KEPT_B;
// So that the host and this file agree: SHARED_BYTES is what the host allots.
static_assert(KEPT_A + KEPT_B + STAGES * STAGE_BYTES == SHARED_BYTES, "shared memory as the host computed it");

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

// The larger of `top` and the bits of |x| in the four lanes that hold a row (column) together.
__device__ __forceinline__ unsigned top_of_line(unsigned top) {
    top = max(top, __shfl_xor_sync(ALL_LANES, top, 1));
    return max(top, __shfl_xor_sync(ALL_LANES, top, 2));
}

// WORDS words of each of two lines that meet in one fragment, of 4 (A) or 2 (B) registers a slice.
template <int REGISTERS, bool SPLIT>
struct Fragment {
    unsigned hi[SLICES][REGISTERS], lo[SLICES][REGISTERS];
    unsigned top[2];

    // `line(r)`: which of the two scales register r has; `load(x, slice, r)` fetches its entries.
    template <typename Line, typename Load>
    __device__ __forceinline__ void fetch(Line line, Load load) {
        if constexpr (SCALED) {
            float x[SLICES][REGISTERS][WORD];
            top[0] = top[1] = 0;
            #pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                #pragma unroll
                for (int r = 0; r < REGISTERS; ++r) {
                    load(x[s][r], s, r);
                    #pragma unroll
                    for (int e = 0; e < WORD; ++e) top[line(r)] = max(top[line(r)], bits_of_size(x[s][r][e]));
                }
            }
            top[0] = top_of_line(top[0]);
            top[1] = top_of_line(top[1]);
            const float scale[2] = {power_of_two(fit(top[0])), power_of_two(fit(top[1]))};
            #pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                #pragma unroll
                for (int r = 0; r < REGISTERS; ++r) {
                    const Parts parts = parts_of<T_LOW, SPLIT>(x[s][r], scale[line(r)]);
                    hi[s][r] = parts.hi;
                    lo[s][r] = parts.lo;
                }
            }
        } else {
            #pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                #pragma unroll
                for (int r = 0; r < REGISTERS; ++r) {
                    T_IN x[WORD];
                    load(x, s, r);
                    memcpy(&hi[s][r], x, 4);
                }
            }
        }
    }
};

using FragmentA = Fragment<4, SPLITS_A<REFINE>>;
using FragmentB = Fragment<2, SPLITS_B<REFINE>>;

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

// ---- one task: 16 rows of a product, or two products ------------------------------------------------

struct Batch {
    Target target;
    Index batch_out, batch_c;

    __device__ __forceinline__ Target at(Index s) const {
        const Index size = target.kind == KIND_FP32 || target.kind == KIND_INT32 ? 4 : 2;
        Target one = target;
        one.out = static_cast<char*>(target.out) + s * batch_out * size;
        one.c = static_cast<const char*>(target.c) + s * batch_c * size;
        return one;
    }
};

template <typename A, typename B>
__device__ __forceinline__ float plain(const char* a, const char* b, int i, int j) {
    float sum = 0;
    #pragma unroll 1
    for (int q = 0; q < K; ++q) sum += A::entry(a, i, q) * B::entry(b, j, q);
    return sum;
}

// Undoes the scales of the rows and columns of one fragment of C.
template <typename A, typename B, typename T>
__device__ __forceinline__ void unscale(
    T (&d)[4], const unsigned (&rows)[2], const unsigned (&cols)[2], const char* const (&a)[2],
    const char* const (&b)[2], const int (&row)[2], int col
) {
    const int t = threadIdx.x % 4;
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int half = e / 2, j = col + e % 2;
        const unsigned column = __shfl_sync(ALL_LANES, cols[TWO ? half : 0], 4 * (2 * t + e % 2));
        d[e] = scaled(d[e], -(fit(rows[half]) + fit(column)));
        const bool broken = max(rows[half], column) >= INFINITE;
        if (broken && row[half] < M && j < N) d[e] = plain<A, B>(a[half], b[half], row[half], j);
    }
}
__device__ __forceinline__ void put_four(const Target& to, Index i, Index j, const float (&x)[4]) {
    const Index at = i * to.ld_out + j;
    if (to.kind == KIND_FP32) {
        *reinterpret_cast<float4*>(static_cast<float*>(to.out) + at) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
    const float first[2] = {x[0], x[1]}, second[2] = {x[2], x[3]};
    const uint2 words = to.kind == KIND_FP16 ? make_uint2(pack<fp16>(first), pack<fp16>(second))
                                             : make_uint2(pack<bf16>(first), pack<bf16>(second));
    *reinterpret_cast<uint2*>(static_cast<unsigned short*>(to.out) + at) = words;
}
__device__ __forceinline__ void put_four(const Target& to, Index i, Index j, const int (&x)[4]) {
    *reinterpret_cast<int4*>(static_cast<int*>(to.out) + i * to.ld_out + j) = make_int4(x[0], x[1], x[2], x[3]);
}

// RUN = 2 TILES neighbours in row i from column j on.
template <int RUN>
__device__ __forceinline__ void store(const Target& to, bool in_runs, int i, int j, Acc (&x)[RUN]) {
    if (i >= M || j >= N) return;
    #pragma unroll
    for (int e = 0; e < RUN; ++e) if (j + e < N) x[e] = to.result(x[e], i, j + e);
    if (in_runs && j + RUN <= N) {
        if constexpr (RUN == 4) put_four(to, i, j, x);
        else to.put_pair(i, j, x[0], x[1]);
        return;
    }
    #pragma unroll
    for (int e = 0; e < RUN; ++e) if (j + e < N) to.put(i, j + e, x[e]);
}

// Column of op(B) that column g of tile `tile` multiplies: with two tiles, a lane's results are 4 neighbours.
__device__ __forceinline__ int column(int step, int tile, int g) {
    return TILES == 1 ? step * COLS + g : step * COLS + g / 2 * 4 + tile * 2 + g % 2;
}

template <bool IS_SCALED>
__device__ __forceinline__ void compute(
    const Batch& batch, bool in_runs, const char* stage_a, const char* stage_b, const T_IN* from_a, const T_IN* from_b,
    Index first, int count, int task
) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int s = TWO ? 2 * task : task / STRIPS, row0 = TWO ? 0 : task % STRIPS * 16;
    const bool exists[2] = {s < count, TWO ? s + 1 < count : s < count};
    if (!exists[0]) return;
    const int other = TWO && exists[1] ? s + 1 : s;
    const char* const a[2] = {
        OperandA::matrix(stage_a, from_a, first, s), OperandA::matrix(stage_a, from_a, first, other)
    };
    const char* const b[2] = {
        OperandB::matrix(stage_b, from_b, first, s), OperandB::matrix(stage_b, from_b, first, other)
    };
    const int row[2] = {row0 + g, TWO ? g : row0 + g + 8};

    FragmentA fa;
    fa.fetch([](int r) { return r % 2; }, [&](T_IN (&x)[WORD], int slice, int r) {
        // Of [A 0; 0 A'] registers 1 and 2 are zero.
        if (TWO && (r == 1 || r == 2)) {
            #pragma unroll
            for (int e = 0; e < WORD; ++e) x[e] = T_IN{};
        } else {
            OperandA::load(x, a[r % 2], row[r % 2], (slice * SLICE_WORDS + t + (TWO ? 0 : r / 2 * 4)) * WORD);
        }
    });
    const Target targets[2] = {batch.at(first + s), batch.at(first + other)};
    #pragma unroll (SCALED ? 1 : 2)
    for (int step = 0; step < STEPS; ++step) {
        Acc d[TILES][4] = {};
        #pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            FragmentB fb;
            const int mine = column(step, tile, g);
            fb.fetch([](int r) { return TWO ? r : 0; }, [&](T_IN (&x)[WORD], int slice, int r) {
                OperandB::load(x, b[r], mine, (slice * SLICE_WORDS + t + (TWO ? 0 : r * 4)) * WORD);
            });
            multiply(d[tile], fa, fb);
            if constexpr (IS_SCALED) {
                unscale<OperandA, OperandB>(d[tile], fa.top, fb.top, a, b, row, column(step, tile, 2 * t));
            }
        }
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!exists[half]) continue;
            Acc run[2 * TILES];
            #pragma unroll
            for (int e = 0; e < 2 * TILES; ++e) run[e] = d[e / 2][2 * half + e % 2];
            store(targets[half], in_runs, row[half], step * COLS + 2 * TILES * t, run);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_gemm_batched(
    void* out, Index batch_out, Index ld_out, Index kind, const void* c, Index batch_c, Index ld_c,
    const T_IN* __restrict__ a, Index batch_a, Index row_a, Index col_a,
    const T_IN* __restrict__ b, Index batch_b, Index row_b, Index col_b,
    Index products, double alpha, double beta
) {
    extern __shared__ __align__(16) char memory[];
    char* const kept_b = memory + KEPT_A;
    char* const stages = kept_b + KEPT_B;
    if (STORE_A == 2) OperandA::copy(memory, a, 0, 1, 0, row_a, col_a);
    if (STORE_B == 2) OperandB::copy(kept_b, b, 0, 1, 0, row_b, col_b);

    const Batch batch = {{out, c, ld_out, ld_c, M, N, int(kind), alpha, beta}, batch_out, batch_c};
    const Index size = kind == KIND_FP32 || kind == KIND_INT32 ? 4 : 2;
    const Index places = reinterpret_cast<unsigned long long>(out) | batch_out * size | ld_out * size;
    const bool in_runs = (places & (2 * TILES * size - 1)) == 0;

    const Index chunks = (products + COUNT - 1) / COUNT;
    const auto fetch = [&](Index chunk, int stage) {
        if (chunk < chunks) {
            char* const to = stages + stage * STAGE_BYTES;
            const Index first = chunk * COUNT;
            const int count = int(min(Index(COUNT), products - first));
            if (STORE_A != 2) OperandA::copy(to, a, first, count, batch_a, row_a, col_a);
            if (STORE_B != 2) OperandB::copy(to + STAGE_A, b, first, count, batch_b, row_b, col_b);
        }
        commit();
    };
    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(blockIdx.x + Index(s) * gridDim.x, s);
    int stage = 0, ahead = STAGES - 1;
    for (Index chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        wait<STAGES - 2>();
        __syncthreads();  // this chunk has arrived, and all warps are done with the one before
        fetch(chunk + Index(STAGES - 1) * gridDim.x, ahead);
        const Index first = chunk * COUNT;
        const int count = int(min(Index(COUNT), products - first));
        const char* const here = stages + stage * STAGE_BYTES;
        #pragma unroll 1
        for (int task = threadIdx.x / WARP; task < TASKS; task += WARPS) {
            compute<SCALED>(batch, in_runs, STORE_A == 2 ? memory : here, STORE_B == 2 ? kept_b : here + STAGE_A, a, b,
                    first, count, task);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        ahead = ahead + 1 == STAGES ? 0 : ahead + 1;
    }
}
