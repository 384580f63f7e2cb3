// The inverse of a small matrix in FP32, by a block, with most operations on the tensor cores.
//
// Rows are scaled by powers of two, and A is rounded to FP32.  Gauss-Jordan elimination replaces it by its inverse, in
// place, eight columns at a time (a panel).  W is this matrix: A at first, the inverse at the end, with its rows and
// columns in another order.  D is the 8 x 8 block in the rows of the pivots and the columns of the panel, and C the
// rest of the panel.  U has the rows of the pivots, but the identity instead of D.  G has D^-1 in the rows of the
// pivots, and -C D^-1 in the others.  Then a step is
//
//     W := W with zeros in the rows of the pivots and in the columns of the panel, plus G U.
//
// Rows are not moved: the row of pivot j belongs to x_j, and column j to the right-hand side in this row.
//
// A warp has 16 * HIGH rows of W, as the sums of m16n8k8 products on the tensor cores: 8 columns are a tile, and lane
// 4 g + q has the columns 2 q and 2 q + 1 of rows g and g + 8 of 16.  A number of G or U is the sum of two TF32
// numbers; of the four products the smallest is left out.  After a panel the tiles move one place to the left, so that
// the next panel is in tile 0.  One warp eliminates the columns of a panel; the warps take turns.
//
// MOST is the largest number of rows, a multiple of 16 * HIGH.  HIGH is 1 or 2.  small_solve.cuh and matrix_chunks.cuh
// name the other macros.  A block has THREADS threads.  Needs compute capability 8.
#pragma once

#include "batched/fp32_number.cuh"
#include "batched/fp32_trust.cuh"
#include "batched/matrix_chunks.cuh"
#include "common/reduce.cuh"

constexpr int TILES = MOST / 8, PANEL = 8;
constexpr int RUNS = 2 * HIGH;  // of 8 rows that a warp has
constexpr int EACH = (MOST + WARP - 1) / WARP;  // rows of a panel that a lane has
constexpr unsigned KEY_ROWS = 256;  // larger than MOST, so that no key of a row is zero
constexpr int LD_PANEL = 12, LD_TOP = (MOST + 31) / 32 * 32 + 8;  // few bank conflicts
static_assert(MOST % (16 * HIGH) == 0 && HIGH <= 2 && MOST < int(KEY_ROWS), "shape");

// Shared memory.
struct Room {
    Entry* x;             // [MOST]: an answer
    double* scales;       // [MOST]: of rows
    float* panels;        // [PARTS][MOST][LD_PANEL]: a panel, then G
    float* top;           // [PARTS][PANEL][LD_TOP]: U
    float* side;          // [PARTS][MOST]: a scaled residual, in the order of the columns of W
    int *steps, *rows;    // [MOST]: the step whose pivot is in a row, or -1; the row of the pivot of a step
    Given* chunks;        // of the matrix
    int n;

    __device__ __forceinline__ Room(char* at, int n) : n(n) {
        x = reinterpret_cast<Entry*>(at), scales = reinterpret_cast<double*>(x + MOST);
        panels = reinterpret_cast<float*>(scales + MOST), top = panels + PARTS * MOST * LD_PANEL;
        side = top + PARTS * PANEL * LD_TOP;
        steps = reinterpret_cast<int*>(side + PARTS * MOST), rows = steps + MOST;
        chunks = reinterpret_cast<Given*>(rows + MOST);
    }

    __device__ __forceinline__ float* panel(int part) const { return panels + part * MOST * LD_PANEL; }
};

