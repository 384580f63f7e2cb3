// P A = L U of a leaf panel with partial pivoting, in place, by one thread-block cluster; then the swaps, and
// the substitution for U, in the other columns of its panel.
//
//   a      FP32 m x w, row-major, leading dimension lda, 1 <= w <= WIDTH, w <= m <= CLUSTER THREADS ROWS.
//          Becomes L (below the unit diagonal) and U, its rows where LAPACK's swaps would leave them.
//   order  null, or int[m]: its entries move with the rows.
//   ipiv   int[w]: step j swapped rows j and ipiv[j] - row0.
//   dst, src  int[2 w]: new[dst[i]] = old[src[i]] does those swaps to other columns of the same rows.
//          All rows that move are listed; some pairs occur twice.
//   left, right  columns before and after the leaf in the same rows of a: the swaps are applied to them, and
//          the first w rows of those to the right become L11^-1 times themselves, the rows of U.
//   info   int[1]: becomes min(info, col0 + j + 1) for the first pivot j that is zero or not finite.
//
// Grid CLUSTER, block THREADS.  Defines CLUSTER, THREADS, ROWS, WIDTH.
//
// A thread keeps ROWS rows in registers.  No row moves before the end: a row knows its `place`, where
// the swaps so far have put it, and is a candidate for pivot j while place >= j.  The largest |a_ij|
// wins, at equal size the lowest place, which is LAPACK's choice; NaN counts as larger than infinity,
// so it is met and reported.  One exchange a column: every block sends its best row to all blocks
// (st.async, counted by an mbarrier), and each picks the winner for itself.
//
// Rounding: l = a / u is one division, a - l u one fused multiply-add, both to nearest in IEEE FP32
// with subnormal numbers.  A zero pivot leaves its (zero) column and the others as they are.

#include "common.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int INFINITE = 0x7f800000;
static_assert(THREADS % WARP == 0 && WARPS <= WARP, "one lane for each warp of a block");
static_assert(CLUSTER <= 16, "the hardware's largest cluster");
static_assert(WIDTH % 4 == 0 && WIDTH <= 4 * (WARP - 1), "a warp sends a row and its rank at once");

// |a_ij| as an ordered integer, and the place of row i.  NONE loses against every row.
struct __align__(8) Candidate { int size, place; };
constexpr int NO_PLACE = 0x7fffffff;
#define NONE Candidate{-1, NO_PLACE}  // a constant object of a struct type has no address on the device

struct Rows {
    float at[ROWS][WIDTH];
    int place[ROWS];
};

// Buffers alternate between even and odd columns: a warp may be one column ahead of another.
struct Exchange {
    float warp_row[2][WARPS][WIDTH];
    float block_row[2][CLUSTER][WIDTH];
    Candidate warp_best[2][WARPS];
    Candidate block_best[2][CLUSTER];
    unsigned long long arrived[2];
};

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// The address of the same shared variable in another block of the cluster.
__device__ __forceinline__ unsigned address_in(const void* p, unsigned block) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(block));
    return address;
}

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void send(unsigned to, const float4& v, unsigned arrived) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(arrived) : "memory");
}

__device__ __forceinline__ void send(unsigned to, const Candidate& c, unsigned arrived) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%0], {%1, %2}, [%3];"
                 :: "r"(to), "r"(c.size), "r"(c.place), "r"(arrived) : "memory");
}

