// One tensor-core instruction on many tiles, and a chain of it along k: every sum of the chain is stored.
//
//   out   (steps, m, n) FP32: the sums after each step
//   c     (m, n) FP32: the sums before the first step
//   a     (m, steps, 8) words of 32 bits, along k: two numbers of a 16-bit format, or one of TF32
//   b     (n, steps, 8) words: the columns of B
//
// Defines KIND (0 mma.sync m16n8 FP16, 1 BF16, 2 TF32; 3 wgmma m64n8 FP16, 4 BF16, 5 TF32).  A step has 16 values of
// k, or 8 with TF32.  m is a multiple of 16 (wgmma: 64), n of 8.  Grid (n / 8, m / rows), block 32 (wgmma: 128).
//
// Counted in 32-bit words, the fragments of all these instructions are alike (kernels/gemm/gemm.cuh); with wgmma, each
// warp has 16 rows of its own.  B of wgmma is in shared memory without a swizzle: for each half of k, 8 columns of 16
// bytes.

constexpr int WORDS = 8, COLUMNS = 8;
constexpr bool IS_WGMMA = KIND >= 3;
constexpr int WARPS = IS_WGMMA ? 4 : 1, ROWS = 16 * WARPS;

#if KIND < 3

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned* b, long long stride) {
    const unsigned* column = b + threadIdx.x % 32 / 4 * stride + threadIdx.x % 4;
    const unsigned b0 = column[0], b1 = column[4];
#if KIND == 0
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#elif KIND == 1
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
#define INSTRUCTION "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
#endif
    asm volatile(INSTRUCTION "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

__shared__ __align__(128) unsigned tile[2 * COLUMNS * 4];

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned* b, long long stride) {
    __syncthreads();  // the tile of the last step has been read
    if (threadIdx.x < COLUMNS * WORDS) {
        const int column = threadIdx.x / WORDS, word = threadIdx.x % WORDS;
        tile[word / 4 * COLUMNS * 4 + column * 4 + word % 4] = b[column * stride + word];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    // Both halves of k are 128 bytes apart.  The distance of groups of 8 columns is not used; there is one group.
    constexpr unsigned long long APART = 128 >> 4;
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    const unsigned long long descriptor = APART << 32 | APART << 16 | (address & 0x3ffff) >> 4;
#if KIND == 3
#define INSTRUCTION "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
#define OPTIONS "add, 1, 1, 0;\n}"
#elif KIND == 4
#define INSTRUCTION "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
#define OPTIONS "add, 1, 1, 0;\n}"
#else
#define INSTRUCTION "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 "
#define OPTIONS "add, 1, 1;\n}"
#endif
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                 INSTRUCTION "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, " OPTIONS
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    #pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}

#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
instructions(float* out, const float* c, const unsigned* a, const unsigned* b, long long m, long long n, long long steps) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const long long row = blockIdx.y * ROWS + threadIdx.x / 32 * 16 + g, col = blockIdx.x * COLUMNS;
    float d[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = c[(row + i / 2 * 8) * n + col + 2 * t + i % 2];
    for (long long s = 0; s < steps; ++s) {
        unsigned words[4];
        #pragma unroll
        for (int r = 0; r < 4; ++r) words[r] = a[((row + r % 2 * 8) * steps + s) * WORDS + t + r / 2 * 4];
        multiply(d, words, b + (col * steps + s) * WORDS, steps * WORDS);
        #pragma unroll
        for (int i = 0; i < 4; ++i) out[(s * m + row + i / 2 * 8) * n + col + 2 * t + i % 2] = d[i];
    }
}
