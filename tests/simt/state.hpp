#pragma once
// What the engine's own sources share: the fibers of the block that runs, and hooks into the sanitizers' run times.
//
// The engine is compiled without instrumentation; the hooks are weak symbols, null in a build without that sanitizer.

#include "engine.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void**, const void*, std::size_t);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*);
__attribute__((weak)) void __asan_poison_memory_region(void const volatile*, std::size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile*, std::size_t);
__attribute__((weak)) void* __tsan_create_fiber(unsigned);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void __tsan_switch_to_fiber(void*, unsigned);
__attribute__((weak)) void __tsan_acquire(void*);
__attribute__((weak)) void __tsan_release(void*);
__attribute__((weak)) void AnnotateIgnoreReadsBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreReadsEnd(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char*, int);
}

namespace simt {

// Own allocator type: keeps these containers' code out of the linker's hands, which could otherwise
// pick a sanitizer-instrumented copy of the same instantiation from a test.
template <class T>
struct local_alloc : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = local_alloc<U>;
  };
  local_alloc() = default;
  template <class U>
  local_alloc(const local_alloc<U>&) noexcept {}
};
template <class T>
using vec = std::vector<T, local_alloc<T>>;

inline constexpr std::size_t stack_bytes = 256 * 1024;
inline constexpr unsigned tag_ring = 1u << 14;

static inline void acquire(void* tag) {
  if (__tsan_acquire) __tsan_acquire(tag);
}
static inline void release(void* tag) {
  if (__tsan_release) __tsan_release(tag);
}

// Keeps the engine's own allocations and fills (intercepted calls) out of the race detector's sight.
struct quiet {
  quiet() {
    if (AnnotateIgnoreReadsBegin) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
  }
  ~quiet() {
    if (AnnotateIgnoreReadsBegin) {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  }
  quiet(const quiet&) = delete;
};

enum class state : std::uint8_t { ready, warp, barrier, done };

struct group {                       // lanes of one warp that meet in one collective
  op kind = op::none;
  std::uint32_t mask = 0, arrived = 0;
  site at{};
  char* tag = nullptr;
};

struct fiber {
  uint3 thread{};
  state st = state::done;
  unsigned tid = 0;
  char* stack = nullptr;
  void* sp = nullptr;
  void* tsan = nullptr;
  void* fake_stack = nullptr;
  // pending warp collective
  group* grp = nullptr;
  std::uint64_t value = 0, result = 0;
  std::int32_t arg = 0, width = 32;
  void (*fn)(void* const (&)[32]) = nullptr;
  int barrier_result = 0;
};

struct engine {
  vec<std::unique_ptr<fiber>> pool;
  fiber* cur = nullptr;
  void* main_sp = nullptr;
  void* main_tsan = nullptr;
  void* main_fake = nullptr;
  const void* main_bottom = nullptr;
  std::size_t main_size = 0;
  const std::function<void()>* body = nullptr;
  unsigned nthreads = 0, alive = 0;
  vec<unsigned> ready;
  vec<std::uint32_t> live;               // live lanes per warp
  vec<std::deque<group>> groups;         // pending groups per warp
  // Happens-before tags for the race detector: an address per collective and block, so that an edge joins only
  // those that took part (an address is used again after tag_ring others).
  char tags[tag_ring]{};
  unsigned tag_next = 0;
  char* new_tag() { return &tags[tag_next++ % tag_ring]; }
  unsigned barrier_count = 0;
  block_op barrier_kind{};
  site barrier_site{};
  int barrier_acc = 0;
  char *bar_tag = nullptr, *start_tag = nullptr, *end_tag = nullptr;
  char launch_tag = 0, fence_tag = 0, done_tag = 0;
  char* smem = nullptr;
  std::size_t smem_bytes = 0;
  bool smem_shut = false;  // the detector of addresses guards what lies behind smem_bytes
  std::string failure;
  std::uint64_t rng = 1;
  std::uint64_t next() {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
  }
};
extern engine sm;

// fiber.cpp
void prepare(fiber& f, unsigned tid);
void to_fiber(fiber& f);
void to_main(bool dying);

// collectives.cpp
std::string where(const fiber& f);  // block and thread, for reports
std::string text(site s);
void on_exit(fiber& f);

}  // namespace simt
