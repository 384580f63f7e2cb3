// Products of small matrices in FP64, by the tensor cores from compute capability 8 on.
#pragma once

#include "common/common.cuh"

// add_tile_product adds A B to c for A 8 x 4 and B 4 x 8, by a warp.  Lane i has a = A[i / 4][i % 4],
// b = B[i % 4][i / 4], and c = C[i / 4][2 (i % 4)] and its right neighbour.  Each product is added to c with one
// rounding.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void add_tile_product(double& c0, double& c1, double a, double b) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c0), "+d"(c1) : "d"(a), "d"(b)
    );
}
#else
// It is not inlined: with its shuffles repeated at each of many uses, compiling would take ten times as long.
__device__ __noinline__ double2 tile_product_by_shuffles(double2 c, double a, double b) {
    const int lane = threadIdx.x % WARP, row = lane / 4 * 4, column = lane % 4 * 8;
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        const double v = __shfl_sync(ALL_LANES, a, row + k);
        const double left = __shfl_sync(ALL_LANES, b, column + k), right = __shfl_sync(ALL_LANES, b, column + 4 + k);
        c.x = fma(v, left, c.x), c.y = fma(v, right, c.y);
    }
    return c;
}

__device__ __forceinline__ void add_tile_product(double& c0, double& c1, double a, double b) {
    const double2 c = tile_product_by_shuffles(make_double2(c0, c1), a, b);
    c0 = c.x, c1 = c.y;
}
#endif

// add_long_product adds A B to c for A 16 x 16 and B 16 x 8.  Lane i has a[2 s + h] = A[i / 4 + 8 h][4 s + i % 4],
// b[s] = B[4 s + i % 4][i / 4], and c[2 h], c[2 h + 1] = C[i / 4 + 8 h][2 (i % 4)] and its right neighbour.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void add_long_product(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
          "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3])
    );
}
#else
__device__ __forceinline__ void add_long_product(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
    #pragma unroll
    for (int s = 0; s < 4; ++s) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) add_tile_product(c[2 * h], c[2 * h + 1], a[2 * s + h], b[s]);
    }
}
#endif
