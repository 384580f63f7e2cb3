// C = alpha op(A) op(B) + beta C with tiles of C of 128 rows: operands shared in shared memory, loaded ahead.
//
// Second step of the ladder naive -> wmma -> wgmma.  What it adds: a tile of each operand is read from global
// memory once for 128 rows (128 or 256 columns) of C, 16 bytes a thread; copies run STAGES - 1 tiles ahead of
// the tensor cores (cp.async from sm_80 on, ordinary loads before), fragments one slice ahead, also from one
// tile to the next; chunks of 16 bytes are swizzled so that neither copies nor fragments meet bank
// conflicts (SWIZZLE 0 leaves that out, to show what it is worth).
//
//   a, b   TRANS_A 0: a is op(A), m x k, rows contiguous; 1: a is its transpose, k x m, rows contiguous.
//          TRANS_B 0: b is op(B), k x n; 1: its transpose, n x k.  Leading dimensions ld_a, ld_b, in entries.
//          Rows that start on 16-byte boundaries are copied fast; others entry by entry.
//   full_a, full_b  for scaled operands the FP32 op(A) (m x k) and op(B) (k x n) by strides, and top_a, top_b,
//          bits of max |a_i.| and max |b_.j| (tcs_tops); else null
//   out, c row-major with leading dimensions ld_out, ld_c, of `kind` (see gemm.cuh); c is not read if beta = 0
//
// Grid ceil(m / 128) ceil(n / BLOCK_N), block and dynamic shared memory as wmma_shape has them (kernels/__init__.py).
// Defines T_IN (fp16, bf16, float, int8), T_LOW (fp16, bf16, tf32, int8), REFINE (0 to 4: none, 'a', 'b',
// 'ab', 'full'; 0 unless T_IN is float), TRANS_A, TRANS_B, SWIZZLE, WIDE (1: 256 columns and one block a
// multiprocessor, for large products, from sm_80 on where shared memory is large; 0 if T_IN is float).
//
// For T_IN float the split is part of loading a fragment: FP32 goes through shared memory, and registers hold
// hi and lo.  With REFINE 0 one sum on the tensor cores runs along all of k.  With more products those of a slice
// (16 k of a 16-bit format) are summed by the tensor core, smallest first, and the slices to nearest in FP32
// registers: its truncation does not add up along k.

#include "gemm.cuh"

constexpr bool SCALED = SAME<T_IN, float>;
static_assert(SCALED || (SAME<T_IN, T_LOW> && REFINE == 0), "only FP32 operands are rounded");
using Acc = typename Accumulator<T_LOW>::type;

static_assert(!(SCALED && WIDE), "FP32 tiles take the registers of wide ones");

constexpr int BLOCK_M = 128, BLOCK_N = WIDE ? 256 : 128;  // rows and columns of C a block computes
constexpr int ROW_BYTES = 128;                        // of a tile whose rows run along k
constexpr int BLOCK_K = ROW_BYTES / int(sizeof(T_IN));
constexpr int BYTES_A = BLOCK_M * ROW_BYTES, BYTES_B = BLOCK_N * ROW_BYTES, STAGE_BYTES = BYTES_A + BYTES_B;
constexpr int CHUNK = 16 / int(sizeof(T_IN));         // entries of a 16-byte chunk
constexpr int WORD = PER_WORD<T_LOW>;
constexpr int SLICES = BLOCK_K / (SLICE_WORDS * WORD);
constexpr int WARP_ROWS = 64, WARP_COLS = SCALED ? 32 : 64;
constexpr int WARPS_ACROSS = BLOCK_N / WARP_COLS, WARPS = BLOCK_M / WARP_ROWS * WARPS_ACROSS;
constexpr int THREADS = WARPS * WARP;
constexpr int TILES_M = WARP_ROWS / 16, TILES_N = WARP_COLS / 8;
#if __CUDA_ARCH__ >= 900
constexpr int STAGES = WIDE ? 4 : 3;
#elif __CUDA_ARCH__ >= 800
constexpr int STAGES = 3;
#else
constexpr int STAGES = 2;
#endif

