// Do one kind of work for a given time, one block on each of some multiprocessors, while a panel runs on the others.
//
//   words        float4[count], count a power of two: the words are read, or read and written back unchanged
//   nanoseconds  time for which each block works
//   done         unsigned long long[1]: the number of tensor-core instructions, or of words, is added to it
//
// Defines KIND (0: mma.sync in FP16 on registers; 1: reads; 2: reads and writes).

constexpr int WARP = 32, UNROLL = 8;

__device__ __forceinline__ unsigned long long time_now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

#if KIND == 0

// Eight instructions for each of UNROLL independent sums.
__device__ __forceinline__ void work(float4*, long long, long long, float& kept) {
    float d[UNROLL][4] = {};
    const unsigned a = 0x3c003800 + threadIdx.x, b = 0x34003c00 + threadIdx.x;  // FP16, from 0.25 to 1.5
    #pragma unroll 1
    for (int i = 0; i < 8; ++i) {
        #pragma unroll
        for (int s = 0; s < UNROLL; ++s) {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                         "{%0, %1, %2, %3}, {%4, %5, %4, %5}, {%5, %4}, {%0, %1, %2, %3};"
                         : "+f"(d[s][0]), "+f"(d[s][1]), "+f"(d[s][2]), "+f"(d[s][3]) : "r"(a), "r"(b));
        }
    }
    #pragma unroll
    for (int s = 0; s < UNROLL; ++s) kept += d[s][0];
}
constexpr int EACH = 8 * UNROLL, SHARERS = WARP;  // instructions of one call, and lanes that issue one together

#else

__device__ __forceinline__ void work(float4* words, long long count, long long turn, float& kept) {
    float4 v[UNROLL];
    const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
    const long long first = turn * UNROLL * threads + blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) v[i] = __ldcg(words + ((first + i * threads) & (count - 1)));
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
#if KIND == 1
        kept += v[i].x + v[i].y + v[i].z + v[i].w;
#else
        words[(first + i * threads) & (count - 1)] = v[i];
#endif
    }
}
constexpr int EACH = UNROLL, SHARERS = 1;

#endif

extern "C" __global__ void __launch_bounds__(512, 1)
contention(float4* words, long long count, long long nanoseconds, unsigned long long* done) {
    const unsigned long long start = time_now();
    float kept = 0;
    long long turn = 0;
    for (; time_now() - start < nanoseconds; ++turn) work(words, count, turn, kept);
    // Never true, but the compiler cannot know this, so it does not remove the work.
    if (kept == -1.0f) words[0].x = kept;
    if (threadIdx.x % SHARERS == 0) atomicAdd(done, static_cast<unsigned long long>(turn) * EACH);
}
