// C = alpha op(A) op(B) + beta C in tiles of 64 or 128 rows, whose operands are loaded ahead into shared memory.
//
// The second of the three engines naive, wmma and wgmma.  It adds:
//   - a tile of each operand is read from global memory once for all rows (columns) of a tile of C, 16 bytes a thread;
//   - copies run STAGES - 1 tiles ahead of the tensor cores (cp.async from sm_80 on, ordinary loads before), fragments
//     one slice ahead, also from one tile to the next;
//   - chunks of 16 bytes are swizzled, so that copies and fragments meet no bank conflicts (SWIZZLE 0 leaves this
//     out, for comparison).
// It is 7, 13 and 17 times as fast as the naive engine at n = 1024, 2048 and 4096 (H200, FP16,
// benchmarks/results/gemm.json).
//
// Small tiles are for small products, which have fewer large tiles than there are multiprocessors.  With small tiles
// n = 1024 ran at 159 TFLOP/s instead of 96, but n = 2048 at 241 instead of 329 (H200; one comparison, of which no
// results file is kept).
//
//   a, b   TRANS_A 0: a is op(A), m x k, rows contiguous; 1: a is its transpose, k x m, rows contiguous.
//          TRANS_B 0: b is op(B), k x n; 1: its transpose, n x k.  Leading dimensions ld_a, ld_b, in entries.
//          Rows that start on 16-byte boundaries are copied fast; others entry by entry.
//   full_a, full_b  for scaled operands the FP32 op(A) (m x k) and op(B) (k x n) by strides, and top_a, top_b,
//          bits of max |a_i.| and max |b_.j| (tcs_tops); else null
//   out, c row-major with leading dimensions ld_out, ld_c, of `kind` (see gemm.cuh); c is not read if beta = 0
//
// Grid ceil(m / BLOCK_M) ceil(n / BLOCK_N); block and dynamic shared memory as wmma_shape gives them
// (kernels/product_shapes.py).
// Defines T_IN (fp16, bf16, float, int8), T_LOW (fp16, bf16, tf32, int8), REFINE (0 to 4: none, 'a', 'b',
// 'ab', 'full'; 0 unless T_IN is float), TRANS_A, TRANS_B, SWIZZLE, TILE (0: 64 x 64 entries of C, for small products;
// 1: 128 x 128; 2: 128 x 256 and one block a multiprocessor, for large products, from sm_80 on where shared memory is
// large; 1 if T_IN is float).
//
// If T_IN is float, operands are split while they are loaded.  For 16-bit formats each block splits an entry once: the
// entry is in a register while the tile before is multiplied, and is then stored in shared memory as hi and lo.  For
// TF32 shared memory holds FP32, and each fragment is split when it is loaded into registers.
//
// Rounding: with REFINE 0 the tensor cores sum along all of k.  With more products they sum along 32 k (8 for TF32),
// the smallest products of a slice first, and these sums are added to nearest in FP32 registers, so that the truncation
// errors of the tensor cores do not accumulate along k.

#include "gemm/gemm.cuh"
#include "gemm/wmma_tile.cuh"

// ---- the products of a warp ---------------------------------------------------------------------

// Operands in their own format.  The fragments of a slice are loaded while the slice before is multiplied.
struct Direct {
    Acc sum[TILES_M][TILES_N][4];
    unsigned a[2][TILES_M][4], b[2][TILES_N / 2][4];

    __device__ __forceinline__ Direct(const Feed&, const unsigned*, const unsigned*, int, int) : sum{} {}

    __device__ __forceinline__ void load(const char* stage, int row0, int col0, int slice) {
        #pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            load_fragment<Tile<!TRANS_A, BLOCK_M>, !TRANS_A, true>(a[slice % 2][i], stage, row0 + 16 * i, slice);
        }
        #pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) {
            using T = Tile<TRANS_B, BLOCK_N>;
            load_fragment<T, TRANS_B, false>(b[slice % 2][j], stage + BYTES_A, col0 + 16 * j, slice);
        }
    }

    // Columns are taken forwards and backwards in turn, so that the next row begins with the fragment used last.
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

    __device__ __forceinline__ void run(char* stages, Feed feed, int row0, int col0) {
        static_assert(SLICES % 2 == 0, "the first slice of every tile goes to the same registers");
        feed.start();
        feed.arrived();
        load(stages, row0, col0, 0);
        for (int s = 0; s < feed.tiles; ++s) {
            const char* const stage = stages + s % STAGES * STAGE_BYTES;
            const char* const next = stages + (s + 1) % STAGES * STAGE_BYTES;
            #pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) {
                if (slice == 0) feed.next();  // overwrites tile s - 1
                if (slice + 1 < SLICES) {
                    load(stage, row0, col0, slice + 1);
                } else {
                    feed.arrived();  // tile s + 1, if it exists, has arrived, and all warps have finished tile s
                    load(next, row0, col0, 0);
                }
                multiply(slice);
            }
        }
    }
};