// ---- the tile of one operand -------------------------------------------------------------------

// `ALONG_K`: the contiguous entries of the operand run along k, else along m (or n).  A tile has SPAN rows of
// ROW_BYTES, or BLOCK_K rows of SPAN entries.
template <bool ALONG_K, int SPAN>
struct Tile {
    static constexpr int BYTES = ALONG_K ? ROW_BYTES : SPAN * int(sizeof(T_IN));
    static constexpr int CHUNKS = BYTES / 16;

    // Where chunk `chunk` of a row lies.  The rows (and words) that the lanes of a fragment load touch at
    // once then fall into different banks.
    __device__ __forceinline__ static unsigned offset(int row, int chunk) {
        int turn = 0;
        if (SWIZZLE) {
            if (SCALED && WORD == 2) turn = (ALONG_K ? row & 3 : row >> 1 & 3) << 1;
            else if (SCALED) turn = ALONG_K ? row & 7 : (row & 3) << 1;
            else if (SAME<T_IN, int8>) turn = ALONG_K ? row & 7 : row >> 2 & 7;
            else turn = row & 7;
        }
        return unsigned(row) * BYTES + ((chunk ^ turn) << 4);
    }

    // Byte offset of the entry at (i along m or n, q along k).
    __device__ __forceinline__ static unsigned entry(int i, int q) {
        const int row = ALONG_K ? i : q, col = ALONG_K ? q : i;
        return offset(row, col / CHUNK) + col % CHUNK * int(sizeof(T_IN));
    }
};

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// 16 bytes to shared memory of which the first `bytes` exist; the others become zero.
__device__ __forceinline__ void copy_chunk(char* to, const T_IN* from, int bytes) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
#else
    Run<T_IN, CHUNK> run;
    run.load(from, bytes == 16, bytes / int(sizeof(T_IN)));
    run.store(reinterpret_cast<T_IN*>(to), true, CHUNK);
#endif
}

// One operand in global memory: `span` entries along m or n, `k` along k.
template <bool ALONG_K, int SPAN>
struct Source {
    const T_IN* x;
    Index ld, first, span, k;
    bool vector;

    __device__ __forceinline__ Source(const T_IN* x, Index ld, Index first, Index span, Index k)
        : x(x), ld(ld), first(first), span(span), k(k), vector(aligned16(x, ld)) {}

    // Copies the tile that starts at k0, zero outside the matrix.
    __device__ __forceinline__ void copy(char* tile, Index k0) const {
        using T = Tile<ALONG_K, SPAN>;
        constexpr int STEPS = SPAN * ROW_BYTES / 16 / THREADS, ROWS = THREADS / T::CHUNKS;
        static_assert(THREADS % T::CHUNKS == 0, "a thread keeps its column of chunks");
        const int row0 = threadIdx.x / T::CHUNKS, chunk = threadIdx.x % T::CHUNKS;
        const Index line = (ALONG_K ? first : k0) + row0, at = (ALONG_K ? k0 : first) + chunk * CHUNK;
        const T_IN* from = x + line * ld + at;
        if (vector && first + SPAN <= span && k0 + BLOCK_K <= k) {
            #pragma unroll
            for (int u = 0; u < STEPS; ++u) {
                copy_chunk(tile + T::offset(row0 + u * ROWS, chunk), from + u * ROWS * ld, 16);
            }
            return;
        }
        const Index lines = ALONG_K ? span : k, length = ALONG_K ? k : span;
        const int inside = int(max(Index(0), min(Index(CHUNK), length - at)));
        #pragma unroll 1
        for (int u = 0; u < STEPS; ++u) {
            const int count = line + u * ROWS < lines ? inside : 0;
            char* to = tile + T::offset(row0 + u * ROWS, chunk);
            if (vector) {
                copy_chunk(to, count ? from + u * ROWS * ld : x, count * int(sizeof(T_IN)));
            } else {
                Run<T_IN, CHUNK> run;
                run.load(from + u * ROWS * ld, false, count);
                run.store(reinterpret_cast<T_IN*>(to), true, CHUNK);
            }
        }
    }
};

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

