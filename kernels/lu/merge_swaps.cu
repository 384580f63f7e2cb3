// Combines the swaps of all strips of a panel, in two launches one after the other.  A third kernel, launched at the
// end of the LU, makes the report of the factorization.
//
// tcs_merge_swaps, of ceil(m / THREADS) blocks, k <= m:
//   local  int[m]: after the swaps of the panel, its row i is the row that was local[i] before them.
//   order  int[m]: before the swaps of the panel, its row i is row order[i] of A.
//   ipiv   int[k]: the row of the matrix that was swapped with row start + i; start is the panel's first row.
//   dst, src  int[2 k]: new[dst[i]] = old[src[i]] for all i does all swaps in other columns.  Entry i < k is for the
//          row that becomes row i, entry k + i for the row that becomes row ipiv[i] - start; a pair may occur more than
//          once.
//   moved  int[m] becomes order[local].
// tcs_restart, of the same number of blocks:
//   order  int[m] becomes moved, and local[i] becomes i for the next panel.
//   any    unsigned[1] becomes 1 if a row was swapped with another, else 0.
// tcs_report, one block of REPORT_THREADS:
//   report double[4]: info, the number of i < n with ipiv[i] != i, worst (of invert_diagonal_blocks.cu), and beyond
//          (of gemm_split.cu).

#include "common/common.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, REPORT_THREADS = 1024;

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_merge_swaps(
    int* dst, int* src, int* moved, const int* __restrict__ order, const int* __restrict__ local, Index m,
    const int* __restrict__ ipiv, Index k, Index start
) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= m) return;
    const int from = local[i];
    moved[i] = order[from];
    if (i >= k) return;
    const int pivot = ipiv[i] - int(start);
    dst[i] = int(i), src[i] = from;
    dst[k + i] = pivot, src[k + i] = local[pivot];
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_restart(
    int* order, int* local, const int* __restrict__ moved, Index m, unsigned* any,
    const int* __restrict__ ipiv, Index k, Index start
) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x;
    if (blockIdx.x == 0) {
        bool swapped = false;
        for (Index j = i; j < k; j += THREADS) swapped |= ipiv[j] != int(start + j);
        swapped = __syncthreads_or(swapped);
        if (i == 0) *any = swapped;
    }
    if (i >= m) return;
    order[i] = moved[i];
    local[i] = int(i);
}

extern "C" __global__ void __launch_bounds__(REPORT_THREADS)
tcs_report(
    double* report, const int* __restrict__ info, const int* __restrict__ ipiv, Index n,
    const double* __restrict__ worst, const int* __restrict__ beyond
) {
    __shared__ int of_warp[REPORT_THREADS / WARP];
    int moved = 0;
    #pragma unroll 4
    for (int i = threadIdx.x; i < n; i += REPORT_THREADS) moved += ipiv[i] != i;
    moved = sum_of_lanes(moved);
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = moved;
    __syncthreads();
    if (threadIdx.x) return;
    int all = 0;
    for (int w = 0; w < REPORT_THREADS / WARP; ++w) all += of_warp[w];
    report[0] = *info, report[1] = all, report[2] = *worst, report[3] = *beyond;
}
