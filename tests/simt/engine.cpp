// The scheduler: runs the blocks of a grid one after the other, their threads in an order that the seed decides.

#include <sys/mman.h>
#include <unistd.h>

#include "state.hpp"

#include <algorithm>
#include <cstdlib>

// Bounds of the section that static __shared__ variables live in (clang builds).
extern "C" {
extern char __start_simt_shared[] __attribute__((weak));
extern char __stop_simt_shared[] __attribute__((weak));
}

namespace simt {
namespace {

void fresh_static_shared() {
  char* b = __start_simt_shared;
  char* e = __stop_simt_shared;
  if (!b || b == e) return;
  if (settings().concurrent_blocks && __tsan_acquire) {
    // New pages for the section, so that the race detector forgets the last block. Neighbours' bytes are kept.
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    char* pb = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(b) & ~(page - 1));
    char* pe = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(e) + page - 1) & ~(page - 1));
    vec<char> keep(pb, pe);
    mmap(pb, static_cast<std::size_t>(pe - pb), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    __builtin_memcpy(pb, keep.data(), keep.size());
  }
  if (settings().poison)
    for (char* p = b; p != e; ++p) *p = static_cast<char>(0xFF);
}

void fresh_dynamic_shared(std::size_t bytes) {
  if (!sm.smem || (settings().concurrent_blocks && __tsan_acquire)) {
    void* p = mmap(sm.smem, smem_max + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (sm.smem ? MAP_FIXED : 0), -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    sm.smem = static_cast<char*>(p);
  }
  const bool shut = sm.smem_shut && sm.smem_bytes == bytes;  // as the last block left it
  sm.smem_bytes = bytes;
  if (!shut && __asan_unpoison_memory_region) __asan_unpoison_memory_region(sm.smem, smem_max + 4096);
  if (settings().poison)
    for (std::size_t i = 0; i < bytes; ++i) sm.smem[i] = static_cast<char>(0xFF);
  if (!shut && __asan_poison_memory_region) __asan_poison_memory_region(sm.smem + bytes, smem_max + 4096 - bytes);
  sm.smem_shut = true;
}

/// One warp at a time goes as far as it comes; which goes first is drawn anew at the start and at each barrier of the block. A barrier
/// that is missing shows: what the others were to have written or read by then, they have not.
void warp_by_warp() {
  vec<std::uint64_t> first(sm.live.size());
  std::size_t before = 0;
  while (!sm.ready.empty() && sm.failure.empty()) {
    if (sm.ready.size() > before + 32) {
      for (auto& f : first) f = sm.next();
      std::stable_sort(sm.ready.begin() + static_cast<std::ptrdiff_t>(before), sm.ready.end(),
                       [&](unsigned a, unsigned b) { return first[a / 32] < first[b / 32]; });
    }
    fiber& f = *sm.pool[sm.ready.back()];
    sm.ready.pop_back();
    before = sm.ready.size();
    to_fiber(f);
    if (f.st == state::done) on_exit(f);
  }
}

void run_block(std::size_t smem) {
  const unsigned n = sm.nthreads, warps = (n + 31) / 32;
  fresh_static_shared();
  fresh_dynamic_shared(smem);
  sm.alive = n;
  sm.barrier_count = 0;
  sm.ready.clear();
  sm.start_tag = settings().concurrent_blocks ? nullptr : sm.end_tag;
  sm.end_tag = sm.new_tag();
  sm.live.assign(warps, 0);
  sm.groups.resize(warps);
  for (auto& g : sm.groups) g.clear();
  while (sm.pool.size() < (settings().concurrent_blocks ? 2 * n : n)) sm.pool.push_back(std::make_unique<fiber>());
  // Two sets of fibers take turns: a fiber orders its own accesses, so neighbouring blocks must not share any.
  if (settings().concurrent_blocks) std::swap_ranges(sm.pool.begin(), sm.pool.begin() + n, sm.pool.begin() + n);
  for (unsigned t = 0; t < n; ++t) {
    prepare(*sm.pool[t], t);
    sm.live[t / 32] |= 1u << t % 32;
    sm.ready.push_back(t);
  }
  const auto seed = settings().seed;
  if (seed == 1) std::reverse(sm.ready.begin(), sm.ready.end());
  stats().threads += n;
  if (seed % 4 == 3) warp_by_warp();
  vec<unsigned> turn;
  while (!sm.ready.empty() && sm.failure.empty()) {
    turn.swap(sm.ready);
    sm.ready.clear();
    if (seed == 1) std::sort(turn.rbegin(), turn.rend());
    for (std::size_t i = 0; i < turn.size() && sm.failure.empty(); ++i) {
      if (seed > 1) std::swap(turn[i], turn[i + sm.next() % (turn.size() - i)]);
      fiber& f = *sm.pool[turn[i]];
      to_fiber(f);
      if (f.st == state::done) on_exit(f);
      if (seed > 1 && !sm.ready.empty()) {          // let freshly woken threads overtake
        turn.insert(turn.end(), sm.ready.begin(), sm.ready.end());
        sm.ready.clear();
      }
    }
  }
  if (sm.failure.empty() && sm.alive) {
    sm.failure = "deadlock:";
    int shown = 0;
    for (unsigned t = 0; t < n && shown < 4; ++t) {
      const fiber& f = *sm.pool[t];
      if (f.st == state::barrier) {
        sm.failure += "\n  " + where(f) + " waits at __syncthreads " + text(sm.barrier_site);
        ++shown;
      }
      if (f.st == state::warp) {
        sm.failure += "\n  " + where(f) + " waits in a warp collective at " + text(f.grp->at);
        ++shown;
      }
    }
  }
}

}  // namespace

