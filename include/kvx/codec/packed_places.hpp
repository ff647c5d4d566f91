#pragma once
// Where ranges and levels lie in the packed format, to the bit: what lets any thread find any of them.

#include <kvx/codec/packed.hpp>
#include <kvx/core/annotate.hpp>

#include <cstdint>
#include <vector>

namespace kvx {

/// A run of a plan, and what lies before it: `before` stored runs, `levels_before` bits of levels a token.
struct packed_run {
  std::int32_t first = 0;
  std::int32_t size = 0;
  std::int32_t bits = 0;
  std::int32_t before = 0;
  std::int64_t levels_before = 0;

  /// Bits of a token before it, ranges included.
  KVX_HD constexpr std::int64_t bits_before() const { return 32 * std::int64_t{before} + levels_before; }
};

/// All runs of a plan, also those that are not stored.
inline std::vector<packed_run> packed_runs(const bit_plan& plan) {
  std::vector<packed_run> runs;
  packed_run next;
  for (const bit_run& run : plan.runs) {
    next.size = run.size;
    next.bits = run.bits;
    runs.push_back(next);
    next.first += run.size;
    next.before += run.bits > 0 ? 1 : 0;
    next.levels_before += std::int64_t{run.size} * run.bits;
  }
  return runs;
}

/// The packed levels of some tokens; a view of the runs.
struct packed_places {
  packing order = packing::components;
  std::int64_t tokens = 0;
  const packed_run* runs = nullptr;
  std::int32_t run_count = 0;
  std::int32_t stored = 0;
  std::int64_t token_bits = 0;

  KVX_HD constexpr std::int64_t bits() const { return token_bits * tokens; }

  /// First bit of a range (32), and of the level of component c.
  KVX_HD constexpr std::int64_t range_at(const packed_run& run, std::int64_t t) const {
    return order == packing::tokens ? t * token_bits + run.bits_before() : 32 * (run.before * tokens + t);
  }
  KVX_HD constexpr std::int64_t level_at(const packed_run& run, std::int64_t c, std::int64_t t) const {
    const std::int64_t i = c - run.first;
    if (order == packing::tokens) return t * token_bits + run.bits_before() + 32 + i * run.bits;
    return 32 * stored * tokens + run.levels_before * tokens + (i * tokens + t) * run.bits;
  }
};

/// A range (component -1) or a level, and the first of its bits.
struct packed_item {
  std::int32_t run = 0;
  std::int64_t component = -1;
  std::int64_t token = 0;
  std::int64_t at = 0;
};

/// The item that holds a bit of packed levels.
///
/// cost        a bisection over the runs
KVX_HD constexpr packed_item item_at(const packed_places& p, std::int64_t bit) {
  const bool by_tokens = p.order == packing::tokens;
  const std::int64_t ranges = 32 * p.stored * p.tokens;
  packed_item item;
  if (!by_tokens && bit < ranges) {
    const std::int64_t number = bit / 32 / p.tokens;
    item.token = bit / 32 % p.tokens;
    while (p.runs[item.run].before < number || p.runs[item.run].bits == 0) ++item.run;
    item.at = bit - bit % 32;
    return item;
  }
  // Bits of one token, or of one token's share of a component-major run.
  const std::int64_t within = by_tokens ? bit % p.token_bits : (bit - ranges) / p.tokens;
  std::int32_t low = 0, high = p.run_count;  // the last run that begins at `within` or before; runs that are not stored begin with the next
  while (high - low > 1) {
    const std::int32_t middle = (low + high) / 2;
    const std::int64_t begin = by_tokens ? p.runs[middle].bits_before() : p.runs[middle].levels_before;
    (begin <= within ? low : high) = middle;
  }
  const packed_run& run = p.runs[low];
  item.run = low;
  if (by_tokens) {
    item.token = bit / p.token_bits;
    const std::int64_t offset = within - run.bits_before();
    if (offset >= 32) item.component = run.first + (offset - 32) / run.bits;
  } else {
    const std::int64_t number = (bit - ranges - run.levels_before * p.tokens) / run.bits;
    item.component = run.first + number / p.tokens;
    item.token = number % p.tokens;
  }
  item.at = item.component < 0 ? p.range_at(run, item.token) : p.level_at(run, item.component, item.token);
  return item;
}

static_assert([] {
  constexpr packed_run runs[3] = {{0, 2, 4, 0, 0}, {2, 5, 0, 1, 8}, {7, 3, 2, 1, 8}};
  bool right = true;
  for (const packing order : {packing::tokens, packing::components}) {
    const packed_places p{order, 3, runs, 3, 2, 2 * 32 + 8 + 6};
    std::int64_t at = 0;
    while (at < p.bits()) {  // items follow each other without a gap
      const packed_item item = item_at(p, at);
      const int bits = item.component < 0 ? 32 : runs[item.run].bits;
      right = right && bits > 0 && item.at == at && item_at(p, at + bits - 1).at == at;
      at += bits;
    }
    right = right && at == p.bits();
  }
  return right;
}());

}  // namespace kvx
