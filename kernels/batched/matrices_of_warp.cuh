// The matrices of a warp in shared memory, where they stay for the residual.  A team, LANES neighbouring threads of a
// warp, takes a matrix.
//
// The file that includes this one defines MOST, the largest number of rows, LANES, and the macros of small_solve.cuh.
#pragma once

#include "batched/small_solve.cuh"
#include "common/reduce.cuh"

constexpr int N = MOST, TEAMS = WARP / LANES;

// Row i of a matrix in shared memory starts at i STRIDE.  In solve_thread.cu, column N has the right-hand side; in
// solve_team.cu it is not used.  STRIDE is odd, and modulo BANKS the rows of a team follow those of the team before, so
// that reading a column has no bank conflicts.
constexpr int STRIDE = N + 1 | 1, BANKS = 128 / int(sizeof(Given));
constexpr int SIZE = N * STRIDE + ((LANES - N) * STRIDE % BANKS + BANKS) % BANKS;

// The matrix of a team.
struct Matrix {
    Given* a;
    int lane, n;

    // The number at a place in shared memory, and entry (i, j).
    __device__ __forceinline__ Number at(int place) const {
        const Given& v = a[place];
        return {double(v.part[0]), COMPLEX ? double(v.part[PARTS - 1]) : 0.0};
    }
    __device__ __forceinline__ Number operator()(int i, int j) const { return at(i * STRIDE + j); }

    // Turns the matrix of the caller into the one that is read, and notes the properties of its entries in `seen`.  No
    // lane writes what another one reads: the mirror image of an entry that is not read keeps its value.
    __device__ __forceinline__ void apply(const Band& band, Seen& seen) const {
        constexpr int AT_ONCE = 4;  // entries that are loaded before the first of them is written
        static_assert(N % AT_ONCE == 0, "whole groups; columns beyond n are zero and leave `seen` as it is");
        #pragma unroll 1
        for (int i = lane; i < n; i += LANES) {
            #pragma unroll 1
            for (int first = 0; first < n; first += AT_ONCE) {
                Number own[AT_ONCE], stands[AT_ONCE];
                #pragma unroll
                for (int q = 0; q < AT_ONCE; ++q) {
                    const int j = first + q;
                    const bool mirrors = band.mirror && !band.reads(i, j);
                    own[q] = (*this)(i, j);
                    stands[q] = band.stands(i, j, own[q], mirrors ? (*this)(j, i) : Number{0.0, 0.0});
                }
                #pragma unroll
                for (int q = 0; q < AT_ONCE; ++q) {
                    const int j = first + q;
                    seen.note(band, i, j, own[q], stands[q]);
                    if (band.changes(i, j)) store(reinterpret_cast<T_A*>(a), i * STRIDE + j, stands[q]);
                }
            }
        }
        __syncwarp();
    }

    // Writes the identity.  A copy of the matrix then overwrites it up to row and column n.  Beyond them the identity
    // remains, and b is zero there.
    __device__ __forceinline__ void begin() const {
        if (n == N) return;
        for (int e = lane; e < N * STRIDE; e += LANES) {
            const int i = e / STRIDE, j = e % STRIDE;
            #pragma unroll
            for (int p = 0; p < PARTS; ++p) a[e].part[p] = T_A(i == j && i >= n && p == 0);
        }
        __syncwarp();
    }
};

// e / d for e < 2^16, from (2^32 - 1) / d + 1.
__device__ __forceinline__ int quotient(int e, int d, unsigned magic) { return d == 1 ? e : int(__umulhi(e, magic)); }

// Starts to copy n rows of `width` entries of each team to shared memory, from column `to` on there.  Matrices beyond
// the last one are copies of it.
__device__ __forceinline__ void stage(
    Given* at, const T_A* from, Index step, Index row, Index col, Index first, Index count, int n, int width, int to
) {
    const bool by_rows = col <= row;
    const int entries = n * width, line = by_rows ? width : n;
    const unsigned of_entries = 0xffffffffu / entries + 1, of_line = 0xffffffffu / line + 1;
    for (int e = threadIdx.x % WARP; e < TEAMS * entries; e += WARP) {
        const int m = quotient(e, entries, of_entries), rest = e - m * entries;
        const int major = quotient(rest, line, of_line), minor = rest - major * line;
        const int i = by_rows ? major : minor, j = by_rows ? minor : major;
        copy_entry(at + m * SIZE + i * STRIDE + to + j,
                   from + PARTS * (min(first + m, count - 1) * step + i * row + j * col));
    }
}

// The same for matrices of N rows that follow each other in memory row by row, if the warp has no matrix beyond
// the last.
__device__ __forceinline__ void stage_packed(Given* at, const T_A* from) {
    const int lane = threadIdx.x % WARP;
    from += PARTS * lane;
    if (WARP % N == 0) {  // whole rows are copied at a time, so that most of an offset is a constant
        constexpr int AT_ONCE = N * N < WARP ? N * N : WARP;  // entries of one matrix
        at += lane / AT_ONCE * SIZE + lane % AT_ONCE / N * STRIDE + lane % N;
        #pragma unroll
        for (int e = 0; e < TEAMS * N * N; e += WARP) {
            copy_entry(at + e / (N * N) * SIZE + e % (N * N) / N * STRIDE, from + PARTS * e);
        }
        return;
    }
    #pragma unroll
    for (int e = 0; e < N * N; e += WARP) {
        Given* const to = at + (e + lane) / N * STRIDE + (e + lane) % N;
        #pragma unroll
        for (int m = 0; m < TEAMS; ++m) {
            if (e + WARP <= N * N || e + lane < N * N) copy_entry(to + m * SIZE, from + PARTS * (m * N * N + e));
        }
    }
}

// Copies the column of the right-hand sides in shared memory to x.
__device__ __forceinline__ void unstage(T_A* x, const Given* at, Index first, Index count, int n) {
    const unsigned of_n = 0xffffffffu / n + 1;
    for (int e = threadIdx.x % WARP; e < min(Index(TEAMS), count - first) * n; e += WARP) {
        const int m = quotient(e, n, of_n), j = e - m * n;
        const Given& v = at[m * SIZE + j * STRIDE + N];
        #pragma unroll
        for (int p = 0; p < PARTS; ++p) x[PARTS * (first * n + e) + p] = v.part[p];
    }
}
