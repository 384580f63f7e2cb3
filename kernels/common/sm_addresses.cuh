// The multiprocessor of a block, and addresses of its shared memory.
#pragma once

// The number of the multiprocessor; a block stays on it to its end.
__device__ __forceinline__ unsigned multiprocessor() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

// The address of a shared variable as instructions for shared memory take it.
__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// The address of the same shared variable in another block of the cluster.
__device__ __forceinline__ unsigned address_in(unsigned here, unsigned block) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
    return there;
}
__device__ __forceinline__ unsigned address_in(const void* p, unsigned block) {
    return address_in(shared_address(p), block);
}
