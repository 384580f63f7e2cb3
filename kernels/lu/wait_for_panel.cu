// Lets what follows in its stream start once a kernel of another stream is resident: launched before a kernel that
// would take every multiprocessor, it leaves to the other the ones it needs.
//
//   started   unsigned[17].  The other kernel sets bits of words 1 to 8, those of the multiprocessors it runs on, then
//             word 0; the gate moves the bits to words 9 to 16 and clears the others for the next use.
//   patience  nanoseconds after which the gate opens in any case: the order is a matter of speed alone.
//   more      how many multiprocessors to take besides, those with the lowest numbers.
//
// Grid 1, block 1.

#include "common/common.cuh"

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

extern "C" __global__ void tcs_gate(volatile unsigned* started, Index patience, Index more) {
    constexpr int WORDS = 8;
    const unsigned long long start = nanoseconds();
    while (*started == 0 && nanoseconds() - start < patience) {}
    __threadfence();
    #pragma unroll
    for (int i = 1; i <= WORDS; ++i) {
        unsigned taken = started[i];
        for (; more > 0 && ~taken; --more) taken |= taken + 1;
        started[WORDS + i] = taken;
    }
    #pragma unroll
    for (int i = 0; i <= WORDS; ++i) started[i] = 0;
}