// A tile of hi or lo; it has half the bytes of the FP32 tile.
template <bool ALONG_K>
struct PartTile {
    static constexpr int BYTES = ALONG_K ? BLOCK_K * 2 : BLOCK_M * 2;

    __device__ __forceinline__ static unsigned offset(int row, int chunk) {
        return unsigned(row) * BYTES + ((chunk ^ (ALONG_K ? row >> 1 & 3 : row & 7)) << 4);
    }
};

// The part of an FP32 operand that a thread splits: RUNS_HELD runs of four entries of a row, in registers.
constexpr int RUNS_HELD = 4;
template <typename T, bool ALONG_K, bool SPLIT>
struct Splitter {
    static constexpr int ACROSS = (ALONG_K ? BLOCK_K : BLOCK_M) / 4, ROWS = THREADS / ACROSS;
    Source<ALONG_K, BLOCK_M> source;
    const T* next;           // this thread's first run of the next tile
    int whole_tiles;         // the first tiles, which can be read 16 bytes at a time
    Run<T, 4> in[RUNS_HELD];
    Scale<T_LOW> scale[4];   // of the rows, or of the columns, of this thread
    static_assert((ALONG_K ? BLOCK_M : BLOCK_K) == RUNS_HELD * ROWS, "a tile is what the threads hold");

    __device__ __forceinline__ Splitter(const Source<ALONG_K, BLOCK_M>& source, const unsigned* top)
        : source(source),
          next(source.x + ((ALONG_K ? source.first : 0) + row(0)) * source.ld + (ALONG_K ? 0 : source.first) + col()),
          whole_tiles(source.vector && source.first + BLOCK_M <= source.span ? int(source.k / BLOCK_K) : 0) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const Index i = source.first + (ALONG_K ? row(e) : col() + e);
            scale[e] = Scale<T_LOW>(i < source.span ? top[i] : 0);
        }
    }

    __device__ __forceinline__ static int col() { return threadIdx.x % ACROSS * 4; }
    __device__ __forceinline__ static int row(int u) { return threadIdx.x / ACROSS + u * ROWS; }

    // Run u of a tile; zero outside the matrix.
    __device__ __forceinline__ void load(int u, int tile) {
        if (tile < whole_tiles) {
            in[u].load(next + u * ROWS * source.ld, true, 4);
            return;
        }
        const Index k0 = Index(tile) * BLOCK_K;
        const Index line = (ALONG_K ? source.first : k0) + row(u), at = (ALONG_K ? k0 : source.first) + col();
        const Index lines = ALONG_K ? source.span : source.k, length = ALONG_K ? source.k : source.span;
        in[u].load(source.x + line * source.ld + at, false, line < lines ? length - at : 0);
    }

    __device__ __forceinline__ void advance() { next += ALONG_K ? BLOCK_K : BLOCK_K * source.ld; }

    __device__ __forceinline__ void store(int u, char* hi, char* lo) const {
        unsigned high[2], low[2];
        #pragma unroll
        for (int w = 0; w < 2; ++w) {
            const int e = 2 * w;
            const float x[2] = {scale[ALONG_K ? u : e](in[u].at[e]), scale[ALONG_K ? u : e + 1](in[u].at[e + 1])};
            const Parts parts = parts_of<T_LOW, SPLIT>(x, 1.0f);
            high[w] = parts.hi;
            low[w] = parts.lo;
        }
        const unsigned to = PartTile<ALONG_K>::offset(row(u), col() / 8) + col() % 8 * 2;
        *reinterpret_cast<uint2*>(hi + to) = make_uint2(high[0], high[1]);
        if (SPLIT) *reinterpret_cast<uint2*>(lo + to) = make_uint2(low[0], low[1]);
    }
};

// FP32 operands for a 16-bit format.  While tile s is multiplied, tile s + 1 is split and stored to shared memory, and
// tile s + 2 is loaded into its registers.  One run follows a few products, so that neither the tensor cores nor other
// units wait.
template <typename T>
struct Split {
    static constexpr int PART_BYTES = BLOCK_M * BLOCK_K * 2, BUFFER_BYTES = 4 * PART_BYTES;
    static_assert(SLICES * TILES_M * sizeof(T) == 2 * RUNS_HELD * sizeof(T_IN), "a run for each row of fragments");
    Acc sum[TILES_M][TILES_N][4];
    Splitter<T, !TRANS_A, SPLITS_A<REFINE>> a;
    Splitter<T, TRANS_B, SPLITS_B<REFINE>> b;