// The ring of stages as the copies see it.
struct Feed {
    Source<!TRANS_A, BLOCK_M> a;
    Source<TRANS_B, BLOCK_N> b;
    char* stages;
    int tile, tiles;  // the next to be copied, and how many there are

    __device__ __forceinline__ void next() {
        if (tile < tiles) {
            char* const stage = stages + tile % STAGES * STAGE_BYTES;
            a.copy(stage, Index(tile) * BLOCK_K);
            b.copy(stage + BYTES_A, Index(tile) * BLOCK_K);
        }
        commit();  // a group for each tile, also for none: `arrived` counts them
        ++tile;
    }

    // Waits for the oldest tile that was not waited for yet, and for the other warps.
    __device__ __forceinline__ void arrived() {
        wait<STAGES - 2>();
        __syncthreads();
    }
};

// ---- fragments ---------------------------------------------------------------------------------

template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const char* row) {
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
    }
}

// The word `word` of slice `slice` in row (column) i of the operand.
template <typename T, bool ALONG_K>
__device__ __forceinline__ void load_word(T_IN (&x)[WORD], const char* tile, int i, int slice, int word) {
    const int q = (slice * SLICE_WORDS + word) * WORD;
    if (ALONG_K) {
        memcpy(x, __builtin_assume_aligned(tile + T::entry(i, q), WORD * sizeof(T_IN)), WORD * sizeof(T_IN));
    } else {
        #pragma unroll
        for (int e = 0; e < WORD; ++e) x[e] = *reinterpret_cast<const T_IN*>(tile + T::entry(i, q + e));
    }
}

// Fragments of 16 rows of op(A) from row i0 on, or of 16 columns of op(B): two fragments of 8.
// The four 8 x 8 matrices are, for A, (rows 0, words 0), (rows 8, words 0), (0, 4), (8, 4); for B
// (columns 0, words 0), (0, 4), (8, 0), (8, 4).  Lane l gives the address of row l % 8 of matrix l / 8.
template <bool ALONG_K, bool IS_A>
__device__ __forceinline__ void load_fragment(unsigned (&r)[4], const char* tile, int i0, int slice) {
    using T = Tile<ALONG_K, IS_A ? BLOCK_M : BLOCK_N>;
    const int lane = threadIdx.x % WARP, row = lane % 8, low = lane >> 3 & 1, high = lane >> 4;
    const int across = 8 * (IS_A ? low : high), half = IS_A ? high : low;  // along m or n; along k
    if (ALONG_K) {
        load_matrices<false>(r, tile + T::offset(i0 + across + row, 2 * slice + half));
    } else if (sizeof(T_IN) == 2) {
        load_matrices<true>(r, tile + T::offset(16 * slice + 8 * half + row, (i0 + across) / CHUNK));
    } else {
        const int g = lane / 4, t = lane % 4;
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            T_IN x[WORD];
            const int shift = IS_A ? e % 2 : e / 2, word = t + 4 * (IS_A ? e / 2 : e % 2);
            load_word<T, ALONG_K>(x, tile, i0 + 8 * shift + g, slice, word);
            memcpy(&r[e], x, 4);
        }
    }
}

// ---- what a warp computes ----------------------------------------------------------------------

// Operands in their own format: fragments of one slice are loaded while the last one is multiplied.
struct Direct {
    Acc sum[TILES_M][TILES_N][4];
    unsigned a[2][TILES_M][4], b[2][TILES_N / 2][4];