// Eliminates the eight columns of panel p, in place, by one warp.
//
// With SEARCH, pivots are searched, and the function returns false if one is above MOST_PIVOT: then entries have grown,
// and the inverse may be inaccurate.  Without SEARCH, the matrix should be positive definite, so that pivots do not
// grow.  Then pivots are on the diagonal, and the function returns false if one is not positive.
//
// In each step, the column that is eliminated is in place 0, and all columns move one place to the left.
template <bool SEARCH>
__device__ __forceinline__ bool eliminate_panel(const Room& room, int p) {
    const int lane = threadIdx.x % WARP;
    Small v[EACH][PANEL] = {};
    // The key for the search of a pivot is (bits & mask) | low.  The bits are those of the entry, or of |re| + |im| if
    // COMPLEX.  `low` tells the row; mask and low are zero once the row has had its pivot.
    unsigned mask[EACH], low[EACH];
    #pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const int i = lane + WARP * r;
        const bool inside = MOST % WARP == 0 || i < MOST;
        if (inside) read_eight(v[r], room.panel(0) + i * LD_PANEL, MOST * LD_PANEL);
        const bool free = inside && room.steps[i] < 0;
        mask[r] = free && SEARCH ? 0x7fffffffu / KEY_ROWS * KEY_ROWS : 0, low[r] = free ? KEY_ROWS - 1 - i : 0;
    }
    bool good = true;
    int own_row = 0;  // lane k: the row of pivot k
    #pragma unroll 1
    for (int k = 0; k < PANEL; ++k) {
        unsigned keys[EACH], own = 0, best = KEY_ROWS - 1 - (PANEL * p + k);
        Small candidate[PANEL];  // the row of this lane that has the best key
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            const float size = COMPLEX ? fabsf(v[r][0].re) + fabsf(v[r][0].im) : v[r][0].re;
            keys[r] = __float_as_uint(size) & mask[r] | low[r];
            const bool better = r == 0 || (SEARCH ? keys[r] > own : keys[r] == best);
            #pragma unroll
            for (int c = 0; c < PANEL; ++c) candidate[c] = better ? v[r][c] : candidate[c];
            own = better ? keys[r] : own;
        }
        candidate[0] = inverse_of(candidate[0]);  // before the pivot is known, so that this overlaps the search
        if (SEARCH) best = largest_of_warp(own);
        const int row = KEY_ROWS - 1 - best % KEY_ROWS;
        const Small inverse = of_lane(candidate[0], row);
        own_row = lane == k ? row : own_row;
        good = good && (SEARCH ? best < __float_as_uint(MOST_PIVOT) : inverse.re > 0);
        Small l[EACH], last[EACH];
        #pragma unroll
        for (int r = 0; r < EACH; ++r) {
            const bool has_pivot = keys[r] == best;
            const Elimination of_row(v[r][0], inverse, has_pivot);
            l[r] = of_row.l, last[r] = of_row.last;
            mask[r] = has_pivot ? 0 : mask[r], low[r] = has_pivot ? 0 : low[r];
        }
        #pragma unroll
        for (int c = 1; c < PANEL; ++c) {
            const Small u = of_lane(candidate[c], row);
            #pragma unroll
            for (int r = 0; r < EACH; ++r) v[r][c - 1] = less(v[r][c], l[r], u);
        }
        #pragma unroll
        for (int r = 0; r < EACH; ++r) v[r][PANEL - 1] = last[r];
    }
    #pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const int i = lane + WARP * r;
        if (MOST % WARP == 0 || i < MOST) write_eight(v[r], room.panel(0) + i * LD_PANEL, MOST * LD_PANEL);
    }
    __syncwarp();  // all lanes have read the steps of their rows
    if (lane < PANEL) room.steps[own_row] = PANEL * p + lane, room.rows[PANEL * p + lane] = own_row;
    return good;
}

// The row of W that a lane has in a run of eight rows.
__device__ __forceinline__ int row_of(int run) {
    return 16 * HIGH * (threadIdx.x / WARP) + threadIdx.x % WARP / 4 + 8 * run;
}
// The first of two neighbouring columns of a tile that a lane has.
__device__ __forceinline__ int column_of_lane() { return 2 * (threadIdx.x % 4); }

// The part of G - E that a lane needs.  E has a one for each pivot row, so that this row of W vanishes.  A warp has the
// same rows of G as of W.
struct Step {
    Halves g[HIGH][PARTS][4], minus[HIGH][4];
    float tile[PARTS][2 * RUNS];  // the numbers of G that become those of the last tile

    // If row_of(run) has a pivot of this panel, pivot[run] is the number of this pivot, 0 to 7.  Otherwise it is below
    // 0 or above 7.
    __device__ __forceinline__ Step(const Room& room, const int (&pivot)[RUNS]) {
        const int q = threadIdx.x % 4;
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            #pragma unroll
            for (int run = 0; run < RUNS; ++run) {
                const float* const of_row = room.panel(part) + row_of(run) * LD_PANEL;
                const float2 v = *reinterpret_cast<const float2*>(of_row + column_of_lane());
                tile[part][2 * run] = v.x, tile[part][2 * run + 1] = v.y;
                #pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int k = q + 4 * e;
                    const float u = of_row[k] - (part == 0 && pivot[run] == k ? 1.0f : 0.0f);
                    g[run / 2][part][run % 2 + 2 * e] = Halves(u);
                }
            }
        }
        if (COMPLEX) {
            #pragma unroll
            for (int h = 0; h < HIGH; ++h) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) minus[h][e] = g[h][PARTS - 1][e], minus[h][e].negate();
            }
        }
    }
};

// The rows of W that a warp has.
struct Inverse {
    float w[PARTS][TILES][2 * RUNS];  // two columns of each of the rows of this lane
    int turned;  // number of eliminated panels: the columns of tile t are those of tile (t + turned) % TILES of A