    __device__ __forceinline__ Split(const Feed& feed, const unsigned* top_a, const unsigned* top_b, int, int)
        : sum{}, a(feed.a, top_a), b(feed.b, top_b) {}

    // Run u of both operands together.
    __device__ __forceinline__ void load(int u, int tile) {
        if (u < RUNS_HELD) a.load(u, tile);
        else b.load(u - RUNS_HELD, tile);
    }
    __device__ __forceinline__ void store(int u, char* buffer) const {
        if (u < RUNS_HELD) a.store(u, buffer, buffer + PART_BYTES);
        else b.store(u - RUNS_HELD, buffer + 2 * PART_BYTES, buffer + 3 * PART_BYTES);
    }

    // Fragments of op(A): 16 rows and a slice.
    __device__ __forceinline__ static void load_row(
        unsigned (&hi)[4], unsigned (&lo)[4], const char* buffer, int row0, int step
    ) {
        using TileA = PartTile<!TRANS_A>;
        const int row = row0 + 16 * (step % TILES_M), slice = step / TILES_M;
        load_fragment<TileA, !TRANS_A, true>(hi, buffer, row, slice);
        if (SPLITS_A<REFINE>) load_fragment<TileA, !TRANS_A, true>(lo, buffer + PART_BYTES, row, slice);
    }

    __device__ __forceinline__ void multiply_row(
        Acc (&part)[TILES_N][4], const unsigned (&a_hi)[4], const unsigned (&a_lo)[4],
        const unsigned (&b_hi)[TILES_N / 2][4], const unsigned (&b_lo)[TILES_N / 2][4]
    ) {
        // All columns of one term, then the next, so that no product waits for the sum of the one before.
        #pragma unroll
        for (int term = 0; term < TERMS; ++term) {
            if (!has_term<REFINE>(term)) continue;
            #pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const unsigned (&pair)[4] = (term % 2 ? b_hi : b_lo)[j / 2];
                const unsigned word[2] = {pair[j % 2 * 2], pair[j % 2 * 2 + 1]};
                mma(T_LOW{}, part[j], term < 2 ? a_lo : a_hi, word);
            }
        }
    }

    // Multiplies tile `tile`, which is in `buffer`, and stores the next one to `other`.
    __device__ __forceinline__ void multiply(const char* buffer, char* other, int tile, int row0, int col0) {
        using TileB = PartTile<TRANS_B>;
        Acc part[TILES_M][TILES_N][4] = {};
        unsigned a_hi[2][4], a_lo[2][4] = {};
        load_row(a_hi[0], a_lo[0], buffer, row0, 0);
        #pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            unsigned b_hi[TILES_N / 2][4], b_lo[TILES_N / 2][4] = {};
            #pragma unroll
            for (int j = 0; j < TILES_N / 2; ++j) {
                const char* const hi = buffer + 2 * PART_BYTES;
                load_fragment<TileB, TRANS_B, false>(b_hi[j], hi, col0 + 16 * j, slice);
                if (!SPLITS_B<REFINE>) continue;
                load_fragment<TileB, TRANS_B, false>(b_lo[j], hi + PART_BYTES, col0 + 16 * j, slice);
            }
            #pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
                const int step = slice * TILES_M + i;
                const int now = step % 2, then = 1 - now;
                if (step + 1 < SLICES * TILES_M) load_row(a_hi[then], a_lo[then], buffer, row0, step + 1);
                multiply_row(part[i], a_hi[now], a_lo[now], b_hi, b_lo);
                store(step, other);
                load(step, tile + 2);
                if (slice < SLICES - 1) continue;
                #pragma unroll
                for (int e = 0; e < 4 * TILES_N; ++e) sum[i][e / 4][e % 4] += part[i][e / 4][e % 4];
            }
        }
    }

    __device__ __forceinline__ void advance() {
        a.advance();
        b.advance();
    }

    __device__ __forceinline__ void run(char* buffers, Feed feed, int row0, int col0) {
        #pragma unroll
        for (int u = 0; u < 2 * RUNS_HELD; ++u) {
            load(u, 0);
            store(u, buffers);
        }
        advance();
        #pragma unroll
        for (int u = 0; u < 2 * RUNS_HELD; ++u) load(u, 1);
        advance();
        #pragma unroll 1
        for (int s = 0; s < feed.tiles; ++s) {
            __syncthreads();  // tile s is complete, and all warps have finished tile s - 1
            multiply(buffers + s % 2 * BUFFER_BYTES, buffers + (s + 1) % 2 * BUFFER_BYTES, s, row0, col0);
            advance();
        }
    }
};

