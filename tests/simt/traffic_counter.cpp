// What instrumented code calls, in the place of the race detector's run time: accesses of kernels to global memory are counted.
//
// Code under test is compiled with -fsanitize=thread and linked without: the calls end here. This file is not instrumented.

#include "traffic.hpp"

#include "engine.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

namespace {

struct interval {
  std::uintptr_t begin, end;
};

/// The bytes that the lanes of a warp have asked for by one instruction.
struct warp_access {
  std::vector<interval> seen;

  /// Adds [begin, end); how many of its bytes are new.
  std::uint64_t add(std::uintptr_t begin, std::uintptr_t end) {
    std::uint64_t fresh = end - begin;
    for (const interval& s : seen) {  // intervals of `seen` do not overlap
      const std::uintptr_t low = begin > s.begin ? begin : s.begin, high = end < s.end ? end : s.end;
      if (low < high) fresh -= high - low;
    }
    if (fresh == 0) return 0;
    for (std::size_t i = 0; i < seen.size();) {
      if (seen[i].end < begin || end < seen[i].begin) {
        ++i;
        continue;
      }
      begin = begin < seen[i].begin ? begin : seen[i].begin;
      end = end > seen[i].end ? end : seen[i].end;
      seen[i] = seen.back();
      seen.pop_back();
    }
    seen.push_back({begin, end});
    return fresh;
  }
};

struct named_range {
  std::uintptr_t begin, end;
  std::string what;
};

struct counter {
  bool on = false, busy = false;
  std::vector<named_range> names;
  traffic::table sums;
  // of the launch
  std::uint64_t launch = 0;
  std::map<std::string, traffic::bytes>* of_kernel = nullptr;
  std::map<std::uintptr_t, std::pair<std::uintptr_t, std::vector<std::uint8_t>>> touched;  // by allocation: 1 read, 2 written
  // of the block
  uint3 block{};
  std::vector<std::unordered_map<std::uintptr_t, std::uint32_t>> executed;                  // (threads) times an instruction was
  std::vector<std::unordered_map<std::uint64_t, warp_access>> warps;
};
counter& state() {
  static counter c;
  return c;
}

/// The program's symbols, as nm prints them: kernels are static functions, which no other means names.
std::string kernel_name(const void* kernel) {
  static const std::map<std::uintptr_t, std::string> names = [] {
    std::map<std::uintptr_t, std::string> all;
    char self[4096] = {};
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) <= 0) return all;
    std::FILE* const pipe = popen(("nm -C '" + std::string(self) + "'").c_str(), "r");
    char line[16384];
    while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) {
      unsigned long address = 0;
      char kind = 0;
      int at = 0;
      if (std::sscanf(line, "%lx %c %n", &address, &kind, &at) < 2 || (kind != 't' && kind != 'T')) continue;
      std::string text(line + at);
      text = text.substr(0, text.find_first_of("<(\n"));
      text = text.substr(text.rfind("::") == std::string::npos ? 0 : text.rfind("::") + 2);
      const std::string end = "_kernel";
      if (text.size() > end.size() && text.ends_with(end)) all[address] = text.substr(0, text.size() - end.size());
    }
    if (pipe != nullptr) pclose(pipe);
    return all;
  }();
  const auto found = names.find(reinterpret_cast<std::uintptr_t>(kernel));
  return found == names.end() ? "unnamed" : found->second;
}

const std::string& range_of(const counter& c, std::uintptr_t p) {
  static const std::string none;
  for (const named_range& n : c.names) {
    if (p >= n.begin && p < n.end) return n.what;
  }
  return none;
}

void end_launch(counter& c) {
  for (const auto& [begin, allocation] : c.touched) {
    const std::vector<std::uint8_t>& flags = allocation.second;
    for (std::size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] == 0) continue;
      traffic::bytes& b = (*c.of_kernel)[range_of(c, begin + i)];
      b.read += flags[i] & 1;
      b.written += flags[i] >> 1 & 1;
    }
  }
  c.touched.clear();
  c.of_kernel = nullptr;
}

void access(const void* p, std::size_t size, bool writes, const void* instruction) {
  counter& c = state();
  if (!c.on || c.busy || simt::running_kernel() == nullptr) return;
  c.busy = true;
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  if (c.launch != simt::stats().launches) {
    if (c.of_kernel != nullptr) end_launch(c);
    c.launch = simt::stats().launches;
    c.of_kernel = &c.sums[kernel_name(simt::running_kernel())];
    c.executed.clear();
    c.warps.clear();
  }
  auto found = c.touched.upper_bound(begin);
  if (found != c.touched.begin()) --found;
  if (found == c.touched.end() || begin < found->first || begin >= found->second.first) {
    const simt::memory_range range = simt::allocation_of(p);
    if (range.begin == nullptr) {
      c.busy = false;
      return;
    }
    const auto first = reinterpret_cast<std::uintptr_t>(range.begin), last = reinterpret_cast<std::uintptr_t>(range.end);
    found = c.touched.insert({first, {last, std::vector<std::uint8_t>(last - first)}}).first;
  }
  std::vector<std::uint8_t>& flags = found->second.second;
  for (std::size_t i = 0; i < size; ++i) flags[begin - found->first + i] |= writes ? 2 : 1;

  if (c.warps.empty() || std::memcmp(&c.block, &blockIdx, sizeof(c.block)) != 0) {
    c.block = blockIdx;
    c.executed.assign(1024, {});
    c.warps.assign(32, {});
  }
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const auto at = reinterpret_cast<std::uintptr_t>(instruction);
  const std::uint64_t key = static_cast<std::uint64_t>(at) << 24 ^ c.executed[thread][at]++;
  const std::uint64_t fresh = c.warps[thread / 32][key].add(begin, begin + size);
  traffic::bytes& b = (*c.of_kernel)[range_of(c, begin)];
  b.requested += fresh;
  if (!writes) b.requested_reads += fresh;
  c.busy = false;
}

}  // namespace

