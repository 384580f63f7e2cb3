// Where a block runs, and where its shared memory is.
#pragma once

// The number of the multiprocessor; what runs on one stays there.
__device__ __forceinline__ unsigned multiprocessor() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// The address of the same shared variable in another block of the cluster.
__device__ __forceinline__ unsigned address_in(const void* p, unsigned block) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(block));
    return address;
}
