// Fragments from shared memory by ldmatrix: 8 x 8 blocks of 16-bit numbers.
//
// Lane l gives the address of row l % 8 of block l / 8, 16 bytes.  If only two blocks are loaded, the addresses of
// lanes 16 and up are not used.  Register i of lane l becomes entries 2 (l % 4) and 2 (l % 4) + 1 of a line of block i:
// of row l / 4, or of column l / 4 if TURNED.
#pragma once

#include "common/sm_addresses.cuh"

template <bool TURNED>
__device__ __forceinline__ void load_blocks(unsigned (&x)[4], const char* row) {
    const unsigned from = shared_address(row);
    if (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
    }
}

template <bool TURNED>
__device__ __forceinline__ void load_blocks(unsigned (&x)[2], const char* row) {
    const unsigned from = shared_address(row);
    if (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
    }
}