namespace traffic {

void name(const void* begin, std::int64_t size, const std::string& what) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  state().names.push_back({first, first + static_cast<std::uintptr_t>(size), what});
}
void start() { state().on = true; }
table stop() {
  counter& c = state();
  c.on = false;
  if (c.of_kernel != nullptr) end_launch(c);
  return std::move(c.sums);
}

}  // namespace traffic

#define KVX_HERE __builtin_return_address(0)
#define KVX_ACCESSES(size)                                                        \
  void __tsan_read##size(void* p) { access(p, size, false, KVX_HERE); }           \
  void __tsan_write##size(void* p) { access(p, size, true, KVX_HERE); }           \
  void __tsan_unaligned_read##size(void* p) { access(p, size, false, KVX_HERE); } \
  void __tsan_unaligned_write##size(void* p) { access(p, size, true, KVX_HERE); }
// Atomics ask for their word once.
#define KVX_FETCH(bits, T, name, operation)                 \
  T __tsan_atomic##bits##_##name(volatile T* p, T v, int) { \
    access(const_cast<T*>(p), sizeof(T), true, KVX_HERE);   \
    return operation(p, v, __ATOMIC_SEQ_CST);               \
  }
#define KVX_COMPARE(bits, T, name)                                                                 \
  int __tsan_atomic##bits##_##name(volatile T* p, T* expected, T v, int, int) {                    \
    access(const_cast<T*>(p), sizeof(T), true, KVX_HERE);                                          \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
#define KVX_ATOMICS(bits, T)                                                                 \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                   \
    access(const_cast<const T*>(p), sizeof(T), false, KVX_HERE);                             \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                             \
  }                                                                                          \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                                \
    access(const_cast<T*>(p), sizeof(T), true, KVX_HERE);                                    \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                \
  }                                                                                          \
  KVX_FETCH(bits, T, exchange, __atomic_exchange_n)                                          \
  KVX_FETCH(bits, T, fetch_add, __atomic_fetch_add)                                          \
  KVX_FETCH(bits, T, fetch_sub, __atomic_fetch_sub)                                          \
  KVX_FETCH(bits, T, fetch_and, __atomic_fetch_and)                                          \
  KVX_FETCH(bits, T, fetch_or, __atomic_fetch_or)                                            \
  KVX_FETCH(bits, T, fetch_xor, __atomic_fetch_xor)                                          \
  KVX_COMPARE(bits, T, compare_exchange_strong)                                              \
  KVX_COMPARE(bits, T, compare_exchange_weak)                                                \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T v, int, int) {   \
    access(const_cast<T*>(p), sizeof(T), true, KVX_HERE);                                    \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return expected;                                                                         \
  }

extern "C" {
KVX_ACCESSES(1)
KVX_ACCESSES(2)
KVX_ACCESSES(4)
KVX_ACCESSES(8)
KVX_ACCESSES(16)
KVX_ATOMICS(8, std::uint8_t)
KVX_ATOMICS(16, std::uint16_t)
KVX_ATOMICS(32, std::uint32_t)
KVX_ATOMICS(64, std::uint64_t)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
void __tsan_read_range(void* p, std::size_t n) { access(p, n, false, KVX_HERE); }
void __tsan_write_range(void* p, std::size_t n) { access(p, n, true, KVX_HERE); }

// Copies that stay calls are accesses too.
void* memcpy(void* to, const void* from, std::size_t n) noexcept {
  access(from, n, false, KVX_HERE);
  access(to, n, true, KVX_HERE);
  return std::memmove(to, from, n);
}
void* __tsan_memcpy(void* to, const void* from, std::size_t n) {
  access(from, n, false, KVX_HERE);
  access(to, n, true, KVX_HERE);
  return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, std::size_t n) {
  access(to, n, true, KVX_HERE);
  return std::memset(to, value, n);
}
void* __tsan_memmove(void* to, const void* from, std::size_t n) {
  access(from, n, false, KVX_HERE);
  access(to, n, true, KVX_HERE);
  return std::memmove(to, from, n);
}
}
