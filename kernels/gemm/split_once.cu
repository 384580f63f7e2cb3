// Scales and splits operands in one launch that reads every entry once.  The results have the same bits as those of the
// two launches tcs_tops and tcs_split (gemm_split.cu); rows and columns must not be too long.
//
//   top = bits of the largest |entry| of each row, or column, of two matrices
//   hi = rn(s x), lo = rn(s x - hi), with s = 2^fit(top)
//
// x is FP32 rows x cols, row-major, leading dimension ld.  `by_row`: top has an entry for each row, else for each
// column.  hi, and lo unless null, are row-major with leading dimension ld_out, a multiple of 16 bytes.
//
// A thread keeps its entries in registers until the largest entry is known.  `share` has two meanings:
//   if rows are scaled     `share` warps of a block hold a row, which has at most 128 * RUNS * share columns.
//   if columns are scaled  A cluster holds 4 * share columns with at most CLUSTER * RUNS * THREADS / share rows, and
//                          `share` lanes of a warp hold the 4 * share entries of a row.
//
// Grid: the blocks of both matrices.  For a matrix, they are ceil(rows / (WARPS / share)), rounded up to a multiple of
// CLUSTER, if by_row, else CLUSTER ceil(cols / (4 share)).  Block THREADS.
// Defines T_LOW (fp16, bf16 or tf32), THREADS, CLUSTER.

#include "common/cluster.cuh"
#include "common/reduce.cuh"
#include "gemm/gemm.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int RUNS = 16;        // words of 16 bytes that a thread keeps
constexpr int MOST_LANES = 32;  // most threads for a row, if columns are scaled

struct Operand {
    const float* x;
    Index ld;
    unsigned* top;
    Index by_row, rows, cols;
    T_LOW* hi;
    T_LOW* lo;
    Index ld_out, share;
};

// Four entries of hi or lo, 8 or 16 bytes.
struct Words {
    static constexpr int COUNT = 4 / PER_WORD<T_LOW>;
    unsigned at[COUNT];

    __device__ __forceinline__ void store(T_LOW* to, Index count) const {
        if (count >= 4) {
            if constexpr (COUNT == 2) __stcg(reinterpret_cast<uint2*>(to), make_uint2(at[0], at[1]));
            else __stcg(reinterpret_cast<uint4*>(to), make_uint4(at[0], at[1], at[2], at[3]));
            return;
        }
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (e >= count) continue;
            T_LOW one;
            memcpy(&one, reinterpret_cast<const char*>(at) + e * sizeof(T_LOW), sizeof(T_LOW));
            to[e] = one;
        }
    }
};

// Runs of 4 entries, the first at (row, col), each `down` rows and `across` columns after the one before.
struct Held {
    Run<float, 4> run[RUNS];
    Index row, col;
    int down, across;

    // Whether all runs are in the matrix, up to row `last_row`, and can be loaded as words.
    __device__ __forceinline__ bool is_whole(const Operand& m, Index last_row) const {
        const bool inside = row + (RUNS - 1) * down <= last_row && col + (RUNS - 1) * across + 4 <= m.cols;
        return inside && aligned16(m.x, m.ld);
    }

    // Entries outside the matrix become zero, which does not change the largest.
    __device__ __forceinline__ void load(const Operand& m, Index last_row, bool whole) {
        const float* const from = m.x + row * m.ld + col;
        const Index step = down * m.ld + across;
        if (whole) {  // loads without conditions are all in flight at once
            #pragma unroll
            for (int i = 0; i < RUNS; ++i) run[i].load(from + i * step, true, 4);
            return;
        }
        const bool vector = aligned16(m.x, m.ld);
        #pragma unroll
        for (int i = 0; i < RUNS; ++i) {
            const Index left = row + i * down <= last_row ? m.cols - (col + i * across) : 0;
            run[i].load(from + i * step, vector && left >= 4, left);
        }
    }

    // Splits the runs; scale[e] is the scale of entry e of each run.
    __device__ __forceinline__ void split(
        const Operand& m, Index last_row, bool whole, const Scale<T_LOW> (&scale)[4]
    ) const {
        const Index first = row * m.ld_out + col, step = down * m.ld_out + across;
        #pragma unroll
        for (int i = 0; i < RUNS; ++i) {
            const Index left = whole ? 4 : row + i * down <= last_row ? m.cols - (col + i * across) : 0;
            if (left <= 0) continue;
            constexpr int PER = PER_WORD<T_LOW>;
            Words high, low;
            #pragma unroll
            for (int w = 0; w < Words::COUNT; ++w) {
                float x[PER];
                #pragma unroll
                for (int e = 0; e < PER; ++e) x[e] = scale[w * PER + e](run[i].at[w * PER + e]);
                const Parts parts = parts_of<T_LOW, true>(x, 1.0f);
                high.at[w] = parts.hi;
                low.at[w] = parts.lo;
            }
            high.store(m.hi + first + i * step, left);
            if (m.lo) low.store(m.lo + first + i * step, left);
        }
    }
};

