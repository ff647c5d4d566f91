#pragma once
// The steps of a cache on the device: what `begin` plans, what `append` and `attend` launch, what `commit` encodes beside the stream.

#include <kvx/attend/cuda/retrieve_arrays.cuh>
#include <kvx/attend/retrieve.hpp>
#include <kvx/attend_options.hpp>
#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/cuda/attend_layer.cuh>
#include <kvx/cuda/attend_pages_run.cuh>
#include <kvx/cuda/copy_pages.cuh>
#include <kvx/cuda/device_scratch.cuh>
#include <kvx/cuda/encode_step.cuh>
#include <kvx/cuda/kept_selections.cuh>
#include <kvx/cuda/learned_balance.cuh>
#include <kvx/cuda/page_tables.cuh>
#include <kvx/cuda/row_offload.cuh>
#include <kvx/cuda/step_descriptor.cuh>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/cuda/promoted_tokens.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/cuda/rows.cuh>
#include <kvx/layout/placement.hpp>
#include <kvx/rerank/fullest_pages.hpp>
#include <kvx/sketch/cuda/energies.cuh>
#include <kvx/sketch/query_energies.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvx {

/// Steps on a CUDA device; see cache_parts.
///
/// plan        uploads what differs of the page tables and one descriptor, in one launch; may wait for the upload four steps before
/// append, attend   launch; may be captured in a graph and replayed in later steps, for which they are planned up to max_tokens
/// encode      enqueues on a stream of the cache's own, behind the caller's; attention of a layer waits for that layer alone
template <class Spec>
class device_runner {
 public:
  using parts = cache_parts<Spec>;
  using layout = typename Spec::layout_type;
  using memory = typename parts::memory;
  static constexpr bool spills = offloads<layout>();
  static_assert(layout::owns_rows, "an external layout is for the host: the device's rows lie in pages of the cache");
  static_assert(parts::columns.size() == 0 || reads_sketch<typename Spec::index_type> || device_packs<Spec>,
                "on the device an index has the columns of a key sketch or of semantic pages, or none");
  static_assert(!any(Spec::others) || layout::shape.tokens <= most_tile_members, "tiers on the device: pages of at most 1,024 tokens");

  static_assert(!std::is_same_v<typename Spec::reranker_type, fullest_pages>,
                "fullest_pages is for the host: on a device rows are chosen one by one, by pass_through, exact or rsq_ip");

  device_runner(const device& exec, const parts& of, call_site where)
      : home_(exec),
        tables_(of.plan.groups.size() + 1, of.book->slots().size()),
        offload_(exec, of, where),
        encoder_(exec, of.geometry.layers, parts::columns.size() > 0) {
    if constexpr (device_packs<Spec>) {
      if constexpr (keeps_links(Spec::index_type::shape))
        promoted_ = promoted_on_device(exec, Spec::index_type::shape, longest_sequence(of), where);
      int layers = 0;  // whose memory is still to come
      for (int l = 0; l < of.geometry.layers; ++l) layers += of.geometry.kind(l).sees == layer_kind::attention::retrieve ? 1 : 0;
      kept_ = kept_selections(exec, of.spec.index.reuse, std::ssize(of.book->slots()), layers, of.geometry.kv_heads, where);
    }
  }
  device_runner(device_runner&&) = default;
  device_runner& operator=(device_runner&&) = delete;
  ~device_runner() {
    try {
      encoder_.finish(home_);
    } catch (...) {  // the device is lost: whoever called last was told
    }
  }

  void plan(const device& exec, const parts& of, step_plan& step, call_site where) {
    require_uncaptured(exec, where);
    require_memory(exec, where);
    const auto now = std::make_shared<device_step>(vacant(exec, of));
    now->tokens = step.reserved.tokens;
    now->entries = static_cast<int>(step.reserved.parts.size());
    now->planned = longest_sequence(of);
    now->apart = spills;
    now->promoted = promoted_.tokens();
    for (const reservation::part& p : step.reserved.parts) {
      now->longest = std::max(now->longest, p.length + p.tokens);
      now->most_queries = std::max(now->most_queries, p.tokens);
    }
    for (const learning_entry& entry : step.learning) now->learns = now->learns || !entry.samples.empty();
    for (const reservation::part& p : step.reserved.parts)
      now->learns = now->learns || (device_learns<Spec> && learned_positions(p.length) < learned_positions(p.length + p.tokens));
    now->runs = retrieve_runs(step.reserved.parts, most_run_tokens(exec, of));
    now->replayable = std::none_of(now->runs.begin(), now->runs.end(), [](const retrieve_run& r) { return r.prompt; });
    scratch_.reserve(exec, attend_layer_scratch(exec, of, *now, attend_options{}, now->replayable), captured_);
    upload(exec, of, step, *now, where);
    copy(exec, of, step.reserved.copies, where);
    if constexpr (device_learns<Spec>) forget_queries(exec, of, *now);
    kept_.begin(exec, now->descriptor->at.slots, now->batch(of.retrieving_group(), false));
    step.of_backend = now;
  }