    // The place in a panel of the numbers that this lane has in tile 0.
    __device__ __forceinline__ static float2& place(const Room& room, int part, int run) {
        return *reinterpret_cast<float2*>(room.panel(part) + row_of(run) * LD_PANEL + column_of_lane());
    }

    // Rounds the scaled matrix; beyond row and column n it is the identity.
    __device__ __forceinline__ void load(const Room& room, Chunks& chunks) {
        #pragma unroll
        for (int first = 0; first < MOST; first += CHUNK) {
            const bool inside = first < room.n;
            const Given* const chunk = inside ? chunks.next() : nullptr;
            #pragma unroll
            for (int run = 0; run < RUNS; ++run) {
                const int i = row_of(run);
                const double scale = room.scales[i];
                #pragma unroll
                for (int c = 0; c < CHUNK; c += 8) {
                    const int t = (first + c) / 8;
                    #pragma unroll
                    for (int q = 0; q < 2; ++q) {
                        const int column = c + column_of_lane() + q;
                        Number v = {double(i == first + column), 0.0};
                        if (inside && i < room.n) v = entry(chunk, i, column);
                        w[0][t][2 * run + q] = float(v.re * scale);
                        if (COMPLEX) w[PARTS - 1][t][2 * run + q] = float(v.im * scale);
                    }
                }
            }
        }
    }

    // Replaces the matrix by its inverse.  Returns false if a pivot is not allowed, see `eliminate_panel`.
    __device__ __forceinline__ bool invert(const Room& room, Index kind) {
        bool good = true;
        write_panel(room);
        #pragma unroll 1
        for (int p = 0; PANEL * p < room.n; ++p) {
            wait_for_block();
            if (WARPS == 1 || threadIdx.x / WARP == (p + blockIdx.x) % WARPS) {
                const bool fine = kind == GENERAL ? eliminate_panel<true>(room, p) : eliminate_panel<false>(room, p);
                good = good && fine;
            }
            wait_for_block();
            int pivot[RUNS];
            #pragma unroll
            for (int run = 0; run < RUNS; ++run) {
                pivot[run] = room.steps[row_of(run)] - PANEL * p;
                if (unsigned(pivot[run]) < PANEL) copy_row(room, run, pivot[run]);
            }
            wait_for_block();
            update(room, Step(room, pivot));
        }
        turned = (room.n + PANEL - 1) / PANEL;
        return good;
    }

