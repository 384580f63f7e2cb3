// Products of warpgroups (wgmma).
#pragma once

#include "gemm/wgmma_sizes.cuh"

// Describes to wgmma a tile of boxes, each 64 x 64 entries in rows of 128 swizzled bytes.  Groups of 8 rows are 1024
// bytes apart; along the rows of a transposed operand the next box follows after PANEL_BYTES.
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long SWIZZLE_128 = 1ull << 62, GROUP_OF_8 = 1024 >> 4, NEXT_PANEL = PANEL_BYTES >> 4;
    return SWIZZLE_128 | GROUP_OF_8 << 32 | NEXT_PANEL << 16 | (address & 0x3ffff) >> 4;
}

// What a step of 16 along k adds to a descriptor: 32 bytes in each row, or 16 rows.
template <bool ALONG_K>
constexpr unsigned long long STEP_16 = (ALONG_K ? 32 : 16 * 128) >> 4;

#define SUM4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUM16(i) SUM4(i), SUM4(i + 4), SUM4(i + 8), SUM4(i + 12)
#define SUM64(i) SUM16(i), SUM16(i + 16), SUM16(i + 32), SUM16(i + 48)

// d (64 x BLOCK_N) = a b, plus d if `add`, for 16 values of k.
#define WGMMA(SHAPE, TYPE, LIST, A, B, ADD, TA, TB) \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n" \
    "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " " LIST A ", " B ", p, 1, 1, " TA ", " TB ";\n}"

#define LIST_64 \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
#define LIST_128 \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
        "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, " \
        "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, " \
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, " \
        "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, " \
        "%123, %124, %125, %126, %127}, "

__device__ __forceinline__ void wgmma(
    fp16, float (&d)[64], unsigned long long a, unsigned long long b, int add
) {
    asm volatile(WGMMA("m64n128k16", "f16", LIST_64, "%64", "%65", "%66", "%67", "%68")
                 : SUM64(0) : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(1 - TRANS_B));
}
__device__ __forceinline__ void wgmma(
    bf16, float (&d)[64], unsigned long long a, unsigned long long b, int add
) {
    asm volatile(WGMMA("m64n128k16", "bf16", LIST_64, "%64", "%65", "%66", "%67", "%68")
                 : SUM64(0) : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(1 - TRANS_B));
}
__device__ __forceinline__ void wgmma(
    fp16, float (&d)[128], unsigned long long a, unsigned long long b, int add
) {
    asm volatile(WGMMA("m64n256k16", "f16", LIST_128, "%128", "%129", "%130", "%131", "%132")
                 : SUM64(0), SUM64(64) : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(1 - TRANS_B));
}
__device__ __forceinline__ void wgmma(
    bf16, float (&d)[128], unsigned long long a, unsigned long long b, int add
) {
    asm volatile(WGMMA("m64n256k16", "bf16", LIST_128, "%128", "%129", "%130", "%131", "%132")
                 : SUM64(0), SUM64(64) : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(1 - TRANS_B));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// Keeps the compiler from moving reads and writes of the sums across a wait.
__device__ __forceinline__ void settle(float (&d)[SUMS]) {
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
