// Tensor cores without memory traffic: the operands are ones and are loaded once.  An instruction sums
// K products, so it adds K to its sums.
//
//   sums  result: every sum of every thread; each must be `count` times K
//   where result: the multiprocessor of each block, to show that no two share one
//
// Defines KIND (0: mma.sync, FP16 in, FP32 out; 1: mma.sync, INT8 in, INT32 out; 2: wgmma, FP16 in, FP32 out) and
// ILP, the independent sums of a warp (of a warpgroup: 1).  Block: the warps to be measured.

constexpr int UNROLL = 16;  // instructions for each sum in one turn of the loop

#if KIND == 1
typedef int Sum;
constexpr unsigned ONES = 0x01010101;  // four INT8
#else
typedef float Sum;
constexpr unsigned ONES = 0x3c003c00;  // two FP16
#endif

#if KIND < 2

constexpr int SUMS = 4;  // of a 16 x 8 tile, in one thread

__device__ __forceinline__ void multiply(Sum (&d)[SUMS], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if KIND == 0
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

__device__ __forceinline__ void repeat(Sum (&d)[ILP][SUMS], long long count) {
    const unsigned a[4] = {ONES, ONES, ONES, ONES}, b[2] = {ONES, ONES};
    for (long long i = 0; i < count; i += UNROLL) {
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            #pragma unroll
            for (int s = 0; s < ILP; ++s) multiply(d[s], a, b);
        }
    }
}

#else

constexpr int SUMS = 128;  // of a 64 x 256 tile, in one thread
static_assert(ILP == 1, "the sums of a warpgroup take its registers");

// Rows hold 64 values of k in 128 bytes, swizzled; groups of 8 rows are 1024 bytes apart, as in wgmma.cuh.
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long SWIZZLE_128 = 1ull << 62, GROUP_OF_8 = 1024 >> 4;
    return SWIZZLE_128 | GROUP_OF_8 << 32 | 1ull << 16 | (address & 0x3ffff) >> 4;
}

#define SUM4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUM16(i) SUM4(i), SUM4(i + 4), SUM4(i + 8), SUM4(i + 12)
#define SUM64(i) SUM16(i), SUM16(i + 16), SUM16(i + 32), SUM16(i + 48)
#define NAMES16(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h ", " \
    "%" #i ", %" #j ", %" #k ", %" #l ", %" #m ", %" #n ", %" #o ", %" #p

__device__ __forceinline__ void multiply(Sum (&d)[SUMS], unsigned long long a, unsigned long long b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 NAMES16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) ", "
                 NAMES16(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31) ", "
                 NAMES16(32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47) ", "
                 NAMES16(48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63) ", "
                 NAMES16(64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79) ", "
                 NAMES16(80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95) ", "
                 NAMES16(96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111) ", "
                 NAMES16(112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127)
                 "}, %128, %129, add, 1, 1, 0, 0;\n}"
                 : SUM64(0), SUM64(64) : "l"(a), "l"(b));
}

extern __shared__ __align__(1024) unsigned char operands[];

// Tiles with 64 values of k: 256 rows of B that all warpgroups share, then 64 rows of A for each warpgroup.
__device__ __forceinline__ void repeat(Sum (&d)[ILP][SUMS], long long count) {
    constexpr int ROW = 128, STEP_16 = 32 >> 4;
    const unsigned tiles = (static_cast<unsigned>(__cvta_generic_to_shared(operands)) + 1023) & ~1023u;
    const int group = threadIdx.x / 128, words = (256 + blockDim.x / 128 * 64) * ROW / 4;
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
        asm volatile("st.shared.u32 [%0], %1;" :: "r"(tiles + 4 * i), "r"(ONES) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned long long b = descriptor(tiles), a = descriptor(tiles + (256 + 64 * group) * ROW);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (long long i = 0; i < count; i += UNROLL) {
        #pragma unroll
        for (int u = 0; u < UNROLL; ++u) multiply(d[0], a + u % 4 * STEP_16, b + u % 4 * STEP_16);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(d[0][i]) :: "memory");
}

#endif

extern "C" __global__ void __launch_bounds__(KIND < 2 ? 1024 : 384, 1)
mma_rate(Sum* sums, int* where, long long count) {
    Sum d[ILP][SUMS] = {};
    repeat(d, count);
    Sum* mine = sums + (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * ILP * SUMS;
    #pragma unroll
    for (int s = 0; s < ILP; ++s) {
        #pragma unroll
        for (int i = 0; i < SUMS; ++i) mine[s * SUMS + i] = d[s][i];
    }
    if (threadIdx.x == 0) asm volatile("mov.u32 %0, %%smid;" : "=r"(where[blockIdx.x]));
}
