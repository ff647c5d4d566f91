#pragma once
// Shared pages whose columns an entry of a step will fill otherwise than another sequence has: they must become its own.

#include <kvx/cache_parts.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/learned_balance.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Pages of an entry whose blocks its step indexes while a sequence that holds a part of such a block, and parts from it before the block's
/// end, has indexed its own or will by an open step. Columns of a block depend on all its rows, and lie with its pages.
///
/// z           z.unit is the block
/// others      of the cache; `earlier`: entries of the same batch, not yet in them
/// cost        O(sequences x pages of a block) where blocks enter
inline unit_range contested_blocks(const reservation::part& p, const zones& z, std::int64_t page_tokens,
                                   std::span<const sequence_book::slot> others, int group, std::span<const reservation::part> earlier) {
  const std::int64_t block = z.unit / page_tokens, last = edge(z, p.length + p.tokens, page_tokens) / page_tokens;
  unit_range result;
  const std::vector<page_id>& mine = others[p.slot].tables[static_cast<std::size_t>(group)].units;
  for (std::int64_t first = edge(z, p.length, page_tokens) / page_tokens / block * block; first < last; first += block) {
    const std::int64_t end = first + block;
    for (std::size_t i = 0; i < others.size(); ++i) {
      const sequence_book::slot& other = others[i];
      if (i == p.slot || !other.open) continue;
      const page_table& table = other.tables[static_cast<std::size_t>(group)];
      std::int64_t tokens = other.in_step ? std::ssize(table.pages) * page_tokens : other.length;
      for (const reservation::part& e : earlier) {
        if (e.slot == i) tokens = e.length + e.tokens;
      }
      if (edge(z, tokens, page_tokens) < end * page_tokens) continue;  // has no columns of this block
      const auto shared = [&](std::int64_t unit) {  // whole pages: one that is partly filled is copied before it is written to
        const auto u = static_cast<std::size_t>(unit);
        return unit < p.length / page_tokens && u < table.units.size() && mine[u] == table.units[u];
      };
      if (shared(end - 1)) continue;  // the last page in common: all rows before its end are
      for (std::int64_t u = first; u < end; ++u) {  // sinks too: what is said of a block as a whole lies in its first page
        if (shared(u)) result = hull(result, {u, u + 1});
      }
    }
  }
  return result;
}

/// Units that must not be shared, part by part in the order of a batch: what sequence_book::begin asks.
template <class Spec>
class contested_units {
 public:
  explicit contested_units(const cache_parts<Spec>& of) : of_(&of) {}

  unit_range operator()(const reservation::part& p) {
    using layout = typename Spec::layout_type;
    constexpr kvx::zones zones = Spec::zones;
    const std::span<const sequence_book::slot> all = of_->book->slots();
    const int group = of_->retrieving_group();
    unit_range result = of_->balances.contested(p, zones, layout::shape.tokens, all, group, encoding_);
    if constexpr (layout::shares_pages && zones.unit > 0) {
      result = hull(result, contested_blocks(p, zones, layout::shape.tokens, all, group, earlier_));
      earlier_.push_back(p);
    }
    return result;
  }

 private:
  const cache_parts<Spec>* of_;
  std::vector<std::uint32_t> encoding_;
  std::vector<reservation::part> earlier_;
};

}  // namespace kvx
