// IceCache's cache types: our defaults, the paper's, and what lies between.

#include "cache_lines.hpp"

namespace decode_loop {
namespace {

constexpr std::int64_t page = 16;
constexpr auto ice_default = [](auto dim) { return kvx::ice_cache<kvx::bf16, dim()>{}; };
constexpr auto ice_tokens = [](auto dim) { return kvx::ice_cache_tokens<kvx::bf16, dim()>{}; };
constexpr auto ice_tiered = [](auto dim) { return kvx::ice_cache_tiered<kvx::bf16, dim()>{}; };
constexpr auto ice_faithful = [](auto dim) { return kvx::ice_cache_faithful<kvx::bf16, dim()>{}; };

/// Pages ranked by the 4-bit codes of their members; everything else as in ice_cache.
constexpr auto ice_coded = [](auto dim) {
  using base = kvx::ice_cache<kvx::bf16, dim()>;
  constexpr kvx::dci_shape shape = [] {
    kvx::dci_shape s = base::index_type::shape;
    s.rank = kvx::dci_shape::ranking::coded_member;
    return s;
  }();
  return kvx::spec<typename base::layout_type, kvx::dci_tree<shape>>{};
};

}  // namespace

std::vector<cache_choice> ice_caches() {
  return {
      line("ice_cache", "32 sinks, 32 recent rows and the rest of a block, pages of similar tokens for the keep", ice_default, retrieving,
           {.by_default = true, .least = page}),
      line("ice_cache-tokens", "the keep best tokens of four times as many pages, by 4-bit codes", ice_tokens, retrieving),
      line("ice_cache_tiered-32", "32 rows, their pages' other members by codes, all other pages by their means", ice_tiered, retrieving,
           {.rows = 32}),
      line("ice_cache-coded", "pages ranked by the 4-bit codes of their tokens", ice_coded, retrieving, {.least = page}),
      line("ice_cache-faithful", "as published: cells of the tree cut along one direction, the tree's search, the heads' pages in turns",
           ice_faithful, retrieving, {.least = page}),
      line("ice_cache-half", "half the keep", ice_default, retrieving, {.keep = .5, .least = page}),
  };
}

}  // namespace decode_loop
