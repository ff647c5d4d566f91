#pragma once
// What a cache is made of: one policy for each stage.

#include <kvx/codec/raw.hpp>
#include <kvx/index/full_scan.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/value_code.hpp>

#include <array>
#include <concepts>
#include <cstddef>

namespace kvx {

/// An index that reads key sketches.
template <class Index>
concept reads_sketch = requires {
  { Index::sketch } -> std::convertible_to<key_sketch>;
};

/// A composition of policies. The values are kept by the cache; the types decide what is compiled.
///
/// layout      where rows lie: `paged`, `contiguous`, `external`
/// index       what proposes candidates: `full_scan`, `sign_buckets`
/// reranker    what keeps the best of them: `pass_through`, `exact`, `rsq_ip`
/// codec       how `save` stores rows: `raw`, `calibrated<chain<...>>`
///
/// Columns are those of the index; index and reranker share one sketch, whose signs are the sign bits of the code. Where the reranker has
/// tiers, columns of values follow (tiered_columns).
template <class Layout, index_policy Index = full_scan, class Reranker = pass_through, class Codec = raw>
struct spec {
  using layout_type = Layout;
  using index_type = Index;
  using reranker_type = Reranker;
  using codec_type = Codec;

  /// The sketch that both need: with the bits that the reranker reads, signs alone if it reads none.
  static constexpr key_sketch sketch = [] {
    key_sketch s;
    if constexpr (reads_sketch<Index>) {
      s = Index::sketch;
      s.bits = 1;
      if constexpr (requires { Reranker::bits; }) s.bits = Reranker::bits;
    }
    return s;
  }();

  /// The layout's zones; where a balance is learned, retrieval begins once its tokens have left the recent zone.
  static constexpr kvx::zones zones = [] {
    kvx::zones z = Layout::zones;
    if constexpr (reads_sketch<Index>) z.first = sketch.balance > z.first ? sketch.balance : z.first;
    return z;
  }();

  /// How tokens take part whose rows are not read.
  static constexpr tiers others = tiers_of<Reranker>();
  static_assert(!any(others) || (reads_sketch<Index> && sketch.centre && sketch.norms),
                "spec: tiers need key sketches with centre and norms, as sign_buckets<> has them");

  static constexpr auto columns(page_shape page) {
    if constexpr (any(others)) {
      return tiered_columns(sketch, others.value_bits, page);
    } else if constexpr (reads_sketch<Index>) {
      return sketch_columns(sketch, page);
    } else {
      return Index::columns(page);
    }
  }

  Index index{};
  Reranker reranker{};
  Codec codec{};
};

}  // namespace kvx
