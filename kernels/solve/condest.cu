// The vector work of the condition estimate (N. J. Higham, ACM Trans. Math. Software 14 (1988), 381-396).
//
//   state  double[2]: the number of the largest entry in the last step, at first -1; and 1 as long as the ascent
//          continues, then 0.
//
// tcs_probes    probes (n x 4, row-major): 1 / n, the alternating vector of Higham's algorithm, which guards against
//               matrices for which the ascent fails, and two vectors of uniform random entries of variance 1, the same
//               in every call.
// tcs_signs     sign_i = the sign of v_i, entries `step` apart, or zeros if the ascent is over.
// tcs_steepest  found[0], found[1]: the first i for which |z_i| is largest, and |z_i|; a NaN counts as larger than
//               infinity.  The ascent is over if i is the same as in the last step.  unit: the unit vector e_i, or
//               zeros if the ascent is over.  One block of 1024.
// tcs_held      compares b and y (n x k, row-major), r = b - y.  z (n x last, row-major) has a column for each of the
//               `last` rightmost columns of b.  sums has three parts: sum r_i^2 of each of the first k - last
//               columns of b, sum b_i^2 of each of these columns, and |sum z_i r_i| of each of the `last` columns.
//               k blocks of 1024.
//
// Unless stated, grid ceil(n / 256), block 256.

#include "common/common.cuh"
#include "common/probe.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256, SEARCHING = 1024;
using Bits = unsigned long long;

extern "C" __global__ void __launch_bounds__(THREADS) tcs_probes(double* probes, Index n) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const double size = 1.0 + double(i) / double(max(Index(1), n - 1));
    probes[4 * i] = 1.0 / double(n), probes[4 * i + 1] = i % 2 ? -size : size;
    #pragma unroll
    for (unsigned c = 0; c < 2; ++c) probes[4 * i + 2 + c] = random_probe(i, c);
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_signs(double* sign, const double* __restrict__ v, Index step, const double* __restrict__ state, Index n) {
    const Index i = Index(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) sign[i] = copysign(state[1], v[i * step]);
}

// An entry of z: its size as ordered bits, and its number.
struct Entry {
    Bits size;
    Index at;

    __device__ __forceinline__ void keep_larger(Entry other) {
        if (other.size > size || other.size == size && other.at < at) *this = other;
    }
};

extern "C" __global__ void __launch_bounds__(SEARCHING)
tcs_steepest(double* unit, double* found, double* state, const double* __restrict__ z, Index step, Index n) {
    __shared__ Entry of_warp[SEARCHING / WARP];
    Entry best = {0, n};
    #pragma unroll 4
    for (Index i = threadIdx.x; i < n; i += SEARCHING) {
        const double v = z[i * step];
        best.keep_larger({v == v ? Bits(__double_as_longlong(fabs(v))) : ~Bits(0), i});
    }
    auto reduce = [&] {
        butterfly([&](int d) { best.keep_larger({of_partner(best.size, d), of_partner(best.at, d)}); });
    };
    reduce();
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = best;
    __syncthreads();
    best = of_warp[threadIdx.x % WARP];
    reduce();
    const bool goes_on = state[1] != 0 && double(best.at) != state[0];
    for (Index i = threadIdx.x; i < n; i += SEARCHING) unit[i] = goes_on && i == best.at;
    __syncthreads();  // all have read the state before it changes
    if (threadIdx.x == 0) {
        found[0] = double(best.at), found[1] = fabs(z[best.at * step]);
        state[0] = double(best.at), state[1] = goes_on;
    }
}

extern "C" __global__ void __launch_bounds__(SEARCHING)
tcs_held(
    double* sums, const double* __restrict__ b, const double* __restrict__ y, const double* __restrict__ z, Index n,
    int k, int last
) {
    __shared__ double of_warp[2][SEARCHING / WARP];
    const int column = blockIdx.x, probes = k - last, behind = column - probes;
    double sum = 0, size = 0;
    #pragma unroll 4
    for (Index i = threadIdx.x; i < n; i += SEARCHING) {
        const double v = b[i * k + column], r = v - y[i * k + column];
        sum += r * (behind < 0 ? r : z[i * last + behind]);
        size += v * v;
    }
    auto reduce = [&] {
        butterfly([&](int d) {
            sum += of_partner(sum, d);
            size += of_partner(size, d);
        });
    };
    reduce();
    if (threadIdx.x % WARP == 0) of_warp[0][threadIdx.x / WARP] = sum, of_warp[1][threadIdx.x / WARP] = size;
    __syncthreads();
    sum = of_warp[0][threadIdx.x % WARP], size = of_warp[1][threadIdx.x % WARP];
    reduce();
    if (threadIdx.x) return;
    if (behind < 0) {
        sums[column] = sum, sums[probes + column] = size;
    } else {
        sums[probes + column] = fabs(sum);
    }
}
