// Makes its stream wait until the panel in another stream is resident.  The next kernel of this stream takes all free
// multiprocessors.  It starts after this gate, so the panel already has those that it needs.
//
//   started   unsigned[17].  The panel sets a bit in words 1 to 8 for each multiprocessor it runs on, and then word
//             0.  The gate copies words 1 to 8 to words 9 to 16, and clears words 0 to 8 for the next use.
//   patience  nanoseconds after which the gate opens in any case.  Results do not depend on it, only speed.
//   more      number of further multiprocessors to mark as taken: those with the lowest numbers.
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