// FP32 operands for TF32: scaled, rounded and split on the way from shared memory to the registers.
template <typename T>
struct Rounded {
    Acc sum[TILES_M][TILES_N][4];
    unsigned scale_a[TILES_M / 2], scale_b[TILES_N / 4];  // exponents, four to a register

    __device__ __forceinline__ Rounded(
        const Feed& feed, const unsigned* top_a, const unsigned* top_b, int row0, int col0
    ) : sum{}, scale_a{}, scale_b{} {
        const int g = threadIdx.x % WARP / 4;
        #pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i) {
            const Index row = feed.a.first + row0 + 8 * i + g;
            scale_a[i / 4] |= exponent(top_a, row, feed.a.span) << 8 * (i % 4);
        }
        #pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const Index col = feed.b.first + col0 + 8 * j + g;
            scale_b[j / 4] |= exponent(top_b, col, feed.b.span) << 8 * (j % 4);
        }
    }

    // The exponent of the scale as in the bits of an FP32 number, 127 for a scale of 1.
    __device__ __forceinline__ static unsigned exponent(const unsigned* top, Index i, Index count) {
        return 127 + (i < count ? fit<T_LOW>(top[i]) : 0);
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
        #pragma unroll 1  // unrolled, it would not fit into 128 registers
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
                Acc part[TILES_N][4] = {};
                #pragma unroll
                for (int term = 0; term < TERMS; ++term) {
                    if (!has_term<REFINE>(term)) continue;
                    #pragma unroll
                    for (int j = 0; j < TILES_N; ++j) {
                        mma(T_LOW{}, REFINE ? part[j] : sum[i][j], term < 2 ? a_lo : a_hi, (term % 2 ? b_hi : b_lo)[j]);
                    }
                }
                #pragma unroll
                for (int e = 0; e < 4 * TILES_N; ++e) {
                    if (REFINE) sum[i][e / 4][e % 4] += part[e / 4][e % 4];
                }
            }
        }
    }

    __device__ __forceinline__ void run(char* stages, Feed feed, int row0, int col0) {
        feed.start();
        for (int s = 0; s < feed.tiles; ++s) {
            feed.arrived();  // tile s has arrived, and all warps have finished tile s - 1
            feed.next();
            const char* stage = stages + s % STAGES * STAGE_BYTES;
            multiply(stage, stage + BYTES_A, row0, col0);
        }
    }
};

template <int, typename...> struct Choice;
template <typename T, typename... More> struct Choice<0, T, More...> { using type = T; };
template <int WHICH, typename T, typename... More> struct Choice<WHICH, T, More...> : Choice<WHICH - 1, More...> {};
using Work = typename Choice<SPLIT_ON_LOAD ? 0 : SCALED ? 1 : 2, Split<T_IN>, Rounded<T_IN>, Direct>::type;

// ---- the last step -----------------------------------------------------------------------------

// The place of entry (row, col) of the block's sums; the rows of a fragment use different banks.
__device__ __forceinline__ int place(int row, int col) { return row * BLOCK_N + (col ^ (row & 3) << 3); }
constexpr int SHARED_BYTES = (SPLIT_ON_LOAD ? 2 : STAGES) * STAGE_BYTES;
static_assert(BLOCK_M * BLOCK_N * sizeof(Acc) <= SHARED_BYTES, "the sums fit where the tiles were");

// A thread's four columns of the block, and the values that are the same for all rows.
struct Columns {
    static constexpr int ACROSS = BLOCK_N / 4, STEP = THREADS / ACROSS, FLIGHT = 4;
    Index first;
    int exponent[4];
    bool whole;  // inside C, not broken, and results of 4 bytes: four results are one store
    bool add;    // beta is not zero, and four entries of c are one load

