#pragma once
// Attention of decode steps over the members of semantic pages: what is asked, independent of who computes it.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstdint>

namespace kvx {

/// Breadth of a search; per call.
///
/// pages       found, per KV head; 0: keep / P without a reranker, with one four times as many
/// beam, probes   see page_search
struct page_breadth {
  int pages = 0;
  int beam = 0;
  int probes = 0;
};

/// Budget and breadth of one call.
///
/// keep        tokens that take part, per KV head: without a reranker those of keep / P pages, else the best of the pages found; 0: none
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// soft_cap    c > 0 replaces a score s by c tanh(s / c), after scaling
struct page_options {
  std::int64_t keep = 192;
  page_breadth pages = {};
  float scale = 0;
  float soft_cap = 0;
};

/// Pages that a call looks for in a zone of so many.
KVX_HD constexpr std::int64_t wanted_pages(const page_options& o, std::int64_t page_tokens, bool ranks, std::int64_t zone_pages) {
  const std::int64_t all = (o.keep < zone_pages * page_tokens ? o.keep : zone_pages * page_tokens);
  const std::int64_t asked = o.pages.pages > 0 ? o.pages.pages : ranks ? ceil_div(4 * all, page_tokens) : all / page_tokens;
  return asked < zone_pages ? asked : zone_pages;
}
static_assert(wanted_pages({.keep = 192}, 16, false, 400) == 12 && wanted_pages({.keep = 200}, 16, true, 400) == 50 &&
              wanted_pages({.keep = std::int64_t{1} << 62}, 16, true, 400) == 400 &&
              wanted_pages({.keep = 192, .pages = {.pages = 3}}, 16, false, 400) == 3);

}  // namespace kvx
