#pragma once
// Attention of decode steps over the members of semantic pages: what is asked, independent of who computes it.

#include <kvx/attend/tiers.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstdint>

namespace kvx {

/// Breadth of a search; per call.
///
/// pages       found, per KV head; 0: keep / P without a reranker, with one four times as many, and a tenth of all pages at least where
///             members that are not kept take part by their codes
/// beam, nearest, probes   see page_search
struct page_breadth {
  int pages = 0;
  int beam = 0;
  int probes = 0;
  int nearest = 0;
};

/// Budget and breadth of one call.
///
/// keep        tokens that take part, per KV head: without a reranker those of keep / P pages, else the best of the pages found; 0: none
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// soft_cap    c > 0 replaces a score s by c tanh(s / c), after scaling
/// others      which tiers take part beside the tokens kept, where the composition has any; then keep 0 reads no row of the zone
struct page_options {
  std::int64_t keep = 192;
  page_breadth pages = {};
  float scale = 0;
  float soft_cap = 0;
  tier_options others = {};
};

/// Pages that a call looks for in a zone of so many.
///
/// ranks       there is a reranker; coded: members that are not kept take part by their codes
KVX_HD constexpr std::int64_t wanted_pages(const page_options& o, std::int64_t page_tokens, bool ranks, bool coded,
                                           std::int64_t zone_pages) {
  const std::int64_t all = (o.keep < zone_pages * page_tokens ? o.keep : zone_pages * page_tokens);
  std::int64_t asked = o.pages.pages > 0 ? o.pages.pages : ranks ? ceil_div(4 * all, page_tokens) : all / page_tokens;
  if (o.pages.pages == 0 && coded && asked < ceil_div(zone_pages, 10)) asked = ceil_div(zone_pages, 10);
  return asked < zone_pages ? asked : zone_pages;
}
static_assert(wanted_pages({.keep = 192}, 16, false, false, 400) == 12 && wanted_pages({.keep = 200}, 16, true, false, 400) == 50 &&
              wanted_pages({.keep = std::int64_t{1} << 62}, 16, true, false, 400) == 400 &&
              wanted_pages({.keep = 192, .pages = {.pages = 3}}, 16, false, false, 400) == 3 &&
              wanted_pages({.keep = 0}, 16, true, true, 401) == 41 && wanted_pages({.keep = 320}, 16, true, true, 400) == 80 &&
              wanted_pages({.keep = 0, .pages = {.pages = 3}}, 16, true, true, 400) == 3);

}  // namespace kvx
