// The CUDA runtime calls that the library makes, on host memory. Linked instead of libcudart.
// Streams are eager by default. With SIMT_LAZY=1 work runs only when the host waits for it, as late as
// CUDA allows, so that a missing wait or an argument that dies too early shows. A captured graph is the list of what was
// enqueued; what a capture does not survive on a device (waiting, allocating, pageable copies) is refused here too.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "engine.hpp"

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(void const volatile*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile*, size_t);
}
using work_item = std::function<void()>;

// What has been recorded, and how far the device is: the n-th record of an event is done once `done` reaches n.
struct event_state {
  std::uint64_t recorded = 0, done = 0;
  CUstream_st* by = nullptr;
};
struct CUevent_st {
  int ordinal = 0;         // device that was current when it was made
  std::shared_ptr<event_state> state = std::make_shared<event_state>();
  bool captured = false;   // recorded last by a stream that was being captured
};
struct CUgraphNode_st {
  cudaGraphNodeType type;
  work_item run;
  std::shared_ptr<event_state> event;   // waits for what was recorded last when the graph is launched
};
struct CUgraph_st {
  std::deque<CUgraphNode_st> nodes;
};
struct CUgraphExec_st {
  std::deque<CUgraphNode_st> nodes;
};
struct CUstream_st {
  std::deque<work_item> work;
  bool blocking = true;                       // waits for the legacy default stream
  std::unique_ptr<CUgraph_st> capture;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
};

namespace {
CUstream_st null_stream;
std::map<void*, size_t> blocks;                 // device allocations
std::map<void*, size_t> pinned;                 // page-locked host allocations
int registered = 0;                             // of these, the ranges that the caller allocated
CUstream_st* capturing = nullptr;               // one at a time
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
void run_first(CUstream_st& s) {
  auto f = std::move(s.work.front());
  s.work.pop_front();
  if (sticky != cudaSuccess) return;
  try {
    device_access open;
    f();
  } catch (const simt::error& e) {
    std::fprintf(stderr, "simt: %s\n", e.what());
    sticky = cudaErrorLaunchFailure;
  }
}
cudaError_t drain(CUstream_st& s) {
  if (&s != &null_stream && s.blocking) drain(null_stream);     // legacy default stream
  while (!s.work.empty()) run_first(s);
  return sticky;
}
/// Runs no more than what the n-th record of an event stands behind.
void reach(const std::shared_ptr<event_state>& e, std::uint64_t n) {
  while (e->done < n && e->by && !e->by->work.empty()) run_first(*e->by);
}
/// A call that a capture does not survive, as under cudaStreamCaptureModeGlobal.
bool spoils_capture() {
  if (!capturing) return false;
  capturing->status = cudaStreamCaptureStatusInvalidated;
  return true;
}
cudaError_t submit(cudaStream_t s, work_item f, cudaGraphNodeType type) {
  if (of(s).status == cudaStreamCaptureStatusInvalidated) return set(cudaErrorStreamCaptureInvalidated);
  if (of(s).capture) {
    of(s).capture->nodes.push_back({type, std::move(f), nullptr});
    return cudaSuccess;
  }
  of(s).work.push_back(std::move(f));
  return lazy() ? cudaSuccess : drain(of(s));
}
bool within(const std::map<void*, size_t>& known, const void* p) {
  auto it = known.upper_bound(const_cast<void*>(p));
  if (it == known.begin()) return false;
  --it;
  return static_cast<const char*>(p) < static_cast<const char*>(it->first) + it->second;
}
}  // namespace

namespace simt {
cudaError_t enqueue(const cudaLaunchConfig_t& c, const void* kernel, std::function<void()> body) {
  // A device grants 48 KiB to what is declared and to what is asked for together; kernels here may declare 16.
  const auto it = smem_opt_in.find(kernel);
  if (c.dynamicSmemBytes > 32 * 1024 && (it == smem_opt_in.end() || size_t(it->second) < c.dynamicSmemBytes))
    return set(cudaErrorInvalidValue);
  const auto n = 1ull * c.blockDim.x * c.blockDim.y * c.blockDim.z;
  if (n == 0 || n > 1024 || c.gridDim.x == 0 || c.gridDim.y == 0 || c.gridDim.z == 0) return set(cudaErrorInvalidConfiguration);
  return submit(
      c.stream,
      [c, kernel, body = std::move(body)] {
        running_kernel() = kernel;
        run_grid(c.gridDim, c.blockDim, c.dynamicSmemBytes, body);
        running_kernel() = nullptr;
      },
      cudaGraphNodeTypeKernel);
}
const void*& running_kernel() {
  static const void* kernel = nullptr;
  return kernel;
}
int registrations_until_failure = -1;
int registered_ranges() { return registered; }
memory_range allocation_of(const void* p) {
  for (const auto* known : {&blocks, &pinned}) {
    auto it = known->upper_bound(const_cast<void*>(p));
    if (it == known->begin()) continue;
    --it;
    const char* const begin = static_cast<const char*>(it->first);
    if (static_cast<const char*>(p) < begin + it->second) return {begin, begin + it->second};
  }
  return {};
}
}  // namespace simt

