// Solves and verifies systems of at most MOST unknowns in one launch.  A block takes one matrix after the other;
// small_solve.cuh describes most arguments, block_lu.cuh the factorization.
//
//   work     room for the factors: for each block of the grid, S S numbers in FP64 (or pairs), S = n rounded up to 8.
//   b_col    right-hand sides: entry (s, i, c) of b is at s b_step + i b_row + c b_col.
//   columns  k, the number of right-hand sides of a system, at most WIDTH - PROBES.
//   x        [count][n][k].
//   board    its last rows are k rows max |b - A x|, then k rows max |x|.
//
// An answer that misses the bound is corrected once, with the factors at hand.
//
// Grid: any number of blocks, of THREADS threads.  Shared memory: see `Room`.
// Defines T_A, COMPLEX, BANDED (0 if all entries are read), WIDTH, THREADS, MOST, RESIDENT (blocks on a
// multiprocessor).

#include "batched/block_lu.cuh"
#include "batched/judge_block.cuh"

constexpr int JUDGED = 4;  // entries that a thread compares with their mirror images at a time

// Shared memory for matrices whose order, rounded up to PANEL, is `size`.
struct Room {
    Entry *x, *diagonal, *candidates, *answer;
    double *sums, *rests, *sizes;
    unsigned* keys;
    int* order;

    __device__ __forceinline__ Room(char* at, int size) {
        x = reinterpret_cast<Entry*>(at);
        diagonal = x + size * LD, candidates = diagonal + WIDTH * LD, answer = candidates + 2 * WARPS * PANEL;
        sums = answer[0].part;  // used before the answer
        rests = answer[size].part, sizes = rests + WIDTH;
        keys = reinterpret_cast<unsigned*>(sizes + WIDTH), order = reinterpret_cast<int*>(keys + 2 * WARPS);
    }
};