    __device__ __forceinline__ Direct(const unsigned*, const unsigned*, Index, Index, Index, Index) : sum{} {}

    __device__ __forceinline__ void load(const char* stage, int row0, int col0, int slice) {
        #pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            load_fragment<!TRANS_A, true>(a[slice % 2][i], stage, row0 + 16 * i, slice);
        }
        #pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) {
            load_fragment<TRANS_B, false>(b[slice % 2][j], stage + BYTES_A, col0 + 16 * j, slice);
        }
    }

    // There and back along the columns: the fragment used last is used first.
    __device__ __forceinline__ void multiply(int slice) {
        #pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            #pragma unroll
            for (int step = 0; step < TILES_N; ++step) {
                const int j = i % 2 ? TILES_N - 1 - step : step;
                const unsigned (&pair)[4] = b[slice % 2][j / 2];
                const unsigned part[2] = {pair[j % 2 * 2], pair[j % 2 * 2 + 1]};
                mma(T_LOW{}, sum[i][j], a[slice % 2][i], part);
            }
        }
    }

    __device__ __forceinline__ void run(char* stages, Feed feed, int tiles, int row0, int col0) {
        static_assert(SLICES % 2 == 0, "the first slice of every tile goes to the same registers");
        feed.arrived();
        load(stages, row0, col0, 0);
        for (int s = 0; s < tiles; ++s) {
            const char* const stage = stages + s % STAGES * STAGE_BYTES;
            const char* const next = stages + (s + 1) % STAGES * STAGE_BYTES;
            #pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) {
                if (slice + 1 < SLICES) {
                    load(stage, row0, col0, slice + 1);
                } else {
                    feed.arrived();  // tile s + 1, if there is one; and all warps are done with tile s
                    load(next, row0, col0, 0);
                }
                if (slice == 0) feed.next();  // takes the place of tile s - 1
                multiply(slice);
            }
        }
    }
};

// FP32 operands: scaled, rounded and split on the way to the registers.
template <typename T>
struct Rounded {
    Acc sum[TILES_M][TILES_N][4];
    unsigned scale_a[TILES_M / 2], scale_b[TILES_N / 4];  // exponents, four to a register

    __device__ __forceinline__ Rounded(
        const unsigned* top_a, const unsigned* top_b, Index row0, Index col0, Index m, Index n
    ) : sum{}, scale_a{}, scale_b{} {
        const int g = threadIdx.x % WARP / 4;
        #pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i) scale_a[i / 4] |= exponent(top_a, row0 + 8 * i + g, m) << 8 * (i % 4);
        #pragma unroll
        for (int j = 0; j < TILES_N; ++j) scale_b[j / 4] |= exponent(top_b, col0 + 8 * j + g, n) << 8 * (j % 4);
    }

    // As FP32 has it, 127 for 1.
    __device__ __forceinline__ static unsigned exponent(const unsigned* top, Index i, Index count) {
        return 127 + (i < count ? fit(top[i]) : 0);
    }

    __device__ __forceinline__ static float scale(const unsigned* exponents, int i) {
        return __uint_as_float((exponents[i / 4] >> 8 * (i % 4) & 0xff) << 23);
    }

    template <bool ALONG_K, bool SPLIT>
    __device__ __forceinline__ static Parts parts(const char* tile, int i, int slice, int word, float scale) {
        T x[WORD];
        load_word<Tile<ALONG_K, 128>, ALONG_K>(x, tile, i, slice, word);
        return parts_of<T_LOW, SPLIT>(x, scale);
    }

