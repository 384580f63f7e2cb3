// Products of tiles of 8 x 8 numbers, and Cholesky factors of a matrix in such tiles in shared memory.
//
// The lower triangle is kept in row-major tiles.  Lane l of a warp has the numbers 2 l and 2 l + 1 of a tile.
// A product A B^T takes two instructions: one sums over the even columns of both tiles, the other over the odd ones.
// For both, a lane needs exactly its two numbers of A and of B, and gets its two numbers of the sum.  So a warp loads a
// tile by 16 bytes a lane, without bank conflicts.
#pragma once

#include "common/tile_product.cuh"

constexpr int TILE = 8, NUMBERS = TILE * TILE;

using Pair = double2;  // the two entries of a tile that a lane has

__device__ __forceinline__ int warp() { return threadIdx.x / WARP; }
__device__ __forceinline__ int lane() { return threadIdx.x % WARP; }

// The lane's two numbers of tile j of a row of tiles.
__device__ __forceinline__ Pair& tile_of(double* row, int j) {
    return reinterpret_cast<Pair*>(row + j * NUMBERS)[lane()];
}
__device__ __forceinline__ Pair tile_of(const double* row, int j) {
    return reinterpret_cast<const Pair*>(row + j * NUMBERS)[lane()];
}

// The lane's two numbers of the transpose of tile j.  If the second argument of `product` is the transpose of a tile B,
// the result is A B instead of A B^T.
__device__ __forceinline__ Pair turned(const double* row, int j) {
    const double* v = row + j * NUMBERS + lane() % 4 * 2 * TILE + lane() / 4;
    return {v[0], v[TILE]};
}

// c -= u v^T for tiles, in two halves: the even and the odd columns of u and v.  The second half waits for the first,
// so a warp with many products makes all first halves first.
__device__ __forceinline__ void subtract_even(Pair& c, Pair u, Pair v) { add_tile_product(c.x, c.y, -u.x, v.x); }
__device__ __forceinline__ void subtract_odd(Pair& c, Pair u, Pair v) { add_tile_product(c.x, c.y, -u.y, v.y); }
__device__ __forceinline__ void subtract_product(Pair& c, Pair u, Pair v) {
    subtract_even(c, u, v), subtract_odd(c, u, v);
}

// u v^T for tiles.
__device__ __forceinline__ Pair product(Pair u, Pair v) {
    Pair even = {0.0, 0.0}, odd = {0.0, 0.0};
    add_tile_product(even.x, even.y, u.x, v.x), add_tile_product(odd.x, odd.y, u.y, v.y);
    return {even.x + odd.x, even.y + odd.y};
}

// 1 / sqrt(v) to about the last bits; not finite if v <= 0 or v is subnormal.
__device__ __forceinline__ double inverse_root(double v) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(v));
    const double rest = fma(-v * y, y, 1.0);
    return fma(rest * y, fma(0.375, rest, 0.5), y);  // leaves a relative error of the order of rest^3
}

// Right-hand sides are further rows below the matrix, eight in a row of tiles; the factorization solves with L for
// them.
//
// Of a block of WARPS warps, warp w has the rows of tiles w, w + WARPS, ...  Step p makes column p of L.  There is one
// barrier for each step: before it, the warp with row p has made the inverse of the diagonal tile of L, which takes the
// place of the tile.
struct Cholesky {
    double *matrix, *sides;
    int rows, below;  // rows of tiles of A, and of right-hand sides

    // The first number of row i of tiles.
    __device__ __forceinline__ double* row(int i) const {
        return i < rows ? matrix + i * (i + 1) / 2 * NUMBERS : sides + (i - rows) * rows * NUMBERS;
    }

