// Applies the swaps of a strip to any columns, and solves for the strip's rows of U in the columns from `stop` on.
//
//   a      FP32, from the strip's first row on, n columns, row-major, leading dimension lda.
//   stop   the first column of a that is solved for: the strip's last column + 1, n for swaps alone, 0 for a
//          solve of all columns.
//   dst, src  int[2 w] and int[2 w + 1], as tcs_panel makes them: a[dst[i]] = a[src[i]], all reads before any
//          write.  Entry i < w is for the row that becomes row i; for the others see panel.cu.  If src[2 w] is zero, no
//          row moves, and only rows that are solved for are read.  Null: no row moves.
//   top    FP32 w x w, w <= 128, leading dimension ld_top, rows on 16-byte boundaries: L11 in its unit lower triangle.
//          After the swaps, rows 0 .. w - 1 are multiplied by L11^-1 from the left, in the columns from `stop` on.
//   apart  0, or a block size, at most 128.  With a block size, a and top are w x w for any w, and every
//          diagonal block of a is multiplied by the inverse of the same block of L11 from the left.  The
//          blocks are apart x apart; the last may be smaller.  Then stop is 0, and no row moves.
//
// Defines COLUMNS (8, 16 or 64), the columns of a block.  A block with few columns ends sooner; the columns of a block
// share one copy of L11.
// Grid ceil(n / COLUMNS), or (ceil(apart / COLUMNS), blocks); block THREADS, dynamic shared memory
// L_ROWS sizeof(Column) + rows sizeof(Staged) bytes, where `rows` rows are staged: 2 w, or w if dst is null.
//
// With few columns, the longest chain of dependent steps determines the time.  Therefore all loads start before the
// first barrier, and a single warp solves for a column, without further barriers.  The unknowns of a column are
// distributed over LANES lanes.  They are solved for in groups of GROUP: all these lanes get the group, each lane
// solves for the whole group, and then subtracts its products with L from the lane's own unknowns.  With many columns,
// reading L from shared memory determines the time.  Therefore a lane has unknowns of EACH columns, and multiplies each
// entry of L that it reads by the unknowns of all of them.
//
// Rounding: fused multiply-adds in FP32, in the order of the substitution.

#include "common/async_copy.cuh"
#include "common/common.cuh"

constexpr int THREADS = COLUMNS < 64 ? 256 : 128;
constexpr int MOST = 128;                   // the widest strip
constexpr int EACH = COLUMNS == 8 ? 1 : COLUMNS == 16 ? 2 : 4;  // columns of a lane
// SHARE neighbouring lanes hold unknowns with the same numbers, but of different columns.  LANES lanes share a column;
// lane r of these holds the unknown LANES s + r in x[s], its slot s.
constexpr int SHARE = COLUMNS < 64 ? 2 : 4, LANES = WARP / SHARE;
constexpr int SLOTS = MOST / LANES;
constexpr int CHUNK = SLOTS / (EACH < 4 ? 2 : 4); // slots that are updated, or skipped, together
constexpr int GROUP = 8;                    // unknowns that every lane solves for at a time
// A tile has TILE unknowns.  After each tile, x is shifted by the DONE slots of these unknowns, so that its indices are
// constants.
constexpr int TILE = 16;
constexpr int DONE = TILE / LANES;
constexpr int STEP = THREADS / COLUMNS;     // rows that the block moves at a time
constexpr int BATCH = 2 * MOST / STEP < 16 ? 2 * MOST / STEP : 16;  // rows that a thread loads at a time

// The entries of a row of L in the TILE columns of a tile; a tile holds the rows from its first unknown down.  Rows are
// padded, so that 16-byte reads of eight rows use different banks.  A chunk of slots may read past the end of its tile,
// for unknowns that do not exist.  The last tile comes first in memory, so these reads find rows of another tile.
struct Column { float at[TILE + 4]; };
constexpr int TILES = MOST / TILE;
__device__ __forceinline__ int first_row(int tile) { return TILE / 2 * (TILES - 1 - tile) * (TILES - tile); }
constexpr int L_ROWS = TILE / 2 * TILES * (TILES + 1);

// A row in shared memory; padded, so that lanes that read the same column of several rows have few bank conflicts.
struct Staged { float at[COLUMNS + 1]; };

// Copies a word from global to shared memory; asynchronously if the device can (see wait_for_copies).
template <typename Word>
__device__ __forceinline__ void fetch(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    copy_cached<sizeof(Word)>(to, from);
#else
    *static_cast<Word*>(to) = *static_cast<const Word*>(from);
#endif
}

// Copies the words of L11 that have entries below the diagonal.
__device__ __forceinline__ void fetch_l(Column* l, const float* __restrict__ top, Index ld_top, int w) {
    constexpr int WORDS = TILE / 4;
    const int row = threadIdx.x / WORDS, word = 4 * (threadIdx.x % WORDS);
    #pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        #pragma unroll
        for (int i = row; i < MOST - tile * TILE; i += THREADS / WORDS) {
            const int at = tile * TILE + i;
            if (at >= w || word >= i) continue;
            fetch<float4>(l[first_row(tile) + i].at + word, top + at * ld_top + tile * TILE + word);
        }
    }
}

// The unknowns of one row in the EACH columns of a lane.
struct Row { float at[EACH]; };

