// What a CUDA kernel needs to run on a CPU, without a GPU: each thread of a block is a fiber, and the blocks run one
// after the other.  Fibers run in a random order that changes at each barrier, so a missing barrier may change results.
//
// launches_on_cpu.py replaces inline assembly and __shared__ in the source of a kernel, and includes it after this
// file.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#define __CUDA_ARCH__ 800
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct Place { unsigned x; };
static Place threadIdx, blockIdx, gridDim;

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct int2 { int x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }

template <typename T, typename U> auto min(T u, U v) { return std::min<std::common_type_t<T, U>>(u, v); }
template <typename T, typename U> auto max(T u, U v) { return std::max<std::common_type_t<T, U>>(u, v); }
using std::isfinite;

template <typename To, typename From> To same_bits(From v) {
    static_assert(sizeof(To) >= sizeof(From), "all bits fit");
    To to = {};
    memcpy(&to, &v, sizeof v);
    return to;
}
inline unsigned __float_as_uint(float v) { return same_bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return same_bits<float>(v); }
inline float __int_as_float(int v) { return same_bits<float>(v); }
inline long long __double_as_longlong(double v) { return same_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return same_bits<double>(v); }
inline int __double2hiint(double v) { return int(same_bits<uint64_t>(v) >> 32); }
inline int __double2loint(double v) { return int(uint32_t(same_bits<uint64_t>(v))); }
inline double __hiloint2double(int hi, int lo) {
    return same_bits<double>(uint64_t(uint32_t(hi)) << 32 | uint32_t(lo));
}
inline double __dmul_rn(double u, double v) { return u * v; }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline unsigned __umulhi(unsigned u, unsigned v) { return unsigned(uint64_t(u) * v >> 32); }
inline int __ffs(unsigned v) { return __builtin_ffs(int(v)); }
inline size_t __cvta_generic_to_shared(const void* p) { return size_t(p); }

// ---- fibers ------------------------------------------------------------------------------------

namespace on_cpu {

constexpr int STACK_BYTES = 1 << 17, SHARED_BYTES = 232448, LANES = 32, MOST_THREADS = 1024;
constexpr long MOST_ROUNDS = 10'000'000;

struct Copy {
    void* to;
    const void* from;
    size_t all, read;
};

struct Fiber {
    ucontext_t context;
    bool done = false;
    std::vector<Copy> copies;  // asynchronous ones that it has started
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
alignas(1024) static char shared_memory[SHARED_BYTES];
static void (*kernel)();
static std::mt19937 order;

inline void yield() {
    const unsigned own = threadIdx.x;
    swapcontext(&fibers[own].context, &scheduler);
    threadIdx.x = own;
}

static void begin() {
    kernel();
    if (!fibers[threadIdx.x].copies.empty()) {
        fprintf(stderr, "a thread has ended before its asynchronous copies\n");
        abort();
    }
    fibers[threadIdx.x].done = true;
    yield();
}

// Where a group of fibers waits for each other.  Each brings a value and gets those of all.
struct Meeting {
    unsigned size = 0, arrived = 0, number = 0;
    std::vector<uint64_t> brought, given[2];

    void reset(unsigned fibers) { *this = Meeting(), size = fibers, brought.resize(fibers); }