__device__ __forceinline__ void expect(unsigned arrived, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(arrived), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(unsigned arrived, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(arrived), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ Candidate best_of_warp(const Candidate& c) {
    const int size = __reduce_max_sync(ALL_LANES, c.size);
    return {size, __reduce_min_sync(ALL_LANES, c.size == size ? c.place : NO_PLACE)};
}

__device__ __forceinline__ int lane_of(const Candidate& winner, const Candidate& c) {
    return __ffs(__ballot_sync(ALL_LANES, c.place == winner.place)) - 1;
}

__device__ __forceinline__ Candidate best_of_rows(const Rows& rows, int j) {
    Candidate best = NONE;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const Candidate c = {__float_as_int(fabsf(rows.at[i][j])), rows.place[i]};
        const bool better = c.size > best.size || (c.size == best.size && c.place < best.place);
        if (c.place >= j && better) best = c;
    }
    return best;
}

__device__ __forceinline__ Index row_of(int i) {
    return (Index(i) * CLUSTER + blockIdx.x) * THREADS + threadIdx.x;
}

__device__ __forceinline__ void load(Rows& rows, const float* a, Index lda, Index m, Index w) {
    const bool vector = w == WIDTH && aligned16(a, lda);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const bool present = row_of(i) < m;
        Run<float, WIDTH> run;
        run.load(a + row_of(i) * lda, vector && present, present ? w : 0);
        #pragma unroll
        for (int q = 0; q < WIDTH; ++q) rows.at[i][q] = run.at[q];
        rows.place[i] = present ? int(row_of(i)) : -1;  // -1 is never a candidate
    }
}

__device__ __forceinline__ void store(const Rows& rows, float* a, Index lda, Index w) {
    const bool vector = w == WIDTH && aligned16(a, lda);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        Run<float, WIDTH> run;
        #pragma unroll
        for (int q = 0; q < WIDTH; ++q) run.at[q] = rows.at[i][q];
        if (rows.place[i] >= 0) run.store(a + rows.place[i] * lda, vector, w);
    }
}

// Publishes the best row of each warp, then of each block.  Returns the pivot and leaves the part of
// its row that is still needed in u.
__device__ __forceinline__ Candidate find_pivot(
    Exchange& x, const Rows& rows, const Candidate& best, int j, float (&u)[WIDTH]
) {
    const int parity = j & 1, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int first = j & ~3;  // whole 16-byte words
    const unsigned bytes = (WIDTH - first) * sizeof(float) + sizeof(Candidate);
    const unsigned arrived = shared_address(&x.arrived[parity]);
    if (threadIdx.x == 0) expect(arrived, CLUSTER * bytes);

    if (lane == 0) x.warp_best[parity][warp] = best;
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (rows.place[i] == best.place) {
            #pragma unroll
            for (int q = first; q < WIDTH; ++q) x.warp_row[parity][warp][q] = rows.at[i][q];
        }
    }
    __syncthreads();

    Candidate c = lane < WARPS ? x.warp_best[parity][lane] : NONE;
    const Candidate block_best = best_of_warp(c);
    const float* row = x.warp_row[parity][lane_of(block_best, c)];
    for (int block = warp; block < CLUSTER; block += WARPS) {
        const unsigned there = address_in(&x.arrived[parity], block);
        const int q = first + 4 * lane;
        if (q < WIDTH) {
            send(address_in(&x.block_row[parity][blockIdx.x][q], block),
                 *reinterpret_cast<const float4*>(row + q), there);
        }
        if (lane == WARP - 1) {
            send(address_in(&x.block_best[parity][blockIdx.x], block), block_best, there);
        }
    }
    wait(arrived, (j >> 1) & 1);

    c = lane < CLUSTER ? x.block_best[parity][lane] : NONE;
    const Candidate pivot = best_of_warp(c);
    row = x.block_row[parity][lane_of(pivot, c)];
    #pragma unroll
    for (int q = first; q < WIDTH; q += 4) {
        const float4 v = *reinterpret_cast<const float4*>(row + q);
        u[q] = v.x, u[q + 1] = v.y, u[q + 2] = v.z, u[q + 3] = v.w;
    }
    return pivot;
}

