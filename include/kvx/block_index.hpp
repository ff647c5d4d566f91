#pragma once
// What a cache on the host does for an index that packs blocks: lists that follow the links, queries seen, columns of blocks that enter.

#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/cache_stats.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/entering_blocks.hpp>
#include <kvx/entering_pages.hpp>
#include <kvx/entering_values.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/host/kept_pages.hpp>
#include <kvx/index/host/tree_lists.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/host/sketch_writer.hpp>
#include <kvx/sketch/host/value_code.hpp>
#include <kvx/sketch/query_energies.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// The columns of a key sketch where they stand behind those of an index that packs blocks, and what codes values where they are kept.
template <element E>
struct block_code_writer {
  sketch_writer<E> codes;
  value_encoder<E> values = {};
};
template <element E>
void encode_page(const host& exec, const block_code_writer<E>& writer, const row_view<const E>& rows, std::int64_t page, int head,
                 const std::array<std::byte*, block_column_count>& blocks) {
  std::array<std::byte*, sketch_column_count> own;
  std::copy_n(blocks.begin() + first_code_column, own.size(), own.begin());
  encode_page(exec, writer.codes, rows, page, head, own, nullptr);
}

/// Beside the steps of one cache.
template <class Spec>
class block_index {
 public:
  using parts = cache_parts<Spec>;
  using layout = typename Spec::layout_type;
  using E = typename layout::element_type;
  static constexpr dci_shape shape = Spec::index_type::shape;

  explicit block_index(const parts& of) : encoder_{{make_key_encoder<E, Spec::sketch.bits>(Spec::sketch, layout::shape.key_dim)}} {
    if constexpr (any(Spec::others))
      encoder_.values = make_value_encoder<E, Spec::others.value_bits>(layout::shape.value_dim, Spec::sketch.seed);
    for (int l = 0; l < of.geometry.layers; ++l) {
      if (of.geometry.kind(l).sees == layer_kind::attention::retrieve) layers_.push_back(l);
    }
    lists_ = tree_lists(of.book->slots().size(), static_cast<int>(layers_.size()), of.geometry.kv_heads);
    kept_ = kept_pages(of.spec.index.reuse, of.book->slots().size(), static_cast<int>(layers_.size()), of.geometry.kv_heads);
  }

  const tree_lists& lists() const { return lists_; }
  const block_code_writer<E>& encoder() const { return encoder_; }

  /// Null where every token of every layer searches.
  kept_pages* kept(const parts& of) { return of.spec.index.reuse.any() ? &kept_ : nullptr; }

  void count(cache_stats& to) const { to.selection_bytes += kept_.bytes(); }

  /// A sequence keeps its first `tokens` tokens alone.
  void cut(std::uint32_t slot, std::int64_t tokens) noexcept {
    lists_.cut(slot, tokens);
    kept_.cut(slot, tokens);
  }

  /// Nothing is known of the queries of new tokens.
  void forget_queries(const parts& of, const step_plan& step) const {
    if constexpr (learns_metric(shape)) {
      const auto& items = step.items[static_cast<std::size_t>(of.retrieving_group())];
      for (std::size_t i = 0; i < items.size(); ++i) {
        const reservation::part& p = step.reserved.parts[i];
        for (const int l : layers_) {
          const energy_column column = energies_of(of.layer(l).side, layout::shape);
          for (std::int64_t h = 0; h < of.geometry.kv_heads; ++h) forget_energies(column, items[i].pages, h, p.length, p.length + p.tokens);
        }
      }
    }
  }

  /// Lists hold all committed blocks of the batch, and nothing is kept of positions that are not committed.
  void follow(const parts& of, const step_plan& step) {
    for (const reservation::part& p : step.reserved.parts) {
      if (of.spec.index.reuse.any()) kept_.begin(p.slot, p.length);
    }
    if constexpr (keeps_links(shape)) {
      const int group = of.retrieving_group();
      const std::span<const batch_item> rows_of = step.rows(group), columns_of = step.items[static_cast<std::size_t>(group)];
      for (std::size_t i = 0; i < columns_of.size(); ++i) {
        const reservation::part& p = step.reserved.parts[i];
        if (!of.book->slots()[p.slot].whole()) continue;  // its columns are still to come
        const std::int64_t indexed = edge(Spec::zones, p.length, layout::shape.tokens) / shape.block * shape.block;
        lists_.follow(p.slot, indexed, shape.block, [&](int ordinal, int head) {
          const auto& layer = of.layer(layers_[static_cast<std::size_t>(ordinal)]);
          return tree_head<E>(row_view<const E>(layer.rows), layer.side, rows_of[i].pages, columns_of[i].pages, head, Spec::zones.sink);
        });
      }
    }
  }

  /// Writes down the queries of the positions that are learned from, of one layer.   q (N, Q, D)
  template <class T>
  void observe(const parts& of, const step_plan& step, int layer, const tensor_view<const T, 3>& q) const {
    if constexpr (learns_metric(shape)) {
      const auto& place = of.layer(layer);
      const std::int64_t H = of.geometry.kv_heads, group = q.extents[1] / H;
      const energy_column column = energies_of(place.side, layout::shape);
      const auto& items = step.items[static_cast<std::size_t>(place.group)];
      for (std::size_t i = 0; i < items.size(); ++i) {
        const reservation::part& p = step.reserved.parts[i];
        for (std::int64_t s = learned_positions(p.length); s < learned_positions(p.length + p.tokens); ++s) {
          const std::int64_t position = learned_position(s);
          for (std::int64_t h = 0; h < H; ++h)
            group_energies(q, p.first + position - p.length, h * group, group, column.sample(items[i].pages, h, position));
        }
      }
    }
  }

  /// Fills the columns of all pages and blocks that enter the retrieval zone, in some layers. Nothing of it can be seen before the
  /// sequences grow: it may throw.
  static void encode(const host& exec, const block_code_writer<E>& encoder, const parts& of, const step_plan& step,
                     std::span<const std::int64_t> accepted, std::span<const typename parts::memory> layers) {
    const int group = of.retrieving_group();
    const std::span<const batch_item> rows_of = step.rows(group), columns_of = step.items[static_cast<std::size_t>(group)];
    const std::vector<entering_blocks> blocks = blocks_of(step.reserved, Spec::zones, layout::shape.tokens, accepted, columns_of);
    if (blocks.empty()) return;
    const std::vector<entering_page> pages = entering_pages<layout>(step.reserved, Spec::zones, accepted, columns_of);
    for (const auto& layer : layers) {
      if (!layer.retrieves) continue;
      if constexpr (Spec::coded) encode_pages(exec, encoder, layer, std::span<const entering_page>(pages), rows_of, {});
      index_entering<E>(exec, shape, layout::shape, Spec::zones.sink, of.geometry.rope, row_view<const E>(layer.rows), layer.side, blocks,
                        rows_of, columns_of);
      if constexpr (any(Spec::others)) {
        encode_entering_values<E>(exec, encoder.values, Spec::sketch, shape, Spec::zones.sink, row_view<const E>(layer.rows), layer.side,
                                  blocks, rows_of, columns_of);
      }
    }
  }

 private:
  block_code_writer<E> encoder_;
  std::vector<int> layers_;  // that retrieve
  tree_lists lists_;
  kept_pages kept_;
};

}  // namespace kvx