__device__ __forceinline__ void split_rows(const Operand& m, Index block) {
    __shared__ unsigned of_warp[WARPS];
    const int warps = int(m.share), warp = threadIdx.x / WARP;
    Held held;
    held.row = block * (WARPS / warps) + warp / warps;
    held.col = 4 * (threadIdx.x % (warps * WARP));
    held.down = 0, held.across = 4 * warps * WARP;
    const bool is_row = held.row < m.rows;
    unsigned largest = 0;
    const bool whole = held.is_whole(m, held.row);
    if (is_row) {
        held.load(m, held.row, whole);
        #pragma unroll
        for (int i = 0; i < RUNS; ++i) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) largest = max(largest, bits_of_size(held.run[i].at[e]));
        }
    }
    largest = largest_of_lanes(largest);
    of_warp[warp] = largest;
    __syncthreads();
    if (!is_row) return;
    for (int w = 0; w < warps; ++w) largest = max(largest, of_warp[warp / warps * warps + w]);
    if (held.col == 0) m.top[held.row] = largest;
    const Scale<T_LOW> by(largest), scale[4] = {by, by, by, by};
    if (whole) held.split(m, held.row, true, scale);
    else held.split(m, held.row, false, scale);
}

__device__ __forceinline__ void split_columns(const Operand& m, Index block) {
    __shared__ __align__(16) unsigned of_warp[WARPS][4 * MOST_LANES];
    __shared__ __align__(16) unsigned of_block[4 * MOST_LANES], of_all[4 * MOST_LANES];
    const int lanes = int(m.share), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, rank = int(block % CLUSTER);
    const Index rows = (m.rows + CLUSTER - 1) / CLUSTER, col0 = block / CLUSTER * 4 * lanes;
    const Index last_row = min((rank + 1) * rows, m.rows) - 1;
    Held held;
    held.row = rank * rows + threadIdx.x / lanes;
    held.col = col0 + 4 * (threadIdx.x % lanes);
    held.down = THREADS / lanes, held.across = 0;
    const bool is_here = rank * rows <= last_row && held.col < m.cols;
    uint4 largest = make_uint4(0, 0, 0, 0);
    const bool whole = held.is_whole(m, last_row);
    if (is_here) {
        held.load(m, last_row, whole);
        #pragma unroll
        for (int i = 0; i < RUNS; ++i) {
            largest.x = max(largest.x, bits_of_size(held.run[i].at[0]));
            largest.y = max(largest.y, bits_of_size(held.run[i].at[1]));
            largest.z = max(largest.z, bits_of_size(held.run[i].at[2]));
            largest.w = max(largest.w, bits_of_size(held.run[i].at[3]));
        }
    }
    for (int d = WARP / 2; d >= lanes; d /= 2) {  // over the rows of the warp
        largest.x = max(largest.x, of_partner(largest.x, d)), largest.y = max(largest.y, of_partner(largest.y, d));
        largest.z = max(largest.z, of_partner(largest.z, d)), largest.w = max(largest.w, of_partner(largest.w, d));
    }
    if (lane < lanes) *reinterpret_cast<uint4*>(&of_warp[warp][4 * lane]) = largest;
    __syncthreads();
    const int mine = threadIdx.x;
    if (mine < 4 * lanes) {
        unsigned top = 0;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) top = max(top, of_warp[w][mine]);
        of_block[mine] = top;
    }
    arrive_in_cluster();
    wait_in_cluster();
    if (mine < 4 * lanes) {
        unsigned of_rank[CLUSTER], top = 0;
        #pragma unroll
        for (int b = 0; b < CLUSTER; ++b) of_rank[b] = load_from(&of_block[mine], b);
        #pragma unroll
        for (int b = 0; b < CLUSTER; ++b) top = max(top, of_rank[b]);
        of_all[mine] = top;
        if (rank == 0 && col0 + mine < m.cols) m.top[col0 + mine] = top;
    }
    __syncthreads();
    arrive_relaxed_in_cluster();  // this block has read the values of the others
    if (is_here) {
        const uint4 top = *reinterpret_cast<const uint4*>(&of_all[4 * (threadIdx.x % lanes)]);
        const Scale<T_LOW> scale[4] = {
            Scale<T_LOW>(top.x), Scale<T_LOW>(top.y), Scale<T_LOW>(top.z), Scale<T_LOW>(top.w)
        };
        if (whole) held.split(m, last_row, true, scale);
        else held.split(m, last_row, false, scale);
    }
    wait_in_cluster();  // no block may leave while another reads its values
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
tcs_split_once(
    const float* __restrict__ a, Index ld_a, unsigned* __restrict__ top_a, Index by_row_a, Index rows_a, Index cols_a,
    T_LOW* __restrict__ hi_a, T_LOW* __restrict__ lo_a, Index ld_out_a, Index share_a, Index blocks_a,
    const float* __restrict__ b, Index ld_b, unsigned* __restrict__ top_b, Index by_row_b, Index rows_b, Index cols_b,
    T_LOW* __restrict__ hi_b, T_LOW* __restrict__ lo_b, Index ld_out_b, Index share_b
) {
    const bool second = blockIdx.x >= blocks_a;
    const Index block = second ? blockIdx.x - blocks_a : blockIdx.x;
    const Operand m = second
        ? Operand{b, ld_b, top_b, by_row_b, rows_b, cols_b, hi_b, lo_b, ld_out_b, share_b}
        : Operand{a, ld_a, top_a, by_row_a, rows_a, cols_a, hi_a, lo_a, ld_out_a, share_a};
    if (m.by_row) split_rows(m, block);
    else split_columns(m, block);
}