// Applies the moves to the columns beside the leaf, a warp to 32 columns and a lane to one, and solves for U in
// those to the right.  What other blocks have just written is read past the first-level cache.
__device__ __forceinline__ void finish_columns(
    float* a, Index lda, Index w, const int* dst, const int* src, Index left, Index right
) {
    __shared__ __align__(16) float l11[WIDTH][WIDTH];  // transposed: l11[j][i] = L_ij for i > j, else 0
    __shared__ int to[2 * WIDTH], from[2 * WIDTH];
    for (int e = threadIdx.x; e < WIDTH * WIDTH; e += THREADS) {
        const int i = e / WIDTH, j = e % WIDTH;
        l11[j][i] = i < w && j < i ? __ldcg(a + i * lda + j) : 0.0f;
    }
    for (int e = threadIdx.x; e < 2 * w; e += THREADS) to[e] = __ldcg(dst + e), from[e] = __ldcg(src + e);
    __syncthreads();
    const Index lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (Index c = (warp * CLUSTER + blockIdx.x) * WARP + lane; c < left + right; c += THREADS * CLUSTER) {
        float* column = a + (c < left ? c - left : w + c - left);
        float top[WIDTH];  // the rows that become 0 .. w - 1
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i) top[i] = i < w ? column[from[i] * lda] : 0.0f;
        // The rows that were there fill the gaps, as many at a time as there are registers for.
        constexpr int BATCH = WIDTH < 16 ? WIDTH : 16;
        #pragma unroll 1
        for (int first = 0; first < w; first += BATCH) {
            float displaced[BATCH];
            #pragma unroll
            for (int i = 0; i < BATCH; ++i) displaced[i] = first + i < w ? column[(first + i) * lda] : 0.0f;
            #pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const int place = first + i < w ? to[w + first + i] : 0;
                if (place >= w) column[place * lda] = displaced[i];
            }
        }
        if (c >= left) {
            #pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                // Without it the compiler would keep all of L11 in registers it does not have.
                asm volatile("" ::: "memory");
                #pragma unroll
                for (int i = j + 1; i < WIDTH; ++i) top[i] = fmaf(-l11[j][i], top[j], top[i]);
            }
        }
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            if (i < w) column[i * lda] = top[i];
        }
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
tcs_panel_cluster(
    float* a, Index lda, Index m, Index w, int* order, int* ipiv, int* dst, int* src, int* info,
    Index row0, Index col0, Index left, Index right
) {
    __shared__ __align__(16) Exchange x;
    if (threadIdx.x < 2) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                     :: "r"(shared_address(&x.arrived[threadIdx.x])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    Rows rows;
    load(rows, a, lda, m, w);
    cluster_barrier();  // no block may send before all have set up their barriers

    Candidate best = best_of_warp(best_of_rows(rows, 0));
    #pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        if (j >= w) continue;  // not `break`: the loop would stay rolled and the rows go to local memory
        float u[WIDTH];
        const Candidate pivot = find_pivot(x, rows, best, j, u);
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            ipiv[j] = int(row0 + pivot.place);
            if (pivot.size == 0 || pivot.size >= INFINITE) atomicMin(info, int(col0 + j + 1));
        }
        // The next column comes first, so that its search overlaps the rest of the update.
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int place = rows.place[i];
            rows.place[i] = place == pivot.place ? j : place == j ? pivot.place : place;
            if (rows.place[i] > j && pivot.size != 0) {
                rows.at[i][j] /= u[j];
                if (j + 1 < WIDTH) rows.at[i][j + 1] = fmaf(-rows.at[i][j], u[j + 1], rows.at[i][j + 1]);
            }
        }
        if (j + 1 < WIDTH) best = best_of_warp(best_of_rows(rows, j + 1));
        #pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (rows.place[i] > j && pivot.size != 0) {
                #pragma unroll
                for (int q = j + 2; q < WIDTH; ++q) rows.at[i][q] = fmaf(-rows.at[i][j], u[q], rows.at[i][q]);
            }
        }
    }

    int index[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) index[i] = order && row_of(i) < m ? order[row_of(i)] : 0;
    // Every row has been read, and no block leaves while another may still send to it.
    cluster_barrier();
    store(rows, a, lda, w);
    #pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const Index row = row_of(i), place = rows.place[i];
        if (row >= m) continue;
        if (order) order[place] = index[i];
        if (place < w) dst[place] = int(place), src[place] = int(row);
        if (row < w) dst[w + row] = int(place), src[w + row] = int(row);
    }
    if (left + right == 0) return;
    cluster_barrier();  // the factors and the lists of moves are complete
    finish_columns(a, lda, w, dst, src, left, right);
}