    __device__ __forceinline__ void multiply(const char* tile_a, const char* tile_b, int row0, int col0) {
        const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        #pragma unroll 1  // more at once would not fit into 128 registers
        for (int slice = 0; slice < SLICES; ++slice) {
            unsigned b_hi[TILES_N][2], b_lo[TILES_N][2];
            #pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                #pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const Parts p = parts<TRANS_B, SPLITS_B<REFINE>>(
                        tile_b, col0 + 8 * j + g, slice, t + 4 * r, scale(scale_b, j));
                    b_hi[j][r] = p.hi;
                    b_lo[j][r] = p.lo;
                }
            }
            #pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
                unsigned a_hi[4], a_lo[4];
                #pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const Parts p = parts<!TRANS_A, SPLITS_A<REFINE>>(
                        tile_a, row0 + 16 * i + 8 * (r % 2) + g, slice, t + r / 2 * 4,
                        scale(scale_a, 2 * i + r % 2));
                    a_hi[r] = p.hi;
                    a_lo[r] = p.lo;
                }
                #pragma unroll
                for (int j = 0; j < TILES_N; ++j) {
                    if (REFINE == 0) {
                        mma(T_LOW{}, sum[i][j], a_hi, b_hi[j]);
                        continue;
                    }
                    Acc part[4] = {};
                    mma_refined<T_LOW, REFINE>(part, a_hi, a_lo, b_hi[j], b_lo[j]);
                    #pragma unroll
                    for (int e = 0; e < 4; ++e) sum[i][j][e] += part[e];
                }
            }
        }
    }

    __device__ __forceinline__ void run(char* stages, Feed feed, int tiles, int row0, int col0) {
        for (int s = 0; s < tiles; ++s) {
            feed.arrived();  // tile s; and all warps are done with tile s - 1
            feed.next();
            const char* stage = stages + s % STAGES * STAGE_BYTES;
            multiply(stage, stage + BYTES_A, row0, col0);
        }
    }
};

template <bool, typename T, typename> struct Choice { using type = T; };
template <typename T, typename U> struct Choice<false, T, U> { using type = U; };
using Work = typename Choice<SCALED, Rounded<T_IN>, Direct>::type;

// ---- the last step -----------------------------------------------------------------------------

// Where entry (row, col) of the block's sums lies: rows of a fragment fall into different banks.
__device__ __forceinline__ int place(int row, int col) { return row * BLOCK_N + (col ^ (row & 3) << 3); }
static_assert(BLOCK_M * BLOCK_N * sizeof(Acc) <= STAGES * STAGE_BYTES, "the sums fit where the tiles were");

// One thread's four columns of the block, and what they need that no row changes.
struct Columns {
    static constexpr int ACROSS = BLOCK_N / 4;
    Index first;
    int exponent[4];
    bool whole;  // inside, not broken, and of 4 bytes: a result goes out in one piece

    __device__ __forceinline__ Columns(const Target& target, const Origin& origin, Index first) : first(first) {
        const Index bits = reinterpret_cast<Index>(target.out) | target.ld_out * 4;
        const bool of_4_bytes = target.kind == KIND_FP32 || target.kind == KIND_INT32;
        whole = of_4_bytes && (bits & 15) == 0 && first + 4 <= target.n;
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const unsigned top = whole && origin.top_b ? origin.top_b[first + e] : 0;
            whole = whole && top < INFINITE;
            exponent[e] = fit(top);
        }
    }

    __device__ __forceinline__ static float unscaled(const Origin& origin, float x, int e) {
        return origin.top_a ? scaled(x, -e) : x;
    }
    __device__ __forceinline__ static int unscaled(const Origin&, int x, int) { return x; }

    __device__ __forceinline__ void store(
        const Target& target, const Origin& origin, bool in_pairs, Index row, const Acc (&x)[4]
    ) const {
        if (row >= target.m) return;
        const unsigned top = origin.top_a ? origin.top_a[row] : 0;
        if (!whole || top >= INFINITE) {
            target.store(origin, in_pairs, row, first, x[0], x[1]);
            target.store(origin, in_pairs, row, first + 2, x[2], x[3]);
            return;
        }
        __align__(16) Acc y[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            y[e] = target.result(unscaled(origin, x[e], fit(top) + exponent[e]), row, first + e);
        }
        uint4 word;
        memcpy(&word, y, 16);
        static_cast<uint4*>(target.out)[(row * target.ld_out + first) / 4] = word;
    }
};