  template <class T>
  void append(const device& exec, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> k, tensor_view<const T, 3> v) {
    append_rows(exec, of.layer(layer).rows, planned(step).batch(of.layer(layer).row_group, false), k, v);
  }

  template <class T>
  void attend(const device& exec, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> q, tensor_view<T, 3> out,
              const attend_options& options, call_site where) {
    require(options.audit == nullptr, "attend: an audit is for the host", where);
    require_device_budget(options.budget, where);
    if constexpr (device_packs<Spec> && !device_ranks<Spec>) require_a_page(options, layout::shape.tokens, where);
    if constexpr (device_packs<Spec>) require_head_budget(options, where);
    if (reads_sketch<typename Spec::index_type> && of.layer(layer).retrieves) require_scale(options, where);
    const device_step& now = planned(step);
    const memory& place = of.layer(layer);
    const bool replays = is_capturing(exec);
    captured_ = captured_ || replays;
    const attend_memory needed = attend_layer_scratch(exec, of, now, options, replays || now.replayable);
    if (!scratch_.holds(needed)) {
      require(!replays, "attend: these options need more scratch than was planned; run one step with them before the capture", where);
      scratch_.reserve(exec, needed, captured_);
    }
    if (place.retrieves) encoder_.hold(exec, place.ordinal, replays);
    if (place.retrieves) mark_seen(step, place.ordinal);
    attend_layer<Spec, T>(exec, of, offload_, kept_.arrays(), step, now, layer, q, out, options, replays, scratch_, where);
  }

  template <class T>
  void observe(const device& exec, const parts& of, const step_plan& step, int layer, tensor_view<const T, 3> q) {
    const memory& place = of.layer(layer);
    if (!place.retrieves) return;
    mark_seen(step, place.ordinal);
    observe_layer<Spec, T>(exec, of, planned(step), layer, q);
  }

  void replayed(const step_plan& step, call_site where) const {
    require(planned(step).longest <= planned(step).planned, "replayed: a graph is planned for sequences of max_tokens", where);
  }

  void encode(const device& exec, const parts& of, step_plan& step, std::span<const std::int64_t> accepted, call_site where) {
    encode(exec, of, step, accepted, 0, of.geometry.layers, where);
  }

  /// The same for some of the layers.
  void encode(const device& exec, const parts& of, step_plan& step, std::span<const std::int64_t> accepted, int first_layer, int layers,
              call_site where) {
    require_uncaptured(exec, where);
    require_memory(exec, where);
    [[maybe_unused]] const auto frame_of = [&](std::int32_t page) {
      if constexpr (spills) {
        return offload_.frame(page);
      } else {
        return page;
      }
    };
    if constexpr (device_packs<Spec>) {
      encoder_.template encode_blocks<Spec>(exec, of, step, accepted, frame_of, promoted_.tokens());
    } else if constexpr (parts::columns.size() > 0) {
      encoder_.template encode<Spec>(exec, of, step, accepted, frame_of, first_layer, layers);
    }
  }

  /// Rows of a step that are written without begin, by what is restored: all must be near.
  ///
  /// errors      capacity_error: more pages than near memory has room for
  void place([[maybe_unused]] const device& exec, [[maybe_unused]] const parts& of, [[maybe_unused]] const step_plan& step,
             [[maybe_unused]] call_site where) {
    if constexpr (spills) {
      std::vector<upload_piece> pieces;
      try {
        if (const upload_piece list = offload_.plan(exec, of, step, where); list.bytes > 0) pieces.push_back(list);
        add_moved_tables(exec, of, {}, pieces);
        uploads_.enqueue(exec, pieces);
      } catch (...) {
        tables_.forget();
        throw;
      }
      tables_.accept();
      offload_.accept(exec, of, encoder_);
    }
  }

