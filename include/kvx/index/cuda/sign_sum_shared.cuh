#pragma once
// What the preparation of a search by sign sums is given, and the shared memory that a block needs for it.

#include <kvx/core/annotate.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/prepared_query.cuh>
#include <kvx/index/cuda/sign_scores.cuh>
#include <kvx/index/sign_sums.hpp>

#include <cstdint>

namespace kvx {

/// Queries of the units of a search, in device memory or, inside a block, in shared memory.
///
/// rotated     (units, G, D) divided by the balance and rotated, as the keys' codes are
/// plain       (units, G, D) as they are; not read where the sketch has no centre or no norms
/// lse         (units, G) log-sum-exp of each head's resident logits in nats, or null; what is not finite counts as 0
/// scale       of the softmax, > 0
struct device_queries {
  const float* rotated = nullptr;
  const float* plain = nullptr;
  const float* lse = nullptr;
  float scale = 1;

  KVX_HD constexpr device_queries of_unit(std::int64_t unit, int group, int dim) const {
    const std::int64_t at = unit * group * dim;
    return {rotated + at, plain != nullptr ? plain + at : nullptr, lse != nullptr ? lse + unit * group : nullptr, scale};
  }
};

/// Pages whose dots and words lie in shared memory at once.
inline constexpr int sampled_at_once = 64;

/// Shared memory of prepare_sign_sums.
struct sign_sum_shared {
  sign_scorer scorer;
  std::uint32_t* histogram;  // (256)
  std::int32_t* finite;      // (G)
  std::int32_t* entries;     // (padded heads)
  float* largest;            // (padded heads) |plain component|
  double* c;                 // (padded heads) sign_table_unit
  head_units* units;         // (padded heads)
  float* mean;               // (2, D) of the mean query
  std::int32_t* places;      // (sampled pages) in the page table
  std::int32_t* ids;         // (sampled pages) of the columns' pages
  double* tops;              // (sampled pages) NaN: none
  float* dots;               // (pages at once, padded heads)
  double* base_and_word;     // (2)

  KVX_HD sign_sum_shared(scratch_parts& shared, const bucket_search_shape& s, const sign_sum_record& r)
      : scorer(shared, r, sampled_at_once),
        histogram(shared.take<std::uint32_t>(256)),
        finite(shared.take<std::int32_t>(s.group)),
        entries(shared.take<std::int32_t>(r.padded_heads())),
        largest(shared.take<float>(r.padded_heads())),
        c(shared.take<double>(r.padded_heads())),
        units(shared.take<head_units>(r.padded_heads())),
        mean(shared.take<float>(s.by.of == bucket_scoring::query::mean_query ? 2 * s.page.key_dim : 0)),
        places(shared.take<std::int32_t>(sampled_pages(s.page.tokens))),
        ids(shared.take<std::int32_t>(sampled_pages(s.page.tokens))),
        tops(shared.take<double>(sampled_pages(s.page.tokens))),
        dots(shared.take<float>(std::int64_t{sampled_at_once} * r.padded_heads())),
        base_and_word(shared.take<double>(2)) {}
};

/// Bytes of shared memory that a block needs for prepare_sign_sums, at a multiple of 16.
inline std::int64_t prepare_sign_sums_shared(const bucket_search_shape& s) {
  scratch_parts shared;
  sign_sum_shared(shared, s, sign_sum_record_of(s.sketch, s.by, s.page.key_dim, s.group));
  return shared.used;
}

}  // namespace kvx