// Starts to copy entry `at` of an array, in FP64.
__device__ __forceinline__ void copy_given(Entry& to, const T_A* from, Index at) {
#if __CUDA_ARCH__ >= 800
    if (sizeof(T_A) == sizeof(double)) {
        copy_cached<sizeof(Entry)>(&to, from + PARTS * at);
        return;
    }
#endif
    save(to, number(from, at));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
tcs_solve_block(
    T_A* x, double* board, char* doubtful, int* doubt, const unsigned char* left, Entry* work, const T_A* a,
    Index a_step, Index a_row, Index a_col, const T_A* b, Index b_step, Index b_row, Index b_col, Index below,
    Index above, Index mirror, Index kind, double bound, double near, double least, double safe, double agrees,
    Index count, Index unknowns, Index columns
) {
    extern __shared__ __align__(16) char memory[];
    const int n = int(unknowns), k = int(columns), size = (n + PANEL - 1) / PANEL * PANEL;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tiles = (k + PROBES + 7) / 8;
    const int probes = 8 * tiles - k;  // they fill the last tile
    const bool by_rows = a_col <= a_row;  // so that neighbouring threads read neighbours in memory
    const bool mirrored = BANDED && mirror;  // then the norms of rows and of columns are the same
    const Room room(memory, size);
    Entry* of_block = work + Index(blockIdx.x) * size * size;

    for (
        Index slice = next_system<THREADS>(left, blockIdx.x, count); slice < count;
        slice = next_system<THREADS>(left, slice + gridDim.x, count)
    ) {
        const Reading read = {a + PARTS * slice * a_step, a_row, a_col, {below, above, mirror}};
        const Sides sides = {b + PARTS * slice * b_step, b_row, b_col};
        T_A* answers = x + PARTS * slice * n * k;
        BlockLU lu = {room.x, room.diagonal, room.candidates, room.keys, room.order, of_block, size, kind, 0};
        Seen seen;

        // Copies the block column at position p to shared memory; beyond row and column n it is the identity.
        const auto copy_block_column = [&](int p, int width) {
            const T_A* from = a + PARTS * (slice * a_step + p * a_col);
            const int inside = min(width, n - p);
            if (by_rows) {
                const int j = lu.own_column();
                if (j < inside) {
                    lu.for_rows(n, [&](int i) { copy_given(room.x[i * LD + j], from, i * a_row + j * a_col); });
                }
            } else {
                for (int j = warp; j < inside; j += WARPS) {
                    #pragma unroll 4
                    for (int i = lane; i < n; i += WARP) copy_given(room.x[i * LD + j], from, i * a_row + j * a_col);
                }
            }
            if (size > n) {
                const int j = lu.own_column();
                lu.for_rows(size, [&](int i) {
                    if (j < width && (i >= n || p + j >= n)) save(room.x[i * LD + j], {double(i == p + j), 0.0});
                });
            }
            wait_for_copies();
            __syncthreads();
            if (!BANDED) return;
            // Checks the entries (i + q * down, j + q * right) for q < JUDGED, and replaces those that are not read.
            // Their mirror images are loaded together.
            const auto judge = [&](int i, int j, int down, int right) {
                Number others[JUDGED];
                #pragma unroll
                for (int q = 0; q < JUDGED; ++q) {
                    const int y = i + q * down, z = j + q * right;
                    others[q] = y < n && z < inside ? read.other(y, p + z) : Number{0.0, 0.0};
                }
                #pragma unroll
                for (int q = 0; q < JUDGED; ++q) {
                    const int y = i + q * down, z = j + q * right;
                    if (y >= n || z >= inside) continue;
                    const Number given = load(room.x[y * LD + z]);
                    const Number stands = read.band.stands(y, p + z, given, others[q]);
                    seen.note(read.band, y, p + z, given, stands);
                    save(room.x[y * LD + z], stands);
                }
            };
            // Neighbouring threads read neighbours on the other side of the diagonal, too.
            if (by_rows) {
                for (int i = lane; i < n; i += WARP) {
                    for (int j = warp; j < inside; j += JUDGED * WARPS) judge(i, j, 0, WARPS);
                }
            } else {
                constexpr int ROWS = THREADS / WIDTH;
                const int j = lu.own_column();
                for (int i = threadIdx.x / WIDTH; i < n; i += JUDGED * ROWS) judge(i, j, ROWS, 0);
            }
            __syncthreads();
        };

        // The factorization, one block column after the other, and sums of |a_ij|.
        for (int i = threadIdx.x; i < size; i += THREADS) room.order[i] = i, room.sums[i] = 0;
        double one = 0, inf = 0;
        for (int p = 0; p < size; p += WIDTH) {
            const int width = min(WIDTH, size - p);
            copy_block_column(p, width);
            // The sums also run over the appended identity, which has only zeros in these rows and columns.
            for (int i = threadIdx.x; i < n; i += THREADS) {
                const Entry* row = room.x + i * LD;
                double sum = 0;
                #pragma unroll 2
                for (int j = 0; j < width; j += 4) {
                    #pragma unroll
                    for (int q = 0; q < 4; ++q) sum += modulus(load(row[j + (q + i / 4) % 4]));  // few bank conflicts
                }
                room.sums[i] += sum;
            }
            for (int j = threadIdx.x; !mirrored && j < width && p + j < n; j += THREADS) {
                double some[4] = {};
                #pragma unroll 2
                for (int i = 0; i < size; i += 4) {
                    #pragma unroll
                    for (int q = 0; q < 4; ++q) some[q] += modulus(load(room.x[(i + q) * LD + j]));
                }
                one = larger(one, (some[0] + some[1]) + (some[2] + some[3]));
            }
            __syncthreads();
            for (int done = 0; done < p; done += WIDTH) lu.forward(done, width / 8);
            lu.factor(p);
        }
        for (int i = threadIdx.x; i < n; i += THREADS) inf = larger(inf, room.sums[i]);
        inf = over_block<WARPS>(inf, larger), one = mirrored ? inf : over_block<WARPS>(one, larger);
        if (!BANDED && !isfinite(inf)) {  // NaN or Inf, or a sum that has overflowed
            for (int e = threadIdx.x; e < n * n; e += THREADS) {
                const Number v = read.given(e / n, e % n);
                seen.spoilt = seen.spoilt || !isfinite(v.re) || COMPLEX && !isfinite(v.im);
            }
        }

        // The right-hand sides and the random vectors.
        for (int e = threadIdx.x; e < size * 8 * tiles; e += THREADS) {
            const int i = e / (8 * tiles), c = e % (8 * tiles);
            Number v = {0.0, 0.0};
            if (i < n && c < k) v = sides(i, c);
            if (i < n && c >= k) v.re = random_probe(i, c - k);
            save(room.x[i * LD + c], v);
        }
        __syncthreads();
        lu.solve(tiles);
        const Limits limits = {kind, bound, least, safe, agrees};
        const Results results = {board, doubtful, doubt, count};
        const Scratch scratch = {room.answer, room.rests, room.sizes};
        judge_answers(
            lu, read, sides, answers, scratch, {n, k, probes}, limits, near, results, slice, inf, one, seen,
            first_of_largest(left, slice, WIDTH)
        );
    }
}
