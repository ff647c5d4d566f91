// The CUDA runtime calls that the library makes, on host memory. Linked instead of libcudart.
// Streams are eager by default. With SIMT_LAZY=1 work runs only when the host waits for it, as late as
// CUDA allows, so that a missing wait or an argument that dies too early shows.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "engine.hpp"

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(void const volatile*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile*, size_t);
}
struct CUevent_st {
  bool done = true;
};
struct CUstream_st {
  std::deque<std::function<void()>> work;
};

namespace {
CUstream_st null_stream;
std::map<void*, size_t> blocks;                 // device allocations
std::map<const void*, int> smem_opt_in;
cudaError_t last = cudaSuccess, sticky = cudaSuccess;   // a failed kernel stays an error for good, as on a device
bool lazy() {
  static const bool l = [] {
    const char* s = std::getenv("SIMT_LAZY");
    return s && *s == '1';
  }();
  return l;
}
cudaError_t set(cudaError_t e) {
  if (e != cudaSuccess) last = e;
  return e;
}

// Outside kernels and copies device memory is poisoned: host code that touches it is caught by ASan.
struct device_access {
  static inline int depth = 0;
  device_access() {
    if (depth++ == 0 && __asan_unpoison_memory_region)
      for (auto& [p, n] : blocks) __asan_unpoison_memory_region(p, n);
  }
  ~device_access() {
    if (--depth == 0 && __asan_poison_memory_region)
      for (auto& [p, n] : blocks) __asan_poison_memory_region(p, n);
  }
};
void release(void* p) {
  const auto it = blocks.find(p);
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, it->second);
  blocks.erase(it);
  std::free(p);
}
constexpr int ordinals = 2;                     // devices that can be current; memory and streams do not tell them apart
int current_ordinal = 0;
CUstream_st& of(cudaStream_t s) { return s ? *s : null_stream; }
cudaError_t drain(CUstream_st& s) {
  if (&s != &null_stream) drain(null_stream);     // legacy default stream
  device_access open;
  while (!s.work.empty()) {
    auto f = std::move(s.work.front());
    s.work.pop_front();
    if (sticky != cudaSuccess) continue;
    try {
      f();
    } catch (const simt::error& e) {
      std::fprintf(stderr, "simt: %s\n", e.what());
      sticky = cudaErrorLaunchFailure;
    }
  }
  return sticky;
}
cudaError_t submit(cudaStream_t s, std::function<void()> f) {
  of(s).work.push_back(std::move(f));
  return lazy() ? cudaSuccess : drain(of(s));
}
}  // namespace

namespace simt {
cudaError_t enqueue(const cudaLaunchConfig_t& c, const void* kernel, std::function<void()> body) {
  const auto it = smem_opt_in.find(kernel);
  if (c.dynamicSmemBytes > 48 * 1024 && (it == smem_opt_in.end() || size_t(it->second) < c.dynamicSmemBytes))
    return set(cudaErrorInvalidValue);
  const auto n = 1ull * c.blockDim.x * c.blockDim.y * c.blockDim.z;
  if (n == 0 || n > 1024 || c.gridDim.x == 0 || c.gridDim.y == 0 || c.gridDim.z == 0) return set(cudaErrorInvalidConfiguration);
  return submit(c.stream, [c, body = std::move(body)] { run_grid(c.gridDim, c.blockDim, c.dynamicSmemBytes, body); });
}
}  // namespace simt

extern "C" {
cudaError_t cudaMalloc(void** p, size_t n) {
  *p = nullptr;
  if (n == 0) return cudaSuccess;
  if (posix_memalign(p, 256, n)) return set(cudaErrorMemoryAllocation);
  std::memset(*p, 0xFF, n);
  blocks[*p] = n;
  if (__asan_poison_memory_region) __asan_poison_memory_region(*p, n);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  const auto it = blocks.find(p);
  if (it == blocks.end()) return set(cudaErrorInvalidValue);
  drain(null_stream);
  release(p);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  if (!p) return cudaSuccess;
  if (blocks.find(p) == blocks.end()) return set(cudaErrorInvalidValue);
  return submit(s, [p] { release(p); });
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  *p = nullptr;
  if (n != 0 && posix_memalign(p, 4096, n)) return set(cudaErrorMemoryAllocation);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  drain(null_stream);
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = current_ordinal;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= ordinals) return set(cudaErrorInvalidDevice);
  current_ordinal = ordinal;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = ordinals;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t st) {
  return submit(st, [=] { std::memcpy(d, s, n); });
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t st) {
  return submit(st, [=] { std::memset(d, v, n); });
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) {
  cudaMemcpyAsync(d, s, n, k, nullptr);
  return drain(null_stream);
}
cudaError_t cudaStreamCreate(cudaStream_t* s) {
  *s = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  drain(*s);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return drain(of(s)); }
cudaError_t cudaGetLastError(void) {
  const auto e = last;
  last = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError(void) { return sticky != cudaSuccess ? sticky : last; }
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : e == cudaErrorLaunchFailure ? "unspecified launch failure" : "error";
}
cudaError_t cudaFuncSetAttribute(const void* f, cudaFuncAttribute a, int v) {
  if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (v > 227 * 1024) return set(cudaErrorInvalidValue);
    smem_opt_in[f] = v;
  }
  return cudaSuccess;
}
}