    __device__ __forceinline__ Columns(const Target& target, const Origin<T_LOW>& origin, Index first) : first(first) {
        const Index bits = reinterpret_cast<Index>(target.out) | target.ld_out * 4;
        const bool of_4_bytes = target.kind == KIND_FP32 || target.kind == KIND_INT32;
        whole = of_4_bytes && (bits & 15) == 0 && first + 4 <= target.n;
        add = target.beta != 0 && ((reinterpret_cast<Index>(target.c) | target.ld_c * 4) & 15) == 0;
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            const unsigned top = whole && origin.top_b ? origin.top_b[first + e] : 0;
            whole = whole && top < INFINITE;
            exponent[e] = fit<T_LOW>(top);
        }
    }

    __device__ __forceinline__ static float unscaled(const Origin<T_LOW>& origin, float x, int e) {
        return origin.top_a ? scaled<T_LOW>(x, -e) : x;
    }
    __device__ __forceinline__ static int unscaled(const Origin<T_LOW>&, int x, int) { return x; }

    __device__ __forceinline__ void store(
        const Target& target, const Origin<T_LOW>& origin, bool in_pairs, Index row,
        const Acc (&x)[4], const Acc (&old)[4]
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
            const Acc z = unscaled(origin, x[e], fit<T_LOW>(top) + exponent[e]);
            y[e] = add ? target.combined(z, old[e]) : target.result(z, row, first + e);
        }
        uint4 word;
        memcpy(&word, y, 16);
        static_cast<uint4*>(target.out)[(row * target.ld_out + first) / 4] = word;
    }

    // Stores all rows of these columns; FLIGHT reads of c start before the first result is written.
    __device__ __forceinline__ void store_all(
        const Target& target, const Origin<T_LOW>& origin, bool in_pairs, Index first_row, const Acc* sums, int col
    ) const {
        #pragma unroll 1
        for (int row0 = threadIdx.x / ACROSS; row0 < BLOCK_M; row0 += FLIGHT * STEP) {
            Acc old[FLIGHT][4];
            #pragma unroll
            for (int f = 0; f < FLIGHT; ++f) {
                const Index row = first_row + row0 + f * STEP;
                if (!add || !whole || row >= target.m) continue;
                const uint4 word = static_cast<const uint4*>(target.c)[(row * target.ld_c + first) / 4];
                memcpy(old[f], &word, 16);
            }
            #pragma unroll
            for (int f = 0; f < FLIGHT; ++f) {
                Acc x[4];
                memcpy(x, __builtin_assume_aligned(sums + place(row0 + f * STEP, col), 16), 16);
                store(target, origin, in_pairs, first_row + row0 + f * STEP, x, old[f]);
            }
        }
    }
};

// True if a row or column of the block's tile holds an Inf or NaN.
__device__ __forceinline__ bool any_broken(const Target& target, const Origin<T_LOW>& origin, Index row, Index col) {
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

// Blocks on a multiprocessor for which the compiler must leave registers.
constexpr int RESIDENT = WIDE || SPLIT_ON_LOAD ? 1 : SMALL && sizeof(T_IN) == 2 ? 3 : 2;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_gemm_wmma(
    void* out, Index ld_out, Index kind, const void* c, Index ld_c,
    const T_IN* __restrict__ a, Index ld_a, const T_IN* __restrict__ b, Index ld_b,
    const float* __restrict__ full_a, Index row_a, Index col_a, const unsigned* __restrict__ top_a,
    const float* __restrict__ full_b, Index row_b, Index col_b, const unsigned* __restrict__ top_b,
    Index m, Index n, Index k, double alpha, double beta
) {
    extern __shared__ __align__(128) char stages[];
    Index tile_row, tile_col;
    TileOrder<>{(m + BLOCK_M - 1) / BLOCK_M, (n + BLOCK_N - 1) / BLOCK_N}.find(blockIdx.x, 8, tile_row, tile_col);
    const Index first_row = tile_row * BLOCK_M, first_col = tile_col * BLOCK_N;
    const int warp = threadIdx.x / WARP;
    const int row0 = warp / WARPS_ACROSS * WARP_ROWS, col0 = warp % WARPS_ACROSS * WARP_COLS;

    const int tiles = int((k + BLOCK_K - 1) / BLOCK_K);
    const Feed feed = {{a, ld_a, first_row, m, k}, {b, ld_b, first_col, n, k}, stages, 0, tiles};
    Work work(feed, top_a, top_b, row0, col0);
    work.run(stages, feed, row0, col0);

    wait_for_groups<0>();
    __syncthreads();  // all warps have read the last tile, which the sums overwrite
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
    const Origin<T_LOW> origin = {full_a, full_b, row_a, col_a, row_b, col_b, k, top_a, top_b};
    const bool in_pairs = target.pairs();
    const int col = threadIdx.x % Columns::ACROSS * 4;
    const Columns columns(target, origin, first_col + col);
    columns.store_all(target, origin, in_pairs, first_row, sums, col);
    if (any_broken(target, origin, first_row, first_col)) {
        #pragma unroll 1
        for (int e = threadIdx.x; e < BLOCK_M * BLOCK_N; e += THREADS) {
            target.mend(origin, first_row + e / BLOCK_N, first_col + e % BLOCK_N);
        }
    }
}
