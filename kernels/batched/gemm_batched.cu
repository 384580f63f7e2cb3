// out[s] = alpha op(A[s]) op(B[s]) + beta c[s] for many small matrices, at the speed of memory.
//
// A block takes COUNT consecutive products at a time, and copies their operands to shared memory STAGES - 1 steps
// ahead, as one run of bytes if the matrices are contiguous.  A warp multiplies HEIGHT strips of 16 rows of a product
// on the tensor cores; the entries of B that it loads and rounds serve all of them.  Products of at most 8 rows and 4
// words of k are computed two at a time: those of FP32 operands as [A 0; 0 A'] [B; B'], others one after the other
// (multiply_two).  Sizes are macros, so that indices need no division at run time.
//
//   a, b   STORE_A 0: A[s]_iq is a[s batch_a + i row_a + q col_a], any strides.  1: the matrices lie one behind the
//          other, rows contiguous, as op(A) (TRANS_A 0) or its transpose (1); strides are not read.  2: one matrix for
//          all s, by its strides.  STORE_B says the same of b.  In cases 0 and 2 TRANS is 0.
//   out, c row-major with leading dimensions ld_out, ld_c, batch strides, of kind KIND (see gemm.cuh).  DENSE 1: the
//          matrices of out lie one behind the other, the first one on a 16-byte boundary; the strides of out are not
//          read.  ADDEND 0: c and beta are not read.
//
// Dense results are stored from registers in runs of 2 or 4.  With BULK, or if the length of a row is no multiple of a
// run, they are gathered in shared memory and stored as one run of bytes.
//
// With STORE_A (STORE_B) 1 and rows of whole 16-byte words, a (b) starts on a 16-byte boundary.
// Grid: any number of blocks, but with BRIEF one block for every COUNT products; block THREADS; dynamic shared memory
// SHARED_BYTES.
// Defines SIZE_M, SIZE_N, SIZE_K (1 to 64), THREADS, COUNT, HEIGHT, STAGES, SHARED_BYTES, T_IN (fp16, bf16,
// float, int8), T_LOW (fp16, bf16, tf32, int8), REFINE (0 to 4: none, 'a', 'b', 'ab', 'full'; 0 unless T_IN is float),
// TRANS_A, TRANS_B, STORE_A, STORE_B, KIND, ADDEND, DENSE, and two macros that are 1 only for some large products:
//
//   BRIEF 1: a block ends after its first COUNT products, so that the next block starts on any multiprocessor that is
//          free.
//          For FP32 operands a warp multiplies all its strips by 8 or 16 columns of B before it tests the scales, so
//          that the sums of these tiles overlap in time.  With BRIEF 0 there is a branch after the sums of each tile.
//   BULK  1: the copy engine stores dense results of whole 16-byte words (from compute capability 9 on).
//
// With one stage, the copies of a block wait for its products, while other blocks on the multiprocessor work.
//
// Rounding and scaling are as in gemm.cuh, with scales that are found in registers.  One sum on the tensor cores takes
// all of k: first the products with a rounding error of an operand, then those of the rounded operands.

#include "batched/batched_fragment.cuh"
#include "batched/batched_operand.cuh"
#include "batched/batched_result.cuh"
#include "gemm/gemm.cuh"

// ---- one task: HEIGHT strips of a product, or two products -------------------------------------------

