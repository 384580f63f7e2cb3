// Lets what follows in its stream start once a kernel of another stream is resident: launched before a kernel that
// would take every multiprocessor, it leaves to the other the ones it needs.
//
//   started   unsigned[1]: the other kernel sets it, and the gate clears it for the next use.
//   patience  nanoseconds after which the gate opens in any case: the order is a matter of speed alone.
//
// Grid 1, block 1.

#include "common.cuh"

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

extern "C" __global__ void tcs_gate(volatile unsigned* started, Index patience) {
    const unsigned long long start = nanoseconds();
    while (*started == 0 && nanoseconds() - start < patience) {}
    *started = 0;
}
