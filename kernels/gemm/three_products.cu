// The passes around products of complex matrices by three real products.
//
//   x         T_LOW planes u, v and u + v of a complex matrix u + i v (rows, columns), row-major: leading dimension ld,
//             `plane` entries apart.  For BF16 there are six planes; a number is the sum of its parts in planes i and
//             i + 3.
//   z         complex double; rows are z_row entries apart, columns z_col, or 1 where z_col is no argument.
//   products  T_A[3][rows][columns] contiguous: the products of u, of v, and of u + v of two factors.
//   scale     null, or a power of two for each row.
//
//   tcs_planes        x = z scale.
//   tcs_add_product   x = x + sign P, or, if `start` is 0, x = sign P.  P is the complex product.
//   tcs_join_planes   z = x / scale; column j of x becomes column order[j] of z.
//   tcs_join_product  z = P.
//
// Grid (ceil(columns / 256), min(rows, 65535)), block 256.
// Defines T_A (float or double), T_LOW (bf16 for float, double for double).
// Rounding: numbers, sums and differences are rounded to T_A; pairs of BF16 numbers keep 16 significant bits.

#include "common/common.cuh"
#include "common/hi_lo.cuh"

constexpr int THREADS = 256;

struct Complex { double re, im; };

// Stores a number as an entry of a plane, or for BF16 as the sum of two entries `step` apart, in two planes.
__device__ __forceinline__ void store_parts(double* x, Index step, double value) { x[0] = value; }

__device__ __forceinline__ void store_parts(bf16* x, Index step, float value) { split_entry(value, x[0], x[step]); }

__device__ __forceinline__ double load(const double* x, Index step) { return x[0]; }

__device__ __forceinline__ float load(const bf16* x, Index step) { return widen(x[0]) + widen(x[step]); }

__device__ __forceinline__ void store(T_LOW* x, Index plane, T_A u, T_A v) {
    store_parts(x, 3 * plane, u);
    store_parts(x + plane, 3 * plane, v);
    store_parts(x + 2 * plane, 3 * plane, u + v);
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_planes(
    T_LOW* x, Index plane, Index ld, const Complex* __restrict__ z, Index z_row, Index z_col, const double* scale,
    Index rows, Index columns
) {
    const Index j = Index(blockIdx.x) * THREADS + threadIdx.x;
    if (j >= columns) return;
    for (Index i = blockIdx.y; i < rows; i += gridDim.y) {
        const Complex of_z = z[i * z_row + j * z_col];
        const double by = scale ? scale[i] : 1.0;
        store(x + i * ld + j, plane, T_A(of_z.re * by), T_A(of_z.im * by));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_add_product(
    T_LOW* x, Index plane, Index ld, const T_A* __restrict__ products, double sign, Index start, Index rows,
    Index columns
) {
    const Index j = Index(blockIdx.x) * THREADS + threadIdx.x, size = rows * columns;
    if (j >= columns) return;
    for (Index i = blockIdx.y; i < rows; i += gridDim.y) {
        const T_A* product = products + i * columns + j;
        T_LOW* place = x + i * ld + j;
        const T_A uu = product[0], vv = product[size], ss = product[2 * size];
        const T_A u = start ? load(place, 3 * plane) : T_A(0), v = start ? load(place + plane, 3 * plane) : T_A(0);
        store(place, plane, u + T_A(sign) * (uu - vv), v + T_A(sign) * (ss - uu - vv));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_join_planes(
    Complex* z, Index z_row, const int* order, const double* scale, const T_LOW* __restrict__ x, Index plane, Index ld,
    Index rows, Index columns
) {
    const Index j = Index(blockIdx.x) * THREADS + threadIdx.x;
    if (j >= columns) return;
    const Index to = order[j];
    for (Index i = blockIdx.y; i < rows; i += gridDim.y) {
        const T_LOW* place = x + i * ld + j;
        const double by = scale ? scale[i] : 1.0;
        z[i * z_row + to] = {load(place, 3 * plane) / by, load(place + plane, 3 * plane) / by};
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_join_product(Complex* z, Index z_row, const T_A* __restrict__ products, Index rows, Index columns) {
    const Index j = Index(blockIdx.x) * THREADS + threadIdx.x, size = rows * columns;
    if (j >= columns) return;
    for (Index i = blockIdx.y; i < rows; i += gridDim.y) {
        const T_A* product = products + i * columns + j;
        const T_A uu = product[0], vv = product[size], ss = product[2 * size];
        z[i * z_row + j] = {uu - vv, ss - uu - vv};
    }
}
