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
#include <kvx/host_offload.hpp>
#include <kvx/index_ahead.hpp>
#include <kvx/layout/host/rows.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/sketch/host/sketch_writer.hpp>
#include <kvx/sketch/host/tiered_writer.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

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

/// Of what a runner keeps, the part that fills columns.
template <class Spec>
const auto& columns_by(const block_index<Spec>& index) {
  return index.encoder();
}
template <class Writer>
const Writer& columns_by(const Writer& writer) {
  return writer;
}

/// Steps on this machine's processors; see cache_parts. Every call returns when its work is done.
template <class Spec>
class host_runner {
 public:
  using parts = cache_parts<Spec>;
  using layout = typename Spec::layout_type;
  using memory = typename parts::memory;

  static constexpr bool packs = packs_blocks<typename Spec::index_type>;

  host_runner(const host& exec, const parts& of, call_site where)
      : writer_(make_writer(exec, of)), offload_(exec, of, where), ahead_(exec) {
    if (exec.index_ahead > 0) columns_ = std::make_shared<column_writer_type>(columns_by(writer_));
  }

  void plan(const host& exec, const parts& of, step_plan& step, call_site where) {
    require_memory(exec, where);
    ahead_.finish();
    step.workers = worker_count(exec);
    std::int64_t scratch = 0;
    for (std::size_t g = 0; g < of.plan.groups.size(); ++g)
      scratch =
          std::max(scratch, attend_layer_scratch(exec, of.spec, of.layers[0], step.rows(static_cast<int>(g)), of.geometry.query_heads));
    if (scratch > scratch_.size()) scratch_ = allocate(exec, scratch);
    offload_.plan(of, step, where);
    copy(exec, of, step.reserved.copies, where);
    forget_queries(exec, of, step);
    if constexpr (packs) writer_.follow(of, step);
    if constexpr (parts::columns.size() > 0) ahead_.plan(of, step);
  }

  /// Rows of a step that are written without begin, by what is restored, find their place.
  void place(const host&, const parts&, const step_plan& step, call_site) { offload_.place(step); }

  /// Nothing is known of the queries of new tokens.
  void forget_queries(const host&, [[maybe_unused]] const parts& of, [[maybe_unused]] const step_plan& step) const {
    if constexpr (packs) writer_.forget_queries(of, step);
  }

  template <class T>
  void append(const host& exec, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> k, tensor_view<const T, 3> v) {
    enter(step, layer, true);
    append_rows(exec, of.layer(layer).rows, step.rows(of.layer(layer).group), k, v);
  }

  /// External layouts: the caller has written the rows of a layer.
  void appended(const step_plan& step, int layer) const { enter(step, layer, true); }

  template <class T>
  void attend(const host& exec, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> q, tensor_view<T, 3> out,
              const attend_options& options, call_site where) {
    using reranker = typename Spec::reranker_type;
    constexpr bool whole_pages = (packs && std::is_same_v<reranker, pass_through>) || std::is_same_v<reranker, fullest_pages>;
    if constexpr (whole_pages) require_a_page(options, layout::shape.tokens, where);
    if constexpr (packs) require_head_budget(options, where);
    if constexpr (reads_sketch<typename Spec::index_type>) {
      if (of.layer(layer).retrieves) {
        require_scale(options, where);
        require_mass(options, !std::is_same_v<reranker, pass_through> && !whole_pages, of.spec.reranker.rule, where);
      }
    }
    observe(exec, of, step, layer, q);  // enters the layer
    memory place = of.layer(layer);
    place.far = offload_.rows_of(place);
    [[maybe_unused]] const auto held = hold_dense(of, step, place, options, where);
    attend_batch batch{step.rows(place.group), step.items[static_cast<std::size_t>(place.group)], step.balances,
                       of.balances.rules().at(place.ordinal), step.reserved.parts};
    if constexpr (packs) {
      batch.lists = &writer_.lists();
      batch.kept = writer_.kept(of);
    }
    const host sized = limited(exec, step.workers);  // scratch was sized for the workers that begin was given
    attend_layer<Spec, memory, T>(sized, of.spec, place, of.geometry.kind(layer), batch, q, out, options,
                                  std::span(scratch_.data(), static_cast<std::size_t>(scratch_.size())));
    offload_.check(place, where);
  }

  template <class T>
  void observe(const host&, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> q) {
    enter(step, layer, false);
    const memory& place = of.layer(layer);
    if (!place.retrieves) return;
    for (std::size_t i = 0; i < step.learning.size(); ++i)
      observe_queries(of.balances.rules(), step.learning[i], step.reserved.parts[i], place.ordinal, q);
    if constexpr (packs) writer_.observe(of, step, layer, q);
  }