  /// Nothing is known of the queries of new tokens, in pages that have been copied: for a step of one entry that no descriptor tells of.
  void forget_queries([[maybe_unused]] const device& exec, [[maybe_unused]] const parts& of, [[maybe_unused]] const step_plan& step) {
    if constexpr (device_learns<Spec>) forget_restored(exec, of, step);
  }

  void copy(const device& exec, const parts& of, std::span<const page_copy> copies, call_site where) {
    if (copies.empty()) return;
    require_memory(exec, where);
    release(exec);
    copy_pages<layout>(exec, of.plan, std::span<const memory>(of.layers), copies, uploads_, lists_);
    if constexpr (spills) offload_.copy(exec, of, copies);
  }

  void release(const device& exec) { encoder_.finish(exec); }

  /// Later work of the stream sees all that was encoded.
  void hold_encoded(const device& exec) const { encoder_.hold_all(exec); }

  /// Rows stay where they are between calls.
  struct nothing_held {};
  nothing_held hold(const parts&, std::uint32_t, call_site) const { return {}; }
  void cut(const device& exec, std::uint32_t slot, std::int64_t tokens) {
    release(exec);
    kept_.cut(exec, slot, tokens);
  }

  void count(const parts& of, cache_stats& to) const {
    if constexpr (spills) offload_.count(of, to);
    to.selection_bytes += kept_.bytes();
  }

  /// What storing keeps in device memory, such as the models of a codec: made when it is first asked for, of one type a cache.
  template <class Make>
  const auto& kept_for_storing(const Make& make) const {
    using T = decltype(make());
    if (!stored_) stored_ = std::make_shared<T>(make());
    return *static_cast<const T*>(stored_.get());
  }

  auto placed(const memory& layer) const {
    if constexpr (spills) return offload_.placed(layer.ordinal, layer.rows);
  }

 private:
  static const device_step& planned(const step_plan& step) { return *static_cast<const device_step*>(step.of_backend.get()); }

  /// The same for a step whose descriptor has been uploaded.
  void forget_queries(const device& exec, const parts& of, const device_step& now) const {
    if (!now.learns) return;
    for (const memory& place : of.layers) {
      if (place.retrieves) forget_energies(exec, energies_of(place.side, layout::shape), now.batch(place.group, false));
    }
  }

  void forget_restored(const device& exec, const parts& of, const step_plan& step) {
    const reservation::part& p = step.reserved.parts[0];
    if (learned_positions(p.length) == learned_positions(p.length + p.tokens)) return;
    const auto group = static_cast<std::size_t>(of.retrieving_group());
    const std::vector<std::int32_t>& pages = of.book->slots()[p.slot].tables[group].pages;
    const std::vector<std::int32_t> entry_of(static_cast<std::size_t>(p.tokens));
    batch_item item = step.items[group][0];
    const auto parts_of = [&](scratch_parts memory) {
      auto* const items = memory.take<batch_item>(1);
      auto* const table = memory.take<std::int32_t>(std::ssize(pages));
      return std::tuple(items, table, memory.take<std::int32_t>(p.tokens), memory.used);
    };
    lists_.reserve(exec, std::get<3>(parts_of({})), false);
    const auto [items, table, entries, used] = parts_of({lists_.data()});
    item.pages = table;
    const upload_piece pieces[] = {
        {items, &item, sizeof item}, {table, pages.data(), std::ssize(pages) * 4}, {entries, entry_of.data(), p.tokens * 4}};
    uploads_.enqueue(exec, pieces);
    for (const memory& place : of.layers) {
      if (place.retrieves)
        forget_energies(exec, energies_of(place.side, layout::shape), {items, entries, p.tokens, 1, p.tokens, item.length});
    }
  }

  void mark_seen(const step_plan& step, int ordinal) {
    for (const learning_entry& entry : step.learning) {
      for (const auto& sample : entry.samples) sample->seen[static_cast<std::size_t>(ordinal)] = 1;
    }
  }