// True for a block with an Inf or NaN next to it.
__device__ __forceinline__ bool any_broken(const Target& target, const Origin& origin, Index row, Index col) {
    bool found = false;
    if (origin.top_a != nullptr) {
        for (Index i = row + threadIdx.x; i < min(target.m, row + BLOCK_M); i += THREADS) {
            found = found || origin.top_a[i] >= INFINITE;
        }
        for (Index j = col + threadIdx.x; j < min(target.n, col + BLOCK_N); j += THREADS) {
            found = found || origin.top_b[j] >= INFINITE;
        }
    }
    return __syncthreads_or(found);
}

extern "C" __global__ void __launch_bounds__(THREADS, WIDE ? 1 : 2)
tcs_gemm_wmma(
    void* out, Index ld_out, Index kind, const void* c, Index ld_c,
    const T_IN* __restrict__ a, Index ld_a, const T_IN* __restrict__ b, Index ld_b,
    const float* __restrict__ full_a, Index row_a, Index col_a, const unsigned* __restrict__ top_a,
    const float* __restrict__ full_b, Index row_b, Index col_b, const unsigned* __restrict__ top_b,
    Index m, Index n, Index k, double alpha, double beta
) {
    extern __shared__ __align__(128) char stages[];
    Index tile_row, tile_col;
    TileOrder{(m + BLOCK_M - 1) / BLOCK_M, (n + BLOCK_N - 1) / BLOCK_N}.find(blockIdx.x, 8, tile_row, tile_col);
    const Index first_row = tile_row * BLOCK_M, first_col = tile_col * BLOCK_N;
    const int warp = threadIdx.x / WARP;
    const int row0 = warp / WARPS_ACROSS * WARP_ROWS, col0 = warp % WARPS_ACROSS * WARP_COLS;

    const int tiles = int((k + BLOCK_K - 1) / BLOCK_K);
    Feed feed = {{a, ld_a, first_row, m, k}, {b, ld_b, first_col, n, k}, stages, 0, tiles};
    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) feed.next();
    Work work(top_a, top_b, first_row + row0, first_col + col0, m, n);
    work.run(stages, feed, tiles, row0, col0);

    wait<0>();
    __syncthreads();  // the last tile has been read: its place is taken by the sums
    Acc* const sums = reinterpret_cast<Acc*>(stages);
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int i = 0; i < 2 * TILES_M; ++i) {
        #pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const Acc (&part)[4] = work.sum[i / 2][j];
            Acc* to = sums + place(row0 + 8 * i + g, col0 + 8 * j + 2 * t);
            to[0] = part[i % 2 * 2];
            to[1] = part[i % 2 * 2 + 1];
        }
    }
    __syncthreads();

    const Target target = {out, c, ld_out, ld_c, m, n, int(kind), alpha, beta};
    const Origin origin = {full_a, full_b, row_a, col_a, row_b, col_b, k, top_a, top_b};
    const bool in_pairs = target.pairs();
    const int col = threadIdx.x % Columns::ACROSS * 4;
    const Columns columns(target, origin, first_col + col);
    #pragma unroll 2
    for (int row = threadIdx.x / Columns::ACROSS; row < BLOCK_M; row += THREADS / Columns::ACROSS) {
        Acc x[4];
        memcpy(x, __builtin_assume_aligned(sums + place(row, col), 16), 16);
        columns.store(target, origin, in_pairs, first_row + row, x);
    }
    if (any_broken(target, origin, first_row, first_col)) {
        #pragma unroll 1
        for (int e = threadIdx.x; e < BLOCK_M * BLOCK_N; e += THREADS) {
            target.mend(origin, first_row + e / BLOCK_N, first_col + e % BLOCK_N);
        }
    }
}