  void encode(const host& exec, const parts& of, step_plan& step, std::span<const std::int64_t> accepted, call_site where) {
    require_memory(exec, where);
    const auto* const begun = ahead_.of(step);
    if (begun != nullptr) begun->finish();
    if (auto* const failed = ahead_.of(step)) failed->rethrow();
    const auto ready = [&](int layer) { return begun != nullptr && begun->ready(layer); };
    for (int first = 0, end = 0; first < of.geometry.layers; first = end) {
      for (end = first + 1; end < of.geometry.layers && ready(end) == ready(first);) ++end;
      if (!ready(first)) encode(exec, of, step, accepted, first, end - first, where);
    }
    if constexpr (offloads_to_file<layout>()) ahead_.finish();  // a step beside this one may be indexing a block that both have
    offload_.store(of, step, accepted, where);
  }

  /// The same for some of the layers.
  void encode(const host& exec, const parts& of, step_plan& step, std::span<const std::int64_t> accepted, int first_layer, int layers,
              call_site where) {
    require_memory(exec, where);
    ahead_.finish();
    encode_layers(exec, columns_by(writer_), of, step, accepted, first_layer, layers);
  }

  void copy(const host& exec, const parts& of, std::span<const page_copy> copies, call_site where) {
    ahead_.finish();
    [[maybe_unused]] const auto held = offload_.hold_sources(of, copies, where);
    copy_pages<layout>(exec, of.plan, std::span<const memory>(of.layers), copies);
  }

  /// The rows of a sequence lie at their addresses as long as what is returned is there.
  auto hold(const parts& of, std::uint32_t slot, call_site where) const {
    ahead_.finish();
    return offload_.hold(of, of.book->slots()[slot].tables[static_cast<std::size_t>(of.retrieving_group())].units, -1, where);
  }

  void count(const parts& of, cache_stats& to) const {
    offload_.count(of, to);
    ahead_.count(to);
    if constexpr (packs) writer_.count(to);
  }

  void replayed(const step_plan&, call_site where) const { require(false, "replayed: only a device launches graphs", where); }

  void release(const host&) noexcept {}

  void cut(const host&, [[maybe_unused]] std::uint32_t slot, [[maybe_unused]] std::int64_t tokens) noexcept {
    ahead_.finish();
    if constexpr (packs) writer_.cut(slot, tokens);
  }

 private:
  template <class Writer>
  static void encode_layers(const host& exec, [[maybe_unused]] const Writer& writer, const parts& of, step_plan& step,
                            std::span<const std::int64_t> accepted, int first_layer, int layers) {
    const auto some = std::span<const memory>(of.layers).subspan(static_cast<std::size_t>(first_layer), static_cast<std::size_t>(layers));
    if constexpr (packs) {
      block_index<Spec>::encode(exec, writer, of, step, accepted, some);
    } else if constexpr (parts::columns.size() > 0) {
      const int group = of.retrieving_group();
      const std::span<const batch_item> columns_of = step.items[static_cast<std::size_t>(group)];
      encode_step<layout>(exec, writer, Spec::zones, some, step.reserved, accepted, step.rows(group), columns_of, of.balances,
                          step.learning);
    }
  }

  void enter(const step_plan& step, int layer, bool rows) const {
    if constexpr (parts::columns.size() > 0) {
      ahead_.enter(step, layer, rows, [writer = columns_](const host& exec, const parts& of, step_plan& all, int one) {
        encode_layers(exec, *writer, of, all, {}, one, 1);
      });
    }
  }

  /// Rows of entries that attend to all tokens of a layer.
  auto hold_dense(const parts& of, const step_plan& step, const memory& place, const attend_options& options, call_site where) const {
    std::vector<page_id> pages;
    constexpr bool can = packs || reads_sketch<typename Spec::index_type>;
    for (std::size_t i = 0; place.far != nullptr && i < step.reserved.parts.size(); ++i) {
      const auto group = static_cast<std::size_t>(place.group);
      if (can && options.audit == nullptr && retrieves_now(step.items[group][i], Spec::zones, options)) continue;
      const std::vector<page_id>& own = of.book->slots()[step.reserved.parts[i].slot].tables[group].units;
      pages.insert(pages.end(), own.begin(), own.end());
    }
    return offload_.hold(of, pages, place.ordinal, where);
  }

  static auto make_writer([[maybe_unused]] const host& exec, const parts& of) {
    if constexpr (packs) {
      return block_index<Spec>(of);
    } else {
      return column_writer<Spec>(exec, of.spec);
    }
  }

  using writer_type = decltype(make_writer(std::declval<host>(), std::declval<parts>()));
  using column_writer_type = std::remove_cvref_t<decltype(columns_by(std::declval<const writer_type&>()))>;
  writer_type writer_;
  memory_block scratch_;
  std::conditional_t<offloads_to_file<layout>(), host_offload<Spec>, all_in_memory<Spec>> offload_;
  std::shared_ptr<const column_writer_type> columns_;  // for jobs beside the caller: the runner may move
  index_ahead<Spec> ahead_;
};

template <class Spec>
host_runner<Spec> make_runner(const host& exec, const cache_parts<Spec>& of, call_site where) {
  return host_runner<Spec>(exec, of, where);
}

}  // namespace kvx
