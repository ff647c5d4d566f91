#pragma once
// Compiles CUDA device code as plain C++ and runs it on the SIMT engine.
//
// Test builds force-include this file (-include simt.hpp); library headers do not know of it.

#if defined(__CUDACC__)
#error "simt.hpp is for host compilers only"
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "engine.hpp"

// ---- storage: one block runs at a time, so a block's static shared memory is a static variable ----
#undef __shared__
#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#if defined(__clang__) && !defined(SIMT_ASAN)
#define __shared__ static __attribute__((section("simt_shared")))   // engine poisons the section per block
#else
#define __shared__ static                                           // ASan adds redzones
#endif
#undef __global__
#define __global__ static   // internal linkage: sanitizers do not guard the statics of COMDAT functions
#define __launch_bounds__(...)

// ---- launches: same call as the CUDA runtime's template, typed all the way down ----
namespace simt {
cudaError_t enqueue(const cudaLaunchConfig_t& c, const void* kernel, std::function<void()> body);
template <class... P, class... A>
cudaError_t launch(const cudaLaunchConfig_t* c, void (*kernel)(P...), A&&... a) {
  auto args = std::make_shared<std::tuple<std::decay_t<P>...>>(std::forward<A>(a)...);
  return enqueue(*c, reinterpret_cast<const void*>(kernel), [kernel, args] { std::apply(kernel, *args); });
}
extern int registrations_until_failure;  // cudaHostRegister fails once, so many calls from now; negative: it does not
int registered_ranges();                 // that it has made page-locked
#define SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

template <class T>
std::uint64_t pack(T v) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t u = 0;
  std::memcpy(&u, static_cast<const void*>(&v), sizeof v);
  return u;
}
template <class T>
T unpack(std::uint64_t u) {
  T v;
  std::memcpy(static_cast<void*>(&v), &u, sizeof v);
  return v;
}
}  // namespace simt
#define cudaLaunchKernelEx ::simt::launch

