// C -= A B in FP16 without tensor cores: each product is added to its sum with one rounding to FP16.
//
//   c       m x n, rows of `pitch` numbers; it is overwritten
//   a, b    m x depth and depth x n, contiguous rows
//
// m and n are multiples of TILE and depth is a multiple of DEPTH.  All addresses are multiples of 16 bytes.
// The grid has n / TILE x m / TILE blocks.  The products of an entry are added in the order of their index.

constexpr int TILE = 128, DEPTH = 16, PER = 8, THREADS = 256;
constexpr int PAIRS = PER / 2;  // a thread has PER x PER entries, as pairs of one row

// Numbers are in FP16, as bits.
union Eight {
    uint4 word;
    unsigned short each[PER];
    unsigned pair[PAIRS];
};
constexpr unsigned short SIGN = 0x8000;

__device__ __forceinline__ uint4 at(const unsigned short* address) { return *reinterpret_cast<const uint4*>(address); }

__device__ __forceinline__ void multiply_add(unsigned& sums, unsigned x, unsigned y) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sums) : "r"(x), "r"(y));
}

extern "C" __global__ void __launch_bounds__(THREADS)
fp16_update(unsigned short* c, const unsigned short* a, const unsigned short* b, int depth, long long n, long long pitch) {
    // The tile of A is stored transposed, so that a thread reads the entries of PER rows at once.
    __shared__ alignas(16) unsigned short of_a[DEPTH][TILE + PER], of_b[DEPTH][TILE];
    const int t = threadIdx.x, row = t / (TILE / PER) * PER, column = t % (TILE / PER) * PER;
    c += (static_cast<long long>(blockIdx.y) * TILE + row) * pitch + blockIdx.x * TILE + column;
    a += static_cast<long long>(blockIdx.y) * TILE * depth;
    b += blockIdx.x * TILE;

    Eight sums[PER];
    #pragma unroll
    for (int i = 0; i < PER; ++i) sums[i].word = at(c + i * pitch);

    const int a_row = t / 2, a_column = t % 2 * PER, b_row = t / (TILE / PER);
    const unsigned short* next_a = a + static_cast<long long>(a_row) * depth + a_column;
    const unsigned short* next_b = b + b_row * n + column;
    Eight from_a, from_b;
    from_a.word = at(next_a), from_b.word = at(next_b);
    for (int k = 0; k < depth; k += DEPTH) {
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < PER; ++i) of_a[a_column + i][a_row] = from_a.each[i] ^ SIGN;
        *reinterpret_cast<uint4*>(&of_b[b_row][column]) = from_b.word;
        __syncthreads();
        if (k + DEPTH < depth) {  // in flight during the products
            from_a.word = at(next_a + k + DEPTH);
            from_b.word = at(next_b + (k + DEPTH) * n);
        }
        #pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            Eight factors, row_of_b;
            factors.word = at(&of_a[d][row]);
            row_of_b.word = at(&of_b[d][column]);
            #pragma unroll
            for (int i = 0; i < PER; ++i) {
                const unsigned both = factors.each[i] * 0x10001u;
                #pragma unroll
                for (int j = 0; j < PAIRS; ++j) multiply_add(sums[i].pair[j], both, row_of_b.pair[j]);
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < PER; ++i) *reinterpret_cast<uint4*>(c + i * pitch) = sums[i].word;
}
