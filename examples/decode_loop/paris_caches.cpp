// ParisKV's cache types: our defaults, the paper's, and what lies between.

#include "cache_lines.hpp"

namespace decode_loop {
namespace {

constexpr auto paris = [](auto dim) { return kvx::paris_kv<kvx::bf16, dim()>{}; };

/// Candidates from the mean of the group's queries, as in the paper; everything else as in paris_kv.
constexpr auto mean_query = [](auto dim) {
  using base = kvx::paris_kv<kvx::bf16, dim()>;
  constexpr kvx::bucket_scoring scoring{.of = kvx::bucket_scoring::query::mean_query};
  return kvx::spec<typename base::layout_type, kvx::sign_buckets<base::index_type::sketch, scoring>, typename base::reranker_type>{};
};

constexpr auto tiered = [](auto dim) { return kvx::paris_kv_tiered<kvx::bf16, dim()>{}; };

constexpr auto faithful = [](auto dim) { return kvx::paris_kv_faithful<kvx::bf16, dim()>{}; };

/// The pages of the layout that hold the most candidates, whole.
constexpr auto by_pages = [](auto dim) {
  using base = kvx::paris_kv<kvx::bf16, dim()>;
  return kvx::spec<typename base::layout_type, typename base::index_type, kvx::fullest_pages>{};
};

/// Candidates as a fraction alone, but as many as are kept.
constexpr kvx::search_breadth fraction(double of) { return {.fraction = of, .per_kept = 1}; }

}  // namespace

std::vector<cache_choice> paris_caches() {
  return {
      line("paris_kv", "sinks, the latest 256 rows and the keep best of the others, two dense layers", paris, retrieving,
           {.by_default = true}),
      line("paris_kv_tiered-32", "32 rows, all other candidates by their codes, the rest by the means of its pages", tiered, retrieving,
           {.by_default = true, .rows = 32, .breadth = fraction(.10)}),
      line("paris_kv_tiered-128", "128 rows, the same tiers below", tiered, retrieving, {.rows = 128, .breadth = fraction(.10)}),
      line("paris_kv_tiered-0", "no row of the zone is read", tiered, retrieving, {.rows = 0, .breadth = fraction(.10)}),
      line("paris_kv-faithful", "as published: votes of the mean query, the mean over the group", faithful, retrieving),
      line("paris_kv-mean-query", "candidates from the mean query", mean_query, retrieving),
      line("paris_kv-pages", "pages of neighbours, those that hold the most candidates", by_pages, retrieving, {.least = 64}),
      line("paris_kv-half", "half the keep", paris, retrieving, {.keep = .5}),
      line("paris_kv-double", "twice the keep", paris, retrieving, {.keep = 2}),
      line("paris_kv-5", "5 % candidates, at least as many as are kept", paris, retrieving, {.breadth = fraction(.05)}),
      line("paris_kv-20", "20 % candidates, at least as many as are kept", paris, retrieving, {.breadth = fraction(.20)}),
  };
}

}  // namespace decode_loop