template <bool IS_SCALED>
__device__ __forceinline__ void compute(
    const Batch& batch, const char* stage_a, const char* stage_b, const T_IN* from_a, const T_IN* from_b,
    Index first, int count, int task, char* gathered
) {
    const int g = threadIdx.x % WARP / 4;
    const int s = TWO ? 2 * task : task / PARTS, row0 = TWO ? 0 : task % PARTS * (16 * HEIGHT);
    if (s >= count) return;
    const bool second = !TWO || s + 1 < count;
    const int other = TWO && second ? s + 1 : s;
    const char* const a[2] = {
        OperandA::matrix(stage_a, from_a, first, s), OperandA::matrix(stage_a, from_a, first, other)
    };
    const char* const b[2] = {
        OperandB::matrix(stage_b, from_b, first, s), OperandB::matrix(stage_b, from_b, first, other)
    };
    char* const out = batch.row_of_out(first, s, row0);
    if (GATHERED) gathered += place_in_word(out);

    const auto row_of = [&](int strip, int half) { return row0 + 16 * strip + g + (TWO ? 0 : 8 * half); };
    FragmentA fa[HEIGHT];
    bool ordinary_a = true;
    #pragma unroll
    for (int strip = 0; strip < HEIGHT; ++strip) {
        load_rows(fa[strip], a, row0 + 16 * strip);
        if constexpr (IS_SCALED) ordinary_a = ordinary_a && fa[strip].is_ordinary();
    }
    if (BULK) wait_for_bulk();  // the copy of the last task may still read `gathered`
    #pragma unroll (STEPS_AT_ONCE)
    for (int step = 0; step < STEPS; ++step) {
        FragmentB fb[TILES];
        load_columns(fb, b, step);
        Columns columns[TILES];
        bool all_ordinary = true;
        if constexpr (IS_SCALED) {
            bool mine = ordinary_a;
            #pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                columns[tile] = columns_of(fb[tile]);
                mine = mine && fb[tile].is_ordinary();
            }
            all_ordinary = __all_sync(ALL_LANES, mine);
        }
        const auto put_strip = [&](int strip, const Acc (&d)[TILES][4]) {
            const int row[2] = {row_of(strip, 0), row_of(strip, 1)};
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int product = TWO && half ? s + 1 : s;
                const bool exists = row[half] < M && (half == 0 || second);
                const int local = (TWO ? half * M : 0) + row[half] - row0;
                char* const to = DENSE ? (GATHERED ? gathered : out) + local * (N * OUT_SIZE)
                                 : batch.row_of_out(first, product, row[half]);
                const char* const old = ADDEND ? batch.row_of_c(first, product, row[half]) : nullptr;
                Acc x[2 * TILES];
                #pragma unroll
                for (int e = 0; e < 2 * TILES; ++e) {
                    x[e] = IN_TURN ? d[e % 2][2 * half + e / 2] : d[e / 2][2 * half + e % 2];
                }
                put_row(batch, to, old, exists, step, x);
            }
        };
        const auto mend = [&](Acc (&d)[4], int strip, int tile) {
            const int row[2] = {row_of(strip, 0), row_of(strip, 1)};
            unscale_any<OperandA, OperandB>(d, fa[strip], columns[tile], a, b, row, step, tile);
        };
        if constexpr (IS_SCALED && BRIEF) {
            Acc d[HEIGHT][TILES][4] = {};
            multiply_all(d, fa, fb);
            if (__builtin_expect(all_ordinary, true)) {
                #pragma unroll
                for (int i = 0; i < HEIGHT * TILES; ++i) {
                    unscale(d[i / TILES][i % TILES], fa[i / TILES], columns[i % TILES]);
                }
            } else {
                #pragma unroll
                for (int i = 0; i < HEIGHT * TILES; ++i) mend(d[i / TILES][i % TILES], i / TILES, i % TILES);
            }
            #pragma unroll
            for (int strip = 0; strip < HEIGHT; ++strip) put_strip(strip, d[strip]);
        } else {
            #pragma unroll
            for (int strip = 0; strip < HEIGHT; ++strip) {
                Acc d[TILES][4] = {};
                #pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    if (TWO && !SCALED) multiply_two(d[tile], fa[strip], fb[tile]);
                    else multiply(d[tile], fa[strip], fb[tile]);
                    if constexpr (IS_SCALED) {
                        if (all_ordinary) unscale(d[tile], fa[strip], columns[tile]);
                        else mend(d[tile], strip, tile);
                    }
                }
                put_strip(strip, d);
            }
        }
    }
    if (BULK) {
        const int rows = TWO ? (second ? 2 * M : M) : min(16 * HEIGHT, M - row0);
        write_bulk(out, gathered, rows * N * OUT_SIZE);
    } else if (GATHERED) {
        __syncwarp();
        const int rows = TWO ? (second ? 2 * M : M) : min(16 * HEIGHT, M - row0);
        write_run(out, gathered - place_in_word(out), rows * N * OUT_SIZE);
        __syncwarp();  // the next task overwrites it
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tcs_gemm_batched(
    void* out, Index batch_out, Index ld_out, const void* c, Index batch_c, Index ld_c,
    const T_IN* __restrict__ a, Index batch_a, Index row_a, Index col_a,
    const T_IN* __restrict__ b, Index batch_b, Index row_b, Index col_b,
    Index products, double alpha, double beta
) {
    extern __shared__ __align__(16) char memory[];
    char* const kept_b = memory + KEPT_A;
    char* const stages = kept_b + KEPT_B;
    char* const gathered = stages + STAGES * STAGE_BYTES + threadIdx.x / WARP * GATHERED_BYTES;
    if (STORE_A == 2) OperandA::copy(memory, a, 0, 1, 0, row_a, col_a);
    if (STORE_B == 2) OperandB::copy(kept_b, b, 0, 1, 0, row_b, col_b);

    const Batch batch = {
        static_cast<char*>(out), static_cast<const char*>(c), batch_out, ld_out, batch_c, ld_c,
        scalar<Acc>(alpha), scalar<Acc>(beta)
    };
    const Index chunks = (products + COUNT - 1) / COUNT;
    const auto count_from = [&](Index first) {
        return BRIEF && COUNT == 1 ? 1 : int(min(Index(COUNT), products - first));
    };
    const auto fetch = [&](Index chunk, int stage) {
        if (chunk < chunks) {
            char* const to = stages + stage * STAGE_BYTES;
            const Index first = chunk * COUNT;
            const int count = count_from(first);
            if (STORE_A != 2) OperandA::copy(to, a, first, count, batch_a, row_a, col_a);
            if (STORE_B != 2) OperandB::copy(to + STAGE_A, b, first, count, batch_b, row_b, col_b);
        }
        commit_copies();
    };
    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(blockIdx.x + Index(s) * gridDim.x, s);
    int stage = 0, ahead = STAGES - 1;
    for (Index chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        if (STAGES == 1) {
            if (!BRIEF) __syncthreads();  // all warps have finished the chunk before
            fetch(chunk, 0);
        }
        wait_for_groups<(STAGES > 1 ? STAGES - 2 : 0)>();
        __syncthreads();  // this chunk has arrived, and all warps have finished the one before
        if (STAGES > 1) fetch(chunk + Index(STAGES - 1) * gridDim.x, ahead);
        const Index first = chunk * COUNT;
        const int count = count_from(first);
        const char* const here = stages + stage * STAGE_BYTES;
        #pragma unroll 1
        for (int task = threadIdx.x / WARP; task < TASKS; task += WARPS) {
            compute<SCALED>(batch, STORE_A == 2 ? memory : here, STORE_B == 2 ? kept_b : here + STAGE_A, a, b,
                    first, count, task, gathered);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        ahead = ahead + 1 == STAGES ? 0 : ahead + 1;
        if (BRIEF) break;
    }
    if (BULK) wait_for_bulk();  // shared memory must not be released while a copy reads it
}