    const std::vector<uint64_t>& meet(unsigned place, uint64_t value) {
        const unsigned own = number;
        brought[place] = value;
        if (++arrived == size) {
            given[own % 2] = brought, arrived = 0, ++number;
        } else {
            while (number == own) yield();
        }
        return given[own % 2];
    }
};
static Meeting of_block, of_warp[MOST_THREADS / LANES];

template <typename T> const std::vector<uint64_t>& meet_block(T v) {
    return of_block.meet(threadIdx.x, same_bits<uint64_t>(v));
}
template <typename T> const std::vector<uint64_t>& meet_warp(T v) {
    return of_warp[threadIdx.x / LANES].meet(threadIdx.x % LANES, same_bits<uint64_t>(v));
}
template <typename T> T taken(uint64_t bits) {
    T v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void run_block(unsigned threads) {
    if (fibers.size() < threads) fibers.resize(threads);
    of_block.reset(threads);
    for (unsigned w = 0; w < threads / LANES; ++w) of_warp[w].reset(LANES);
    std::vector<unsigned> turns(threads);
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = &scheduler, fiber.done = false, turns[i] = i;
        makecontext(&fiber.context, begin, 0);
    }
    bool any = true;
    for (long round = 0; any; ++round) {
        if (round == MOST_ROUNDS) {
            fprintf(stderr, "some threads wait for a barrier that others do not reach\n");
            abort();
        }
        std::shuffle(turns.begin(), turns.end(), order), any = false;
        for (const unsigned i : turns) {
            if (fibers[i].done) continue;
            threadIdx.x = i;
            swapcontext(&scheduler, &fibers[i].context);
            any = any || !fibers[i].done;
        }
    }
}

template <typename T> T largest(const std::vector<uint64_t>& all) {
    T most = taken<T>(all[0]);
    for (const uint64_t v : all) most = std::max(most, taken<T>(v));
    return most;
}

}  // namespace on_cpu

// ---- functions of a warp or a block --------------------------------------------------------------

inline void __syncthreads() { on_cpu::meet_block(0); }
inline int __syncthreads_or(int v) { return on_cpu::largest<int>(on_cpu::meet_block(int(v != 0))); }
inline void __threadfence() {}  // threads take turns, and see each other's writes at once
inline void __syncwarp() { on_cpu::meet_warp(0); }
template <typename T> T __shfl_sync(unsigned, T v, int lane) {
    return on_cpu::taken<T>(on_cpu::meet_warp(v)[lane % on_cpu::LANES]);
}
template <typename T> T __shfl_xor_sync(unsigned, T v, int distance) {
    return on_cpu::taken<T>(on_cpu::meet_warp(v)[threadIdx.x % on_cpu::LANES ^ unsigned(distance)]);
}
template <typename T> T __reduce_max_sync(unsigned, T v) { return on_cpu::largest<T>(on_cpu::meet_warp(v)); }
inline unsigned __reduce_min_sync(unsigned, unsigned v) { return ~on_cpu::largest<unsigned>(on_cpu::meet_warp(~v)); }
inline int __any_sync(unsigned, int v) { return on_cpu::largest<int>(on_cpu::meet_warp(int(v != 0))); }
inline unsigned __ballot_sync(unsigned, int v) {
    const auto& all = on_cpu::meet_warp(int(v != 0));
    unsigned bits = 0;
    for (unsigned i = 0; i < on_cpu::LANES; ++i) bits |= unsigned(all[i]) << i;
    return bits;
}
template <typename T> T atomicAdd(T* to, T v) { return std::exchange(*to, *to + v); }
template <typename T> T atomicMax(T* to, T v) { return std::exchange(*to, std::max(*to, v)); }
template <typename T> T atomicMin(T* to, T v) { return std::exchange(*to, std::min(*to, v)); }

// ---- instructions --------------------------------------------------------------------------------

namespace on_cpu {

// An asynchronous copy of `all` bytes, of which only the first `read` are read, and the others become zero.  Until the
// thread waits for its copies, each byte is 0xff.
inline void start_copy(void* to, const void* from, size_t all, size_t read) {
    if (size_t(to) % all || size_t(from) % all) {
        fprintf(stderr, "an address of an asynchronous copy is not aligned\n");
        abort();
    }
    memset(to, 0xff, all);
    fibers[threadIdx.x].copies.push_back({to, from, all, read});
}
inline void finish_copies() {
    for (const Copy& copy : fibers[threadIdx.x].copies) {
        memset(copy.to, 0, copy.all), memcpy(copy.to, copy.from, copy.read);
    }
    fibers[threadIdx.x].copies.clear();
}

// Loads or stores of neighbouring words in global memory: one array and the address of another object.
template <size_t WORDS, typename To> void copy_words(To* to, const unsigned long long (&word)[WORDS]) {
    memcpy((void*)to, word, sizeof word);
}
template <size_t WORDS, typename From> void copy_words(unsigned long long (&word)[WORDS], const From* from) {
    memcpy(word, (const void*)from, sizeof word);
}

inline float reciprocal_instruction(float v) {
    const float y = 1.0f / v;
    return std::fpclassify(y) == FP_SUBNORMAL ? std::copysign(0.0f, y) : y;
}
inline double reciprocal_instruction(double v) { return 1.0 / v; }

// Products of small matrices whose entries the lanes of a warp have, in the order of the instruction.
inline void tf32_product(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const auto cut = [](uint64_t v) { return double(__uint_as_float(unsigned(v) & 0xffffe000u)); };
    double of_a[16][8], of_b[8][8];
    for (int e = 0; e < 4; ++e) {
        const auto& all = meet_warp(a[e]);
        for (int i = 0; i < LANES; ++i) of_a[i / 4 + 8 * (e % 2)][i % 4 + 4 * (e / 2)] = cut(all[i]);
    }
    for (int e = 0; e < 2; ++e) {
        const auto& all = meet_warp(b[e]);
        for (int i = 0; i < LANES; ++i) of_b[i % 4 + 4 * e][i / 4] = cut(all[i]);
    }
    const int g = threadIdx.x % LANES / 4, q = threadIdx.x % 4;
    for (int e = 0; e < 4; ++e) {
        double sum = d[e];
        for (int k = 0; k < 8; ++k) sum += of_a[g + 8 * (e / 2)][k] * of_b[k][2 * q + e % 2];
        d[e] = float(sum);
    }
}

inline void fp64_product(double& left, double& right, double a, double b) {
    double of_a[8][4], of_b[4][8];
    const auto& all_a = meet_warp(a);
    for (int i = 0; i < LANES; ++i) of_a[i / 4][i % 4] = taken<double>(all_a[i]);
    const auto& all_b = meet_warp(b);
    for (int i = 0; i < LANES; ++i) of_b[i % 4][i / 4] = taken<double>(all_b[i]);
    const int g = threadIdx.x % LANES / 4, q = threadIdx.x % 4;
    for (int k = 0; k < 4; ++k) {
        left = std::fma(of_a[g][k], of_b[k][2 * q], left), right = std::fma(of_a[g][k], of_b[k][2 * q + 1], right);
    }
}

inline void not_supported(const char* what) {
    fprintf(stderr, "fibers.h has no instruction for: %s\n", what);
    abort();
}

// ---- launches ------------------------------------------------------------------------------------

static const uint64_t* arguments;

template <typename... T, size_t... I> void call(void (*entry)(T...), std::index_sequence<I...>) {
    entry(taken<T>(arguments[I])...);
}
template <typename... T> void call(void (*entry)(T...)) { call(entry, std::index_sequence_for<T...>()); }

// Shared memory starts with all bits set: as numbers these are NaN.
static void run(unsigned blocks, unsigned threads, const uint64_t* given, unsigned seed) {
    arguments = given, gridDim.x = blocks, order.seed(seed);
    for (unsigned b = 0; b < blocks; ++b) {
        blockIdx.x = b, memset(shared_memory, 0xff, SHARED_BYTES);
        run_block(threads);
    }
}

}  // namespace on_cpu
