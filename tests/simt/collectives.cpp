// Meeting points: block barriers and warp collectives, and the reports when threads miss each other at one.

#include "state.hpp"

#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

namespace simt {

std::string where(const fiber& f) {
  char b[160];
  std::snprintf(b, sizeof b, "block (%u,%u,%u) thread (%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z, f.thread.x, f.thread.y, f.thread.z);
  return b;
}

std::string text(site s) { return std::string(s.file ? s.file : "?") + ":" + std::to_string(s.line); }

namespace {

bool same(site a, site b) { return a.line == b.line && (a.file == b.file || !std::strcmp(a.file, b.file)); }

void wake(fiber& f) {
  f.st = state::ready;
  sm.ready.push_back(f.tid);
}

void finish_barrier_if_complete() {
  if (sm.barrier_count == 0 || sm.barrier_count != sm.alive) return;
  sm.barrier_count = 0;
  for (unsigned t = 0; t < sm.nthreads; ++t)
    if (sm.pool[t]->st == state::barrier) {
      sm.pool[t]->barrier_result = sm.barrier_acc;
      wake(*sm.pool[t]);
    }
}

void finish_group_if_complete(unsigned warp, group& g) {
  const std::uint32_t need = g.mask & sm.live[warp];
  if (need != g.mask && !settings().tolerate_exit) {
    sm.failure = "block " + std::to_string(blockIdx.x) + " warp " + std::to_string(warp) + ": the mask at " + text(g.at) +
                 " names lanes that have returned";
    return;
  }
  if ((g.arrived & need) != need) return;
  const unsigned base = warp * 32;
  auto lane = [&](unsigned l) -> fiber& { return *sm.pool[base + l]; };
  void* ptrs[32]{};
  std::uint64_t acc = 0;
  bool first = true;
  for (unsigned l = 0; l < 32; ++l)
    if (g.arrived >> l & 1) {
      fiber& f = lane(l);
      const auto v = f.value;
      ptrs[l] = reinterpret_cast<void*>(v);
      auto s = [](std::uint64_t x) { return static_cast<std::int32_t>(x); };
      switch (g.kind) {
        case op::ballot:
        case op::any:
        case op::all: acc |= std::uint64_t{v != 0} << l; break;
        case op::red_add: acc += v; break;
        case op::red_and: acc = first ? v : acc & v; break;
        case op::red_or: acc |= v; break;
        case op::red_xor: acc ^= v; break;
        case op::red_min_u: acc = first ? v : std::min(acc, v); break;
        case op::red_max_u: acc = first ? v : std::max(acc, v); break;
        case op::red_min_s: acc = first || s(v) < s(acc) ? v : acc; break;
        case op::red_max_s: acc = first || s(v) > s(acc) ? v : acc; break;
        default: break;
      }
      first = false;
    }
  if (g.kind == op::call) lane(static_cast<unsigned>(std::countr_zero(g.arrived))).fn(ptrs);
  for (unsigned l = 0; l < 32; ++l)
    if (g.arrived >> l & 1) {
      fiber& f = lane(l);
      const int w = f.width, lo = static_cast<int>(l) & ~(w - 1), in = static_cast<int>(l) & (w - 1);
      int src = static_cast<int>(l);
      switch (g.kind) {
        case op::shfl_idx: src = lo + (f.arg & (w - 1)); break;
        case op::shfl_up: src = in - f.arg < 0 ? src : src - f.arg; break;
        case op::shfl_down: src = in + f.arg >= w ? src : src + f.arg; break;
        case op::shfl_xor: src = (static_cast<int>(l) ^ f.arg) >= lo + w ? src : static_cast<int>(l) ^ f.arg; break;
        case op::any: f.result = acc != 0; continue;
        case op::all: f.result = acc == g.arrived; continue;
        case op::match_any:
          f.result = 0;
          for (unsigned k = 0; k < 32; ++k)
            if ((g.arrived >> k & 1) && lane(k).value == f.value) f.result |= 1u << k;
          continue;
        case op::syncwarp:
        case op::call: continue;
        default: f.result = acc; continue;
      }
      if (!(g.arrived >> src & 1)) {
        sm.failure = where(f) + ": shuffle at " + text(g.at) + " reads lane " + std::to_string(src) + ", which takes no part";
        return;
      }
      f.result = lane(static_cast<unsigned>(src)).value;
    }
  ++stats().warp_ops;
  for (unsigned l = 0; l < 32; ++l)
    if (g.arrived >> l & 1) wake(lane(l));
  g.kind = op::none;                               // slot is free once every lane has left (see warp_op)
}

}  // namespace

void on_exit(fiber& f) {
  const unsigned w = f.tid / 32;
  --sm.alive;
  sm.live[w] &= ~(1u << f.tid % 32);
  if (sm.barrier_count && !settings().tolerate_exit && sm.failure.empty())
    sm.failure = where(f) + " has returned while others wait at __syncthreads (" + text(sm.barrier_site) + ")";
  finish_barrier_if_complete();
  for (auto& g : sm.groups[w])
    if (g.kind != op::none) finish_group_if_complete(w, g);
}

int block_barrier(block_op kind, int predicate, site at) {
  quiet q;
  fiber& f = *sm.cur;
  if (sm.barrier_count && (sm.barrier_kind != kind || !same(sm.barrier_site, at)))
    fail("divergent barrier: reached " + text(at) + " while others wait at " + text(sm.barrier_site));
  if (sm.alive != sm.nthreads && !settings().tolerate_exit) fail("barrier at " + text(at) + " after some threads have returned");
  if (!sm.barrier_count) {
    sm.barrier_kind = kind;
    sm.barrier_site = at;
    sm.barrier_acc = kind == block_op::all;
    sm.bar_tag = sm.new_tag();
    ++stats().barriers;
  }
  switch (kind) {
    case block_op::count: sm.barrier_acc += predicate != 0; break;
    case block_op::any: sm.barrier_acc |= predicate != 0; break;
    case block_op::all: sm.barrier_acc &= predicate != 0; break;
    case block_op::sync: break;
  }
  char* tag = sm.bar_tag;
  release(tag);
  f.st = state::barrier;
  ++sm.barrier_count;
  finish_barrier_if_complete();
  to_main(false);
  acquire(tag);
  return f.barrier_result;
}

std::uint64_t warp_op(op kind, std::uint32_t mask, std::uint64_t value, std::int32_t arg, std::int32_t width, site at,
                      void (*fn)(void* const (&)[32])) {
  quiet q;
  fiber& f = *sm.cur;
  const unsigned w = f.tid / 32, bit = 1u << f.tid % 32;
  if (!(mask & bit)) fail("calling lane is not in its own mask at " + text(at));
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width))) fail("bad width at " + text(at));
  group* g = nullptr;
  for (auto& x : sm.groups[w]) {
    if (x.kind == op::none) continue;
    if (x.mask & mask) {
      if (x.mask != mask || x.kind != kind || !same(x.at, at))
        fail("divergent warp collective: at " + text(at) + " while other lanes of its mask are at " + text(x.at));
      g = &x;
    }
  }
  if (!g) {
    for (auto& x : sm.groups[w])
      if (x.kind == op::none) {
        g = &x;
        break;
      }
    if (!g) g = &sm.groups[w].emplace_back();
    *g = {kind, mask, 0, at, sm.new_tag()};
  }
  g->arrived |= bit;
  char* tag = g->tag;
  f.grp = g;
  f.value = value;
  f.arg = arg;
  f.width = width;
  f.fn = fn;
  f.st = state::warp;
  // Only __syncwarp orders memory; shuffles and votes do not (CUDA programming guide).
  const bool orders = kind == op::syncwarp || kind == op::call;
  if (orders) release(tag);
  finish_group_if_complete(w, *g);
  to_main(false);
  if (orders) acquire(tag);
  return f.result;
}

// Fragment layouts of the PTX ISA; products are added in ascending k, in float.
void multiply_fragments(void* const (&lanes)[32]) {
  float A[16][16], B[16][8];
  auto get = [&](int l) -> fragments& { return *static_cast<fragments*>(lanes[l]); };
  const bool wide = get(0).bf16;
  auto value = [wide](std::uint32_t bits) {
    return wide ? std::bit_cast<float>(bits << 16) : __half2float(__half(__half_raw{static_cast<unsigned short>(bits)}));
  };
  auto put = [&](std::uint32_t two, float& lo, float& hi) {
    lo = value(two & 0xffffu);
    hi = value(two >> 16);
  };
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4, t = l % 4 * 2;
    for (int r = 0; r < 4; ++r) put(get(l).a[r], A[g + r % 2 * 8][t + r / 2 * 8], A[g + r % 2 * 8][t + r / 2 * 8 + 1]);
    for (int r = 0; r < 2; ++r) put(get(l).b[r], B[t + r * 8][g], B[t + r * 8 + 1][g]);
  }
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k) get(l).c[i] += A[l / 4 + i / 2 * 8][k] * B[k][l % 4 * 2 + i % 2];
}

}  // namespace simt