  std::shared_ptr<step_descriptor> vacant(const device& exec, const parts& of) {
    for (const auto& d : descriptors_) {
      if (!d->taken) return d;
    }
    const auto d = std::make_shared<step_descriptor>();
    descriptors_.reserve(descriptors_.size() + 1);
    d->entries = of.geometry.max_sequences;
    const std::int64_t groups = std::ssize(of.plan.groups) + (spills ? 1 : 0);
    scratch_parts size;
    step_addresses(size, groups, d->entries, of.geometry.step_tokens());
    d->memory = allocate(exec, size.used);
    scratch_parts memory{d->memory.data()};
    d->at = step_addresses(memory, groups, d->entries, of.geometry.step_tokens());
    descriptors_.push_back(d);
    return d;
  }

  /// Tables of rows of the steps that are open beside one with these parts, where its plan moves pages.
  void add_moved_tables(const device& exec, const parts& of, std::span<const reservation::part> own, std::vector<upload_piece>& pieces) {
    for (std::size_t slot = 0; slot < of.book->slots().size() && offload_.moves(); ++slot) {
      const bool mine = std::any_of(own.begin(), own.end(), [&](const auto& p) { return p.slot == slot; });
      if (of.book->slots()[slot].in_step && !mine) tables_.plan(exec, of.plan.groups.size(), slot, offload_.table(of, slot), pieces);
    }
  }

  void upload(const device& exec, const parts& of, const step_plan& step, const device_step& now, call_site where) {
    const auto groups = of.plan.groups.size(), entries = step.reserved.parts.size();
    const auto columns = static_cast<std::size_t>(of.retrieving_group());
    const step_addresses& at = now.descriptor->at;
    std::vector<upload_piece> pieces;
    step_image image;
    const auto add = [&](auto* to, const auto& from) {
      pieces.push_back({to, from.data(), static_cast<std::int64_t>(from.size() * sizeof(from[0]))});
    };
    try {
      for (std::size_t g = 0; g < groups; ++g) {
        for (std::size_t i = 0; i < entries; ++i) {
          const std::uint32_t slot = step.reserved.parts[i].slot;
          batch_item item = step.items[g][i];
          item.pages = tables_.plan(exec, g, slot, of.book->slots()[slot].tables[g].pages, pieces);
          image.items.push_back(item);
        }
      }
      if constexpr (spills) {
        if (const upload_piece list = offload_.plan(exec, of, step, where); list.bytes > 0) pieces.push_back(list);
        for (std::size_t i = 0; i < entries; ++i) {
          const std::uint32_t slot = step.reserved.parts[i].slot;
          batch_item item = step.items[columns][i];
          item.pages = tables_.plan(exec, groups, slot, offload_.table(of, slot), pieces);
          image.items.push_back(item);
        }
        add_moved_tables(exec, of, step.reserved.parts, pieces);
      }
      image.fill(step, now.runs, columns, spills ? groups : columns);
      for (std::size_t g = 0; g < groups + (spills ? 1 : 0); ++g)
        add(at.items + static_cast<std::int64_t>(g) * now.descriptor->entries, std::span(image.items).subspan(g * entries, entries));
      add(at.prompts, image.prompts);
      add(at.runs, image.runs);
      add(at.row_runs, image.row_runs);
      add(at.entry_of, image.entry_of);
      add(at.run_entry_of, image.run_entry_of);
      add(at.balances, step.balances);
      if (kept_.arrays().data != nullptr) add(at.slots, image.slots);
      if (of.balances.on() && (now.learns || now.replayable)) {
        image.fill_samples(step);
        add(at.samples, image.samples);
      }
      uploads_.enqueue(exec, pieces);
    } catch (...) {
      tables_.forget();
      throw;
    }
    tables_.accept();
    if constexpr (spills) offload_.accept(exec, of, encoder_);
  }

  device home_;
  upload_ring uploads_;
  device_page_tables tables_;
  std::vector<std::shared_ptr<step_descriptor>> descriptors_;
  attend_scratch scratch_;
  device_scratch lists_;
  std::conditional_t<spills, row_offload<Spec>, rows_stay> offload_;
  promoted_on_device promoted_;
  step_encoder encoder_;
  kept_selections kept_;
  bool captured_ = false;  // graphs may name the scratch
  mutable std::shared_ptr<void> stored_;
};

template <class Spec>
device_runner<Spec> make_runner(const device& exec, const cache_parts<Spec>& of, call_site where) {
  return device_runner<Spec>(exec, of, where);
}

}  // namespace kvx
