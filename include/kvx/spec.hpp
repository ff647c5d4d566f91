#pragma once
// What a cache is made of: one policy for each stage.

#include <kvx/codec/raw.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/full_scan.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/rerank/fullest_pages.hpp>
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
/// index       what proposes candidates: `full_scan`, `sign_buckets`, `dci_tree`
/// reranker    what keeps the best of them: `pass_through`, `exact`, `rsq_ip`, `fullest_pages`
/// codec       how `save` stores rows: `raw`, `calibrated<chain<...>>`
///
/// Columns are those of the index; index and reranker share one sketch, whose signs are the sign bits of the code. Where the reranker has
/// tiers, columns of values follow (tiered_columns, block_columns). Beside an index of semantic pages a sketch stands only where something
/// reads it.
template <class Layout, index_policy Index = full_scan, class Reranker = pass_through, class Codec = raw>
struct spec {
  using layout_type = Layout;
  using index_type = Index;
  using reranker_type = Reranker;
  using codec_type = Codec;

  /// Whether a sketch of the keys is kept, in pages that enter the retrieval zone.
  static constexpr bool coded = [] {
    if constexpr (packs_blocks<Index>) {
      return Index::shape.rank == dci_shape::ranking::coded_member || requires { Reranker::bits; };
    } else {
      return reads_sketch<Index>;
    }
  }();

  /// The sketch that both need: with the bits that the reranker reads, signs alone if it reads none.
  static constexpr key_sketch sketch = [] {
    key_sketch s;
    if constexpr (reads_sketch<Index>) {
      s = Index::sketch;
      s.bits = 1;
    } else {
      s.balance = 0;
    }
    if constexpr (requires { Reranker::bits; }) s.bits = Reranker::bits;
    return s;
  }();

  /// The layout's zones; where a balance is learned, retrieval begins once its tokens have left the recent zone, and where blocks are
  /// packed, it ends with one.
  static constexpr kvx::zones zones = [] {
    kvx::zones z = Layout::zones;
    if constexpr (reads_sketch<Index>) z.first = sketch.balance > z.first ? sketch.balance : z.first;
    if constexpr (packs_blocks<Index>) z.unit = Index::shape.block;
    return z;
  }();

  /// How tokens take part whose rows are not read.
  static constexpr tiers others = tiers_of<Reranker>();
  static_assert(!any(others) || packs_blocks<Index> || (reads_sketch<Index> && sketch.centre && sketch.norms),
                "spec: tiers need key sketches with centre and norms, as sign_buckets<> has them, or the pages of dci_tree");
  static_assert(
      std::same_as<Reranker, pass_through> || any(others) || packs_blocks<Index> || reads_sketch<Index>,
      "spec: a reranker ranks what sign_buckets or dci_tree proposes; without them attention is dense, and it would never be asked");

  static constexpr auto columns(page_shape page) {
    if constexpr (packs_blocks<Index>) {
      static_assert(is_valid(Index::shape, Layout::shape.tokens), "spec: a block of dci_tree must be whole pages of the layout");
      static_assert(Layout::zones.sink % Layout::shape.tokens == 0 && Layout::zones.sink < Index::shape.block,
                    "spec: beside dci_tree, zones::sink must be whole pages, and less than a block");
      static_assert(Index::shape.by != dci_shape::metric::full,
                    "spec: a cache keeps the energies of queries alone: the metric of dci_tree must be keys or diagonal");
      static_assert(!offloads_to_file<Layout>() || !keeps_links(Index::shape),
                    "spec: a tree of links compares a new block with keys of all others: beside offload_bulk those are far");
      static_assert(!std::same_as<Reranker, fullest_pages>, "spec: fullest_pages keeps pages in the order of time; dci_tree finds its own");
      return block_columns(Index::shape, coded, sketch, {others.value_bits, any(others)}, page);
    } else if constexpr (any(others)) {
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