// ---- synchronisation and warp collectives ----
inline void __syncthreads(SIMT_SITE) { simt::block_barrier(simt::block_op::sync, 0, {file, line}); }
inline int __syncthreads_count(int p, SIMT_SITE) { return simt::block_barrier(simt::block_op::count, p, {file, line}); }
inline int __syncthreads_and(int p, SIMT_SITE) { return simt::block_barrier(simt::block_op::all, p, {file, line}); }
inline int __syncthreads_or(int p, SIMT_SITE) { return simt::block_barrier(simt::block_op::any, p, {file, line}); }
inline void __syncwarp(unsigned m = 0xffffffffu, SIMT_SITE) { simt::warp_op(simt::op::syncwarp, m, 0, 0, 32, {file, line}); }
inline unsigned __activemask() { return 1u << (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }
#define SIMT_SHFL(name, kind, type)                                                                                \
  template <class T>                                                                                               \
  T name(unsigned m, T v, type a, int w = 32, SIMT_SITE) {                                                         \
    return simt::unpack<T>(simt::warp_op(simt::op::kind, m, simt::pack(v), static_cast<int>(a), w, {file, line})); \
  }
SIMT_SHFL(__shfl_sync, shfl_idx, int)
SIMT_SHFL(__shfl_up_sync, shfl_up, unsigned)
SIMT_SHFL(__shfl_down_sync, shfl_down, unsigned)
SIMT_SHFL(__shfl_xor_sync, shfl_xor, int)
inline unsigned __ballot_sync(unsigned m, int p, SIMT_SITE) {
  return unsigned(simt::warp_op(simt::op::ballot, m, p != 0, 0, 32, {file, line}));
}
inline int __any_sync(unsigned m, int p, SIMT_SITE) { return int(simt::warp_op(simt::op::any, m, p != 0, 0, 32, {file, line})); }
inline int __all_sync(unsigned m, int p, SIMT_SITE) { return int(simt::warp_op(simt::op::all, m, p != 0, 0, 32, {file, line})); }
template <class T>
unsigned __match_any_sync(unsigned m, T v, SIMT_SITE) {
  return unsigned(simt::warp_op(simt::op::match_any, m, simt::pack(v), 0, 32, {file, line}));
}
inline unsigned __reduce_add_sync(unsigned m, unsigned v, SIMT_SITE) {
  return unsigned(simt::warp_op(simt::op::red_add, m, v, 0, 32, {file, line}));
}
inline unsigned __reduce_min_sync(unsigned m, unsigned v, SIMT_SITE) {
  return unsigned(simt::warp_op(simt::op::red_min_u, m, v, 0, 32, {file, line}));
}
inline unsigned __reduce_max_sync(unsigned m, unsigned v, SIMT_SITE) {
  return unsigned(simt::warp_op(simt::op::red_max_u, m, v, 0, 32, {file, line}));
}
inline int __reduce_min_sync(unsigned m, int v, SIMT_SITE) {
  return int(simt::warp_op(simt::op::red_min_s, m, simt::pack(v), 0, 32, {file, line}));
}
inline int __reduce_max_sync(unsigned m, int v, SIMT_SITE) {
  return int(simt::warp_op(simt::op::red_max_s, m, simt::pack(v), 0, 32, {file, line}));
}
inline void __threadfence() { simt::fence(); }
inline void __threadfence_block() { simt::fence(); }
inline void __nanosleep(unsigned) { simt::yield(); }

// ---- atomics: relaxed, device scope, as in CUDA ----
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  if constexpr (std::is_integral_v<T>)
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
  else {
    using U = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
    auto* q = reinterpret_cast<U*>(p);
    U old = __atomic_load_n(q, __ATOMIC_RELAXED);
    for (;;) {
      const U want = static_cast<U>(simt::pack<T>(simt::unpack<T>(old) + v));   // __half2 is not trivially copyable
      if (__atomic_compare_exchange_n(q, &old, want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return simt::unpack<T>(old);
    }
  }
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> v) {
  return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED);
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> v) {
  return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  T r;
  __atomic_exchange(p, &v, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> cmp, std::type_identity_t<T> v) {
  __atomic_compare_exchange(p, &cmp, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  simt::yield();
  return cmp;
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  T o = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (v < o && !__atomic_compare_exchange_n(p, &o, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return o;
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  T o = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (o < v && !__atomic_compare_exchange_n(p, &o, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return o;
}

// ---- arithmetic intrinsics ----
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<signed char>(a >> 8 * i) * static_cast<signed char>(b >> 8 * i);
  return c;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned select) {
  const unsigned long long bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= static_cast<unsigned>(bytes >> (select >> 4 * i & 7u) * 8 & 255u) << 8 * i;
  return r;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
template <class T>
T __ldg(const T* p) {
  return *p;
}
using std::max;
using std::min;
inline __half __hfma(__half a, __half b, __half c) { return __float2half(std::fma(__half2float(a), __half2float(b), __half2float(c))); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
  return __floats2half2_rn(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}

// ---- tensor cores: fragment layouts of the PTX ISA, accumulated in float ----
namespace simt {
// Each lane reads and writes its own registers, so that detectors see who does; the engine multiplies copies of them.
inline void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], const char* file, int line, bool bf16 = false) {
  fragments mine{{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, bf16};
  warp_op(op::call, ~0u, reinterpret_cast<std::uintptr_t>(&mine), 0, 32, {file, line}, multiply_fragments);
  for (int i = 0; i < 4; ++i) c[i] = mine.c[i];
}

// Each lane reads its own row, so that detectors see who reads; the call then only exchanges what was read.
inline void ldmatrix_x4(unsigned (&words)[4], const void* row, const char* file, int line, bool transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) fail("ldmatrix: a row is not on a multiple of 16");
  struct frag {
    std::uint16_t row[8];
    unsigned* words;
    bool transposed;
  } mine{{}, words, transposed};
  for (int i = 0; i < 8; ++i) mine.row[i] = static_cast<const std::uint16_t*>(row)[i];
  warp_op(op::call, ~0u, reinterpret_cast<std::uintptr_t>(&mine), 0, 32, {file, line}, [](void* const(&lanes)[32]) {
    auto get = [&](int l) -> frag& { return *static_cast<frag*>(lanes[l]); };
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4, t = l % 4 * 2;
      for (int m = 0; m < 4; ++m) {
        const bool turned = get(l).transposed;
        const unsigned lo = turned ? get(8 * m + t).row[g] : get(8 * m + g).row[t];
        const unsigned hi = turned ? get(8 * m + t + 1).row[g] : get(8 * m + g).row[t + 1];
        get(l).words[m] = lo | hi << 16;
      }
    }
  });
}

// ---- cp.async: a copy happens at once under even seeds, and under odd ones when the thread waits for its group ----
struct async_copies {
  struct one {
    void* to;
    const void* from;
    int group;
  };
  std::vector<one> begun;
  int groups = 0;
};
inline async_copies& copies_of_thread() {
  static async_copies all[1024];
  return all[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
}
inline void begin_copy_16(void* to, const void* from) {
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % 16 != 0)
    fail("cp.async: an address is not on a multiple of 16");
  if (settings().seed % 2 == 0) {
    std::memcpy(to, from, 16);
    return;
  }
  async_copies& mine = copies_of_thread();
  mine.begun.push_back({to, from, mine.groups});
}
inline void end_copies() { ++copies_of_thread().groups; }
inline void wait_copies(int pending) {
  async_copies& mine = copies_of_thread();
  std::size_t kept = 0;
  for (const auto& c : mine.begun) {
    if (c.group < mine.groups - pending)
      std::memcpy(c.to, c.from, 16);
    else
      mine.begun[kept++] = c;
  }
  mine.begun.resize(kept);
}
}  // namespace simt