config& settings() {
  static config c = [] {
    config k;
    if (const char* s = std::getenv("SIMT_SEED")) k.seed = std::strtoull(s, nullptr, 10);
    if (const char* s = std::getenv("SIMT_CONCURRENT_BLOCKS")) k.concurrent_blocks = *s == '1';
    return k;
  }();
  return c;
}
counters& stats() {
  static counters c;
  return c;
}
void* dynamic_shared() noexcept { return sm.smem; }
void yield() {
  if (!sm.cur) return;
  quiet q;
  sm.ready.insert(settings().seed % 4 == 3 ? sm.ready.begin() : sm.ready.end(), sm.cur->tid);  // whom it waits for goes first
  to_main(false);
}
void fence() {
  release(&sm.fence_tag);
  acquire(&sm.fence_tag);
}
void fail(const std::string& what) {
  throw error((sm.cur ? where(*sm.cur) + ": " : "") + what);  // caught where the fiber began: its stack is unwound
}

void run_grid(dim3 grid, dim3 block, std::size_t smem, const std::function<void()>& body) {
  const std::uint64_t n = std::uint64_t{block.x} * block.y * block.z;
  if (n == 0 || n > 1024 || block.z > 64 || smem > smem_max || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
      grid.z > 65535)
    throw error("invalid launch configuration");
  if (sm.cur) throw error("nested launch");
  ++stats().launches;
  sm.nthreads = static_cast<unsigned>(n);
  sm.body = &body;
  sm.end_tag = nullptr;
  sm.failure.clear();
  sm.rng = settings().seed * 0x9E3779B97F4A7C15ull + 1;
  if (__tsan_get_current_fiber) sm.main_tsan = __tsan_get_current_fiber();
  blockDim = block;
  gridDim = grid;
  quiet q;
  release(&sm.launch_tag);
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  for (std::uint64_t b = 0; b < blocks && sm.failure.empty(); ++b) {
    const std::uint64_t k = settings().seed == 1 ? blocks - 1 - b : b;
    blockIdx = {unsigned(k % grid.x), unsigned(k / grid.x % grid.y), unsigned(k / grid.x / grid.y)};
    run_block(smem);
  }
  acquire(&sm.done_tag);
  if (__asan_unpoison_memory_region && sm.smem) __asan_unpoison_memory_region(sm.smem, smem_max + 4096);
  sm.smem_shut = false;
  if (!sm.failure.empty()) throw error(sm.failure);
}

}  // namespace simt