    // Replaces tile p of the diagonal by the inverse of its Cholesky factor.  Every lane computes the factor, and lane
    // c column c of the inverse.  Returns 0 if all pivots are positive; else the number s of the first step whose pivot
    // is not, counted from 1 in the whole matrix.  Returns -s instead if this pivot is NaN, or comes from a division by
    // a subnormal pivot.  A subnormal pivot makes the inverse NaN.
    __device__ __forceinline__ int invert_diagonal(int p) const {
        double* tile = row(p) + p * NUMBERS;
        double l[TILE][TILE], v[TILE];
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < TILE; ++i) {
            #pragma unroll
            for (int j = 0; j <= i; ++j) l[i][j] = tile[i * TILE + j];
        }
        int bad = 0;
        bool is_sound = true;
        #pragma unroll
        for (int k = 0; k < TILE; ++k) {
            const int step = p * TILE + k + 1;
            if (!bad && !(l[k][k] > 0)) bad = is_sound && l[k][k] <= 0 ? step : -step;
            const double inverse = inverse_root(l[k][k]);
            is_sound = is_sound && isfinite(inverse);
            v[k] = k == lane() ? 1.0 : 0.0;
            #pragma unroll
            for (int j = 0; j < k; ++j) v[k] = fma(-l[k][j], v[j], v[k]);
            v[k] *= inverse;
            #pragma unroll
            for (int i = k + 1; i < TILE; ++i) l[i][k] *= inverse;
            #pragma unroll
            for (int i = k + 1; i < TILE; ++i) {
                #pragma unroll
                for (int j = k + 1; j <= i; ++j) l[i][j] = fma(-l[i][k], l[j][k], l[i][j]);
            }
        }
        __syncwarp();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) {
            if (lane() < TILE) tile[k * TILE + lane()] = is_sound ? v[k] : __longlong_as_double(-1);
        }
        __syncwarp();
        return bad;
    }

    // Updates tile (i, p), i > p, by the columns 0 to p - 2 of tiles of L.  Column p - 1 is not complete yet;
    // `make_tile` subtracts its product.
    __device__ __forceinline__ void update(int i, int p) const {
        constexpr int CHAINS = 4;  // sums that do not wait for each other
        double *own = row(i), *other = row(p);
        Pair sums[CHAINS] = {};
        sums[0] = tile_of(own, p);
        #pragma unroll 2
        for (int k = 0; k + 1 < p; k += CHAINS / 2) {
            #pragma unroll
            for (int c = 0; c < CHAINS; c += 2) {
                if (c && k + 2 >= p) continue;
                const Pair u = tile_of(own, k + c / 2), v = tile_of(other, k + c / 2);
                add_tile_product(sums[c].x, sums[c].y, -u.x, v.x);
                add_tile_product(sums[c + 1].x, sums[c + 1].y, -u.y, v.y);
            }
        }
        tile_of(own, p) = {
            (sums[0].x + sums[1].x) + (sums[2].x + sums[3].x), (sums[0].y + sums[1].y) + (sums[2].y + sums[3].y)
        };
    }

    // Makes tile (i, p) of L: subtracts the product with column p - 1, and multiplies by the inverse of the diagonal
    // tile.  Then updates the diagonal tile of row i.
    __device__ __forceinline__ void make_tile(int i, int p) const {
        double* own = row(i);
        Pair tile = tile_of(own, p);
        if (p) subtract_product(tile, tile_of(own, p - 1), tile_of(row(p), p - 1));
        tile = product(tile, tile_of(row(p), p));
        tile_of(own, p) = tile;
        if (i < rows) subtract_product(tile_of(own, i), tile, tile);
    }

    // Factors the matrix; the rows of right-hand sides become solutions with L.  Returns the first number of
    // `invert_diagonal` that is not 0, or 0.
    template <int WARPS>
    __device__ __forceinline__ int factor(int* first_broken) const {
        const int all = rows + below;
        if (threadIdx.x == 0) *first_broken = 0;
        __syncthreads();
        const auto note = [&](int bad) { if (bad && lane() == 0 && !*first_broken) *first_broken = bad; };
        if (warp() == 0) note(invert_diagonal(0));
        for (int p = 0; p < rows; ++p) {
            __syncthreads();
            const int next = p + 1, mine = next + (warp() - next % WARPS + WARPS) % WARPS;  // the first own row
            for (int i = mine; i < all; i += WARPS) {
                make_tile(i, p);
                if (i == next && i < rows) note(invert_diagonal(i));
            }
            if (next == rows) break;
            for (int i = mine == next ? mine + WARPS : mine; i < all; i += WARPS) update(i, next);
        }
        __syncthreads();
        return *first_broken;
    }
};
