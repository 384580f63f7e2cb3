// Where a block runs.
#pragma once

// The number of the multiprocessor; what runs on one stays there.
__device__ __forceinline__ unsigned multiprocessor() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}