extern "C" {
cudaError_t cudaMalloc(void** p, size_t n) {
  *p = nullptr;
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
  if (n == 0) return cudaSuccess;
  if (posix_memalign(p, 256, n)) return set(cudaErrorMemoryAllocation);
  std::memset(*p, 0xFF, n);
  blocks[*p] = n;
  if (__asan_poison_memory_region) __asan_poison_memory_region(*p, n);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
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
  if (of(s).capture) return spoils_capture(), set(cudaErrorStreamCaptureUnsupported);
  return submit(
      s, [p] { release(p); }, cudaGraphNodeTypeMemFree);
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  *p = nullptr;
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
  if (n != 0 && posix_memalign(p, 4096, n)) return set(cudaErrorMemoryAllocation);
  if (*p) pinned[*p] = n;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
  drain(null_stream);
  pinned.erase(p);
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
  if (simt::registrations_until_failure >= 0 && simt::registrations_until_failure-- == 0) return set(cudaErrorMemoryAllocation);
  if (reinterpret_cast<std::uintptr_t>(p) % 4096 != 0 || pinned.count(p) != 0) return set(cudaErrorHostMemoryAlreadyRegistered);
  pinned[p] = n;
  ++registered;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
  if (pinned.erase(p) == 0) return set(cudaErrorHostMemoryNotRegistered);
  --registered;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrCanUseHostPointerForRegisteredMem ? 1
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin    ? static_cast<int>(simt::smem_max)
                                                                     : 0;
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
  for (const void* p : {static_cast<const void*>(d), s})
    if (of(st).capture && !within(blocks, p) && !within(pinned, p)) return spoils_capture(), set(cudaErrorStreamCaptureUnsupported);
  return submit(
      st,
      [=] {
        if (n > 0) std::memcpy(d, s, n);
      },
      cudaGraphNodeTypeMemcpy);
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t st) {
  return submit(
      st,
      [=] {
        if (n > 0) std::memset(d, v, n);
      },
      cudaGraphNodeTypeMemset);
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) {
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
  cudaMemcpyAsync(d, s, n, k, nullptr);
  return drain(null_stream);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  *s = new CUstream_st;
  (*s)->blocking = (flags & cudaStreamNonBlocking) == 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  drain(*s);
  if (capturing == s) capturing = nullptr;
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (of(s).capture) return spoils_capture(), set(cudaErrorStreamCaptureUnsupported);
  return drain(of(s));
}

// ---- events ----
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = new CUevent_st;
  (*e)->ordinal = current_ordinal;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  if (!s && e->ordinal != current_ordinal) return set(cudaErrorInvalidResourceHandle);  // the default stream of the current device
  e->captured = of(s).capture != nullptr;
  if (e->captured) return cudaSuccess;              // the one capturing stream is in order anyway
  if (e->state->by != &of(s)) reach(e->state, e->state->recorded);   // records of one event are in order
  e->state->by = &of(s);
  return submit(
      s, [state = e->state, n = ++e->state->recorded] { state->done = n; }, cudaGraphNodeTypeEventRecord);
}
cudaError_t cudaEventQuery(cudaEvent_t e) { return e->state->done == e->state->recorded ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (spoils_capture()) return set(cudaErrorStreamCaptureUnsupported);
  reach(e->state, e->state->recorded);
  return sticky;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  if (of(s).capture) {
    if (e->captured) return cudaSuccess;
    if ((flags & cudaEventWaitExternal) == 0) return spoils_capture(), set(cudaErrorStreamCaptureIsolation);
    of(s).capture->nodes.push_back({cudaGraphNodeTypeWaitEvent, {}, e->state});
    return cudaSuccess;
  }
  return submit(
      s, [state = e->state, n = e->state->recorded] { reach(state, n); }, cudaGraphNodeTypeWaitEvent);
}

// ---- graphs: a list of what was enqueued ----
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  if (!s || capturing) return set(cudaErrorStreamCaptureUnsupported);
  capturing = s;
  s->capture = std::make_unique<CUgraph_st>();
  s->status = cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  *graph = nullptr;
  if (capturing != s || !s) return set(cudaErrorIllegalState);
  capturing = nullptr;
  auto nodes = std::move(s->capture);
  const bool whole = s->status == cudaStreamCaptureStatusActive;
  s->status = cudaStreamCaptureStatusNone;
  if (!whole) return set(cudaErrorStreamCaptureInvalidated);
  *graph = nodes.release();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  *status = of(s).status;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* count) {
  for (size_t i = 0; nodes && i < *count && i < g->nodes.size(); ++i) nodes[i] = &g->nodes[i];
  *count = g->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = node->type;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t g, unsigned long long) {
  *exec = new CUgraphExec_st{g->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  if (of(s).capture) return spoils_capture(), set(cudaErrorStreamCaptureUnsupported);
  for (const CUgraphNode_st& node : exec->nodes) {
    const work_item wait = [state = node.event, n = node.event ? node.event->recorded : 0] { reach(state, n); };
    if (const auto e = submit(s, node.event ? wait : node.run, node.type)) return e;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  delete g;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
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
    if (v > static_cast<int>(simt::smem_max)) return set(cudaErrorInvalidValue);
    smem_opt_in[f] = v;
  }
  return cudaSuccess;
}
}
