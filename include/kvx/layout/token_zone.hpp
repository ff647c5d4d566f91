#pragma once
// What one new token of a batch sees of its sequence: how many tokens, and which of them lie in the retrieval zone.

#include <kvx/core/annotate.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/zones.hpp>

#include <cstdint>

namespace kvx {

/// entry       of the batch; -1 for a token that takes no part
/// length      tokens that the new one sees, itself included
/// committed   length of the sequence before its step, from which the zone follows
/// begin, end  the retrieval zone
struct token_zone {
  std::int32_t entry = -1;
  std::int64_t length = 0;
  std::int64_t committed = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// New token `query` of an item. Within a step every token uses the edge of the length before it.
KVX_HD constexpr token_zone zone_of(const batch_item& item, std::int32_t entry, const zones& by, std::int64_t page_tokens,
                                    std::int64_t query) {
  token_zone z;
  z.entry = entry;
  z.committed = item.length - item.queries;
  z.length = z.committed + query + 1;
  const std::int64_t end = edge(by, z.committed, page_tokens);
  z.end = end < z.length ? end : z.length;
  z.begin = by.sink < z.end ? by.sink : z.end;
  return z;
}
static_assert(zone_of({nullptr, 1001, 1, 0}, 0, {.sink = 4, .local = 256}, 64, 0).end == 704);
static_assert(zone_of({nullptr, 2, 2, 0}, 0, {.sink = 4, .local = 256}, 64, 0).begin == 1);

/// New token `token` of a batch, counted over all entries. Tokens that the batch no longer has, and those whose entry_of is negative,
/// take no part: grids are made for planned maxima.
KVX_HD constexpr token_zone zone_of(const device_batch& batch, const zones& by, std::int64_t page_tokens, std::int64_t token) {
  const std::int32_t entry = token < batch.tokens ? batch.entry_of[token] : -1;
  if (entry < 0) return {};
  const batch_item& item = batch.items[entry];
  const std::int64_t query = token - item.first;
  return query < item.queries ? zone_of(item, entry, by, page_tokens, query) : token_zone{};
}

}  // namespace kvx
