#pragma once
// The steps of a cache on the host.

#include <kvx/attend_layer.hpp>
#include <kvx/attend_options.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/block_index.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/copy_pages.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/encode_step.hpp>
#include <kvx/layout/host/rows.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/sketch/host/sketch_writer.hpp>
#include <kvx/sketch/host/tiered_writer.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace kvx {

/// What fills the columns of a composition: an encoder where they are a key sketch, else the index itself.
template <class Spec>
auto column_writer(const host&, const Spec& spec) {
  if constexpr (reads_sketch<typename Spec::index_type>) {
    using E = typename Spec::layout_type::element_type;
    auto keys = make_key_encoder<E, Spec::sketch.bits>(Spec::sketch, Spec::layout_type::shape.key_dim);
    if constexpr (any(Spec::others)) {
      return tiered_writer<E>{keys, make_value_encoder<E, Spec::others.value_bits>(Spec::layout_type::shape.value_dim, Spec::sketch.seed)};
    } else {
      return sketch_writer<E>{keys};
    }
  } else {
    return spec.index;
  }
}

/// Steps on this machine's processors; see cache_parts. Every call returns when its work is done.
template <class Spec>
class host_runner {
 public:
  using parts = cache_parts<Spec>;
  using layout = typename Spec::layout_type;
  using memory = typename parts::memory;

  static constexpr bool packs = packs_blocks<typename Spec::index_type>;

  host_runner(const host& exec, const parts& of) : writer_(make_writer(exec, of)) {}

  void plan(const host& exec, const parts& of, step_plan& step, call_site) {
    step.workers = worker_count(exec);
    std::int64_t scratch = 0;
    for (std::size_t g = 0; g < of.plan.groups.size(); ++g)
      scratch =
          std::max(scratch, attend_layer_scratch(exec, of.spec, of.layers[0], step.rows(static_cast<int>(g)), of.geometry.query_heads));
    if (scratch > scratch_.size()) scratch_ = allocate(exec, scratch);
    copy(exec, of, step.reserved.copies);
    forget_queries(of, step);
    if constexpr (packs) writer_.follow(of, step);
  }

  /// Nothing is known of the queries of new tokens.
  void forget_queries([[maybe_unused]] const parts& of, [[maybe_unused]] const step_plan& step) const {
    if constexpr (packs) writer_.forget_queries(of, step);
  }

  template <class T>
  void append(const host& exec, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> k, tensor_view<const T, 3> v) {
    append_rows(exec, of.layer(layer).rows, step.rows(of.layer(layer).group), k, v);
  }

  template <class T>
  void attend(const host& exec, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> q, tensor_view<T, 3> out,
              const attend_options& options, call_site where) {
    using reranker = typename Spec::reranker_type;
    constexpr bool whole_pages = (packs && std::is_same_v<reranker, pass_through>) || std::is_same_v<reranker, fullest_pages>;
    if constexpr (whole_pages) require_a_page(options, layout::shape.tokens, where);
    observe(exec, of, step, layer, q);
    const memory& place = of.layer(layer);
    attend_batch batch{step.rows(place.group), step.items[static_cast<std::size_t>(place.group)], step.balances,
                       of.balances.rules().at(place.ordinal), step.reserved.parts};
    if constexpr (packs) {
      batch.lists = &writer_.lists();
      batch.kept = writer_.kept(of);
    }
    const host sized = limited(exec, step.workers);  // scratch was sized for the workers that begin was given
    attend_layer<Spec, memory, T>(sized, of.spec, place, of.geometry.kind(layer), batch, q, out, options,
                                  std::span(scratch_.data(), static_cast<std::size_t>(scratch_.size())));
  }

  template <class T>
  void observe(const host&, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> q) {
    const memory& place = of.layer(layer);
    if (!place.retrieves) return;
    for (std::size_t i = 0; i < step.learning.size(); ++i)
      observe_queries(of.balances.rules(), step.learning[i], step.reserved.parts[i], place.ordinal, q);
    if constexpr (packs) writer_.observe(of, step, layer, q);
  }

  void encode(const host& exec, const parts& of, step_plan& step, std::span<const std::int64_t> accepted) {
    encode(exec, of, step, accepted, 0, of.geometry.layers);
  }

  /// The same for some of the layers.
  void encode(const host& exec, const parts& of, step_plan& step, std::span<const std::int64_t> accepted, int first_layer, int layers) {
    const auto some = std::span<const memory>(of.layers).subspan(static_cast<std::size_t>(first_layer), static_cast<std::size_t>(layers));
    if constexpr (packs) {
      writer_.encode(exec, of, step, accepted, some);
    } else if constexpr (parts::columns.size() > 0) {
      const int group = of.retrieving_group();
      const std::span<const batch_item> columns_of = step.items[static_cast<std::size_t>(group)];
      encode_step<layout>(exec, writer_, Spec::zones, some, step.reserved, accepted, step.rows(group), columns_of, of.balances,
                          step.learning);
    }
  }

  void copy(const host& exec, const parts& of, std::span<const page_copy> copies) {
    copy_pages<layout>(exec, of.plan, std::span<const memory>(of.layers), copies);
  }

  void replayed(const step_plan&, call_site where) const { require(false, "replayed: only a device launches graphs", where); }

  void release(const host&) noexcept {}

  void cut(const host&, [[maybe_unused]] std::uint32_t slot, [[maybe_unused]] std::int64_t tokens) noexcept {
    if constexpr (packs) writer_.cut(slot, tokens);
  }

 private:
  static auto make_writer([[maybe_unused]] const host& exec, const parts& of) {
    if constexpr (packs) {
      return block_index<Spec>(of);
    } else {
      return column_writer<Spec>(exec, of.spec);
    }
  }

  decltype(make_writer(std::declval<host>(), std::declval<parts>())) writer_;
  memory_block scratch_;
};

template <class Spec>
host_runner<Spec> make_runner(const host& exec, const cache_parts<Spec>& of) {
  return host_runner<Spec>(exec, of);
}

}  // namespace kvx