// x -= l y
__device__ __forceinline__ void subtract(Row& x, float l, const Row& y) {
    #pragma unroll
    for (int c = 0; c < EACH; ++c) x.at[c] = fmaf(-l, y.at[c], x.at[c]);
}

// y := the solution for a group of unknowns; l holds their rows of L.
__device__ __forceinline__ void solve(Row (&y)[GROUP], const Column* l, int first) {
    #pragma unroll
    for (int i = 1; i < GROUP; ++i) {
        Run<float, GROUP> row;
        row.load(l[i].at + first, true, GROUP);
        #pragma unroll
        for (int k = 0; k < i; ++k) subtract(y[i], row.at[k], y[k]);
    }
}

// Multiplies the thread's columns of `stage`, if they are from `stop` on, by L^-1 from the left.
__device__ __forceinline__ void substitute(Staged* stage, const Column* tiles, int w, Index stop) {
    const int own = threadIdx.x % WARP / SHARE, neighbour = threadIdx.x % SHARE;
    const int column = threadIdx.x / WARP * SHARE * EACH + neighbour;  // the first of EACH, SHARE apart
    Row x[SLOTS];
    #pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
        const int i = s * LANES + own;
        #pragma unroll
        for (int c = 0; c < EACH; ++c) x[s].at[c] = i < w ? stage[i].at[column + c * SHARE] : 0.0f;
    }
    #pragma unroll 1
    for (int first = 0; first < w; first += TILE) {
        const Column* l = tiles + first_row(first / TILE);
        #pragma unroll
        for (int g = 0; g < TILE; g += GROUP) {
            Row y[GROUP];
            #pragma unroll
            for (int e = 0; e < GROUP; ++e) {
                const int lane = (g + e) % LANES * SHARE + neighbour;
                #pragma unroll
                for (int c = 0; c < EACH; ++c) y[e].at[c] = __shfl_sync(ALL_LANES, x[(g + e) / LANES].at[c], lane);
            }
            solve(y, l + g, g);
            #pragma unroll
            for (int chunk = 0; chunk < SLOTS; chunk += CHUNK) {
                if (first + chunk * LANES >= w) break;
                #pragma unroll
                for (int s = chunk; s < chunk + CHUNK; ++s) {
                    const int i = s * LANES + own;
                    Run<float, GROUP> row;
                    row.load(l[i].at + g, true, GROUP);
                    #pragma unroll
                    for (int k = 0; k < GROUP; ++k) if (s >= DONE || g + k < i) subtract(x[s], row.at[k], y[k]);
                }
            }
        }
        #pragma unroll
        for (int s = 0; s < DONE; ++s) {
            const int i = first + s * LANES + own;
            #pragma unroll
            for (int c = 0; c < EACH; ++c) {
                if (i < w && column + c * SHARE >= stop) stage[i].at[column + c * SHARE] = x[s].at[c];
            }
        }
        #pragma unroll
        for (int s = DONE; s < SLOTS; ++s) x[s - DONE] = x[s];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tcs_swap_solve(
    float* a, Index lda, Index n, Index stop, const int* __restrict__ dst, const int* __restrict__ src,
    const float* __restrict__ top, Index ld_top, Index w, Index apart
) {
    if (apart) {
        const Index at = blockIdx.y * apart;
        a += at * (lda + 1), top += at * (ld_top + 1);
        n = w = min(w - at, apart);
    }
    extern __shared__ __align__(16) unsigned char dynamic[];
    Column* l = reinterpret_cast<Column*>(dynamic);
    Staged* stage = reinterpret_cast<Staged*>(l + L_ROWS);
    __shared__ int target[2 * MOST];
    const int width = int(w), count = dst ? 2 * width : width;  // `count` rows are staged
    const int row = threadIdx.x / COLUMNS, own = threadIdx.x % COLUMNS;
    const Index first = Index(blockIdx.x) * COLUMNS;
    const bool solves = first + COLUMNS > stop, moves = src && src[2 * width];
    a += first + own;

    for (int start = row; start < count; start += BATCH * STEP) {
        int from[BATCH];
        #pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const int i = start + k * STEP;
            from[k] = first + own < n && i < count ? (src ? src[i] : i) : -1;
        }
        if (start == row) {  // these copies start while the entries of src are being loaded
            if (solves) fetch_l(l, top, ld_top, width);
            for (int i = threadIdx.x; dst && i < count; i += THREADS) fetch<int>(target + i, dst + i);
        }
        #pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const bool wanted = moves || solves && start + k * STEP < width;
            if (from[k] >= 0 && wanted) fetch<int>(stage[start + k * STEP].at + own, a + from[k] * lda);
        }
    }
    wait_for_copies();
    __syncthreads();
    if (solves && threadIdx.x / WARP < COLUMNS / (SHARE * EACH)) substitute(stage, l, width, stop - first);
    __syncthreads();
    #pragma unroll 8
    for (int i = row; i < count; i += STEP) {
        // A row that is displaced and becomes one of the first w rows is listed twice; only entry i < w is solved for.
        const int to = dst ? target[i] : i;
        const bool counts = i < width ? moves || solves : to >= width;
        if (first + own < n && counts) a[to * lda] = stage[i].at[own];
    }
}