    // Writes tile 0 as the next panel.
    __device__ __forceinline__ void write_panel(const Room& room) const {
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            #pragma unroll
            for (int run = 0; run < RUNS; ++run) {
                place(room, part, run) = make_float2(w[part][0][2 * run], w[part][0][2 * run + 1]);
            }
        }
    }

    // Copies a row to row k of U.
    __device__ __forceinline__ void copy_row(const Room& room, int run, int k) const {
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            #pragma unroll
            for (int t = 1; t < TILES; ++t) {
                *reinterpret_cast<float2*>(room.top + (part * PANEL + k) * LD_TOP + 8 * t + column_of_lane()) =
                    make_float2(w[part][t][2 * run], w[part][t][2 * run + 1]);
            }
        }
    }

    // W becomes W + (G - E) U.
    __device__ __forceinline__ void update(const Room& room, const Step& step) {
        add_products<1, 2>(room, step);
        __syncwarp();  // all lanes have read their part of G
        write_panel(room);
        add_products<2, TILES>(room, step);
        #pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            #pragma unroll
            for (int e = 0; e < 2 * RUNS; ++e) w[part][TILES - 1][e] = step.tile[part][e];
        }
    }

    // Calls take(a, h, part) for the sums of `count` tiles.
    template <int GROUP, typename Take>
    __device__ __forceinline__ static void for_sums(int count, Take take) {
        #pragma unroll
        for (int a = 0; a < GROUP; ++a) {
            if (a >= count) break;
            #pragma unroll
            for (int h = 0; h < HIGH; ++h) {
                #pragma unroll
                for (int part = 0; part < PARTS; ++part) take(a, h, part);
            }
        }
    }

    // Adds the products for the tiles FIRST to LAST - 1, and moves these tiles one place to the left.
    template <int FIRST, int LAST>
    __device__ __forceinline__ void add_products(const Room& room, const Step& step) {
        const int g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
        constexpr int GROUP = 2;  // tiles whose products alternate: a product waits for the one before on the same tile
        #pragma unroll
        for (int first = FIRST; first < LAST; first += GROUP) {
            Halves of_u[GROUP][PARTS][2];
            #pragma unroll
            for (int a = 0; a < GROUP && first + a < LAST; ++a) {
                #pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    #pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const float* const top = room.top + (part * PANEL + q + 4 * e) * LD_TOP;
                        of_u[a][part][e] = Halves(top[8 * (first + a) + g]);
                    }
                }
            }
            float sum[GROUP][HIGH][PARTS][4];
            const int count = min(GROUP, LAST - first);
            for_sums<GROUP>(count, [&](int a, int h, int part) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) sum[a][h][part][e] = w[part][first + a][4 * h + e];
            });
            #pragma unroll
            for (int term = 0; term < 3; ++term) {
                for_sums<GROUP>(count, [&](int a, int h, int part) {
                    add_term(term, sum[a][h][part], step.g[h][0], of_u[a][part]);
                    if (!COMPLEX) return;
                    const Halves (&im)[4] = part ? step.g[h][PARTS - 1] : step.minus[h];
                    add_term(term, sum[a][h][part], im, of_u[a][PARTS - 1 - part]);
                });
            }
            for_sums<GROUP>(count, [&](int a, int h, int part) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) w[part][first + a - 1][4 * h + e] = sum[a][h][part][e];
            });
        }
    }

    // Keeps r_i, times a power of two, for the next `apply`.
    __device__ __forceinline__ void take(const Room& room, int i, Number r, double to_one) const {
        // Only in a matrix with NaN, or a singular one, may a row have no pivot.
        const int u = (max(room.steps[i], 0) - PANEL * turned + MOST) % MOST;
        const double scale = room.scales[i];
        room.side[u] = float(r.re * scale * to_one);
        if (COMPLEX) room.side[MOST + u] = float(r.im * scale * to_one);
    }

    // Calls add(j, y) with each unknown j and y = back (A^-1 r)_j for the numbers of `take`.
    template <typename Add>
    __device__ __forceinline__ void apply(const Room& room, double back, Add add) const {
        Small sum[RUNS] = {};
        #pragma unroll
        for (int t = 0; t < TILES; ++t) {
            float2 r[PARTS];
            #pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                r[part] = *reinterpret_cast<const float2*>(room.side + part * MOST + 8 * t + column_of_lane());
            }
            #pragma unroll
            for (int run = 0; run < RUNS; ++run) {
                #pragma unroll
                for (int q = 0; q < 2; ++q) {
                    const Small u = {w[0][t][2 * run + q], COMPLEX ? w[PARTS - 1][t][2 * run + q] : 0.0f};
                    const Small by = {q ? r[0].y : r[0].x, q ? r[PARTS - 1].y : r[PARTS - 1].x};
                    sum[run] = less(sum[run], u, by);
                }
            }
        }
        #pragma unroll
        for (int run = 0; run < RUNS; ++run) {
            const float re = sum_of_lanes<4>(sum[run].re), im = COMPLEX ? sum_of_lanes<4>(sum[run].im) : 0.0f;
            const int j = room.steps[row_of(run)];
            if (threadIdx.x % 4 == run % 4 && unsigned(j) < room.n) add(j, Number{-re * back, -im * back});
        }
    }

    // Gives each of the first MOST threads the number of a column of A^-1 and the sum of its moduli.  Other threads,
    // and those whose column is beyond n, get zeros.
    __device__ __forceinline__ double sum_of_column(const Room& room, int& number) const {
        float* const sums = room.panels;  // [WARPS][MOST]
        static_assert(WARPS * MOST <= MOST * LD_PANEL, "room for the sums");
        wait_for_block();
        #pragma unroll
        for (int t = 0; t < TILES; ++t) {
            #pragma unroll
            for (int q = 0; q < 2; ++q) {
                float sum = 0;
                #pragma unroll
                for (int run = 0; run < RUNS; ++run) {
                    const Small u = {w[0][t][2 * run + q], COMPLEX ? w[PARTS - 1][t][2 * run + q] : 0.0f};
                    if (row_of(run) < room.n) sum += modulus(u);
                }
                #pragma unroll
                for (int d = 4; d < WARP; d *= 2) sum += of_partner(sum, d);
                if (threadIdx.x % WARP / 4 == 0) sums[threadIdx.x / WARP * MOST + 8 * t + column_of_lane() + q] = sum;
            }
        }
        wait_for_block();
        const int c = (threadIdx.x + PANEL * turned) % MOST;
        number = 0;
        if (threadIdx.x >= MOST || c >= room.n) return 0;
        number = room.rows[c];
        float sum = 0;
        #pragma unroll
        for (int of_warp = 0; of_warp < WARPS; ++of_warp) sum += sums[of_warp * MOST + threadIdx.x];
        return sum * room.scales[number];
    }
};
