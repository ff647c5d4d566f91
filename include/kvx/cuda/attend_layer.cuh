#pragma once
// One layer's attention for a batch on the device: which entries retrieve, which attend to everything, which see a window.

#include <kvx/attend/cuda/dense.cuh>
#include <kvx/attend/cuda/retrieve.cuh>
#include <kvx/attend/dense.hpp>
#include <kvx/attend/retrieve.hpp>
#include <kvx/attend_options.hpp>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/cuda/attend_pages_run.cuh>
#include <kvx/cuda/device_scratch.cuh>
#include <kvx/cuda/step_descriptor.cuh>
#include <kvx/index/cuda/kept_pages.cuh>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/layer_kind.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/sketch/cuda/energies.cuh>
#include <kvx/sketch/value_code.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Scratch of attention, and counters that every launch leaves at 0.
struct attend_scratch {
  device_scratch bytes;
  device_scratch counters;

  bool holds(const attend_memory& m) const { return m.bytes <= bytes.size() && m.counters * 4 <= counters.size(); }
  void reserve(const device& exec, const attend_memory& m, bool keep) {
    bytes.reserve(exec, m.bytes, keep);
    counters.reserve(exec, m.counters * 4, keep);
  }
  std::span<unsigned> counter_span() const {
    return {reinterpret_cast<unsigned*>(counters.data()), static_cast<std::size_t>(counters.size()) / sizeof(unsigned)};
  }
};

/// Sequences that are shorter attend densely, where lengths decide.
template <class Spec>
std::int64_t short_below(const attend_options& options) {
  return options.path == attend_options::route::by_length ? dense_below(Spec::zones, options.keep) : 0;
}

/// What a run of new tokens needs where it retrieves. Lengths up to `longest` may come while the same launches are repeated.
template <class Spec>
attend_memory run_memory(const device& exec, const cache_parts<Spec>& of, std::int64_t tokens, std::int64_t longest,
                         const attend_options& options) {
  if constexpr (device_packs<Spec>) {
    return attend_pages_scratch(exec, of.layers[0].rows, pages_of_run(of, tokens, longest, options, short_below<Spec>(options)),
                                Spec::coded, offloads<typename Spec::layout_type>());
  } else {
    using reranker = typename Spec::reranker_type;
    return attend_retrieved_scratch<reranker>(
        exec, Spec::sketch, Spec::index_type::scoring, Spec::zones, Spec::layout_type::shape, of.layers[0].rows, of.geometry.query_heads,
        tokens, longest, {options.keep, options.breadth, options.scale, options.soft_cap, options.others, options.budget},
        short_below<Spec>(options), offloads<typename Spec::layout_type>());
  }
}

/// Tokens that a sequence may have: those of the largest pool that keeps them all. With windows alone nothing bounds a sequence, and graphs
/// are planned for max_tokens.
template <class Spec>
std::int64_t longest_sequence(const cache_parts<Spec>& of) {
  std::int64_t longest = 0;
  for (const layer_group& g : of.plan.groups) {
    if (g.rules.window == 0) longest = std::max(longest, (g.rules.grows ? g.units : 1) * g.rules.unit_tokens());
  }
  return longest > 0 ? longest : of.geometry.max_tokens;
}

/// New tokens of a run at most, so that what retrieval needs in scratch stays near a GiB.
template <class Spec>
std::int64_t most_run_tokens(const device& exec, const cache_parts<Spec>& of) {
  if constexpr (reads_sketch<typename Spec::index_type> || device_packs<Spec>) {
    const attend_memory one = run_memory(exec, of, 1, longest_sequence(of), {});
    return std::max<std::int64_t>(1, (std::int64_t{1} << 30) / one.bytes);
  } else {
    return of.geometry.step_tokens();
  }
}

/// What attention of any layer needs in a step.
template <class Spec>
attend_memory attend_layer_scratch(const device& exec, const cache_parts<Spec>& of, const device_step& step, const attend_options& options,
                                   bool replays) {
  const device_batch all = step.batch(0, replays);
  attend_memory most{attend_dense_scratch(exec, of.layers[0].rows, all, of.geometry.query_heads),
                     attend_dense_tickets(exec, of.layers[0].rows, all, of.geometry.query_heads)};
  if constexpr (reads_sketch<typename Spec::index_type> || device_packs<Spec>) {
    if (options.path == attend_options::route::dense) return most;
    for (const retrieve_run& run : step.runs) {
      if (run.prompt && options.path == attend_options::route::by_length) continue;
      most = larger(most, run_memory(exec, of, run.tokens, step.bound(replays), options));
    }
  }
  return most;
}

/// How the entries of a step attend in a layer that can retrieve.
///
/// retrieves   some do; shorter: some of them by a zone that they keep whole, since they are short; dense: some do not
struct step_routes {
  bool retrieves = false;
  bool shorter = false;
  bool dense = false;
};

/// replays     lengths are not known: what is no prompt takes the launches of retrieval
inline step_routes routes_of(std::span<const batch_item> entries, const zones& by, const attend_options& options, bool replays) {
  using route = attend_options::route;
  step_routes r;
  if (options.path != route::by_length) return {options.path == route::retrieve, false, options.path == route::dense};
  const std::int64_t below = dense_below(by, options.keep);
  for (const batch_item& e : entries) {
    if (e.queries > most_retrieving_tokens) {
      r.dense = true;
    } else {
      r.retrieves = r.retrieves || replays || e.length >= below;
      r.shorter = r.shorter || replays || e.length < below;
    }
  }
  if (!r.retrieves) return {false, false, true};
  return r;
}

/// Writes down the queries that are learned from.   q (N, Q, D)
template <class Spec, class T>
void observe_layer(const device& exec, const cache_parts<Spec>& of, const device_step& step, int layer, tensor_view<const T, 3> q) {
  if constexpr (device_learns<Spec>) {
    if (step.learns || step.replayable)
      observe_energies(exec, energies_of(of.layer(layer).side, Spec::layout_type::shape), step.batch(of.layer(layer).group, false), q);
  }
  if (!of.balances.on() || (!step.learns && !step.replayable)) return;  // no samples were planned
  const learning_rules& rules = of.balances.rules();
  observe_tokens(exec, step.descriptor->at.samples, rules.at(of.layer(layer).ordinal), rules.heads, q);
}

/// Attention of the new tokens of a batch in one layer.
///
/// replays     the launches are recorded, and planned for what lengths may become
/// offload     row_offload, or rows_stay
/// kept        selections of pages that are used again
/// shapes      q (N, Q, D)   out (N, Q, Dv)   options.lse (N, Q) or null; scratch that holds attend_layer_scratch
template <class Spec, class T, class Offload>
void attend_layer(const device& exec, const cache_parts<Spec>& of, const Offload& offload, const kept_page_arrays& kept,
                  const step_plan& plan, const device_step& step, int layer, tensor_view<const T, 3> q, tensor_view<T, 3> out,
                  const attend_options& options, bool replays, const attend_scratch& scratch, call_site where) {
  using E = typename Spec::layout_type::element_type;
  const auto& place = of.layer(layer);
  const layer_kind kind = of.geometry.kind(layer);
  const tensor_view<float, 2> lse(options.lse, q.extents[0], q.extents[1]);
  device_batch densely = step.batch(place.row_group, replays);
  const auto attend_all = [&](const auto& far) {
    attend_dense<E, T>(exec, place.rows, densely, q, out, lse, {options.scale, options.soft_cap, kind.tokens, kind.sink},
                       scratch.bytes.span(), scratch.counter_span(), far, where);
  };
  if constexpr (reads_sketch<typename Spec::index_type> || device_packs<Spec>) {
    if (place.retrieves) {
      const step_routes routes = routes_of(plan.items[static_cast<std::size_t>(place.group)], Spec::zones, options, replays);
      const bool asks = device_learns<Spec> || of.balances.on(), learns = asks && (step.learns || replays);
      if (learns && routes.dense) observe_layer<Spec, T>(exec, of, step, layer, q);
      const step_addresses& at = step.descriptor->at;
      for (const retrieve_run& run : step.runs) {
        if (!routes.retrieves || (run.prompt && routes.dense) || run.tokens == 0) continue;
        const auto rows = [&](auto view) {
          view.data = view.data != nullptr ? view.at(run.token, 0, 0) : nullptr;
          view.extents[0] = run.tokens;
          return view;
        };
        tensor_view<float, 2> sums = lse;
        if (sums.data != nullptr) sums.data = lse.at(run.token, 0);
        sums.extents[0] = run.tokens;
        const device_batch batch = step.run(run, replays);
        const std::int64_t whole_below = routes.shorter ? short_below<Spec>(options) - 1 : 0;
        const auto far = [&] {
          if constexpr (offloads<typename Spec::layout_type>()) {
            return offload.rows_of(place.ordinal);
          } else {
            return all_near{};
          }
        }();
        if constexpr (device_packs<Spec>) {
          const kept_pages_of_layer used{kept, at.slots + run.entry, place.ordinal};
          attend_pages_run<Spec, T>(exec, of, layer, batch, step.row_run(run, replays), far, used, learns && !routes.dense, step.promoted,
                                    rows(q), rows(out), sums, options, whole_below, scratch.bytes.span(), scratch.counter_span(), where);
        } else {
          device_retrieve_layer<E> from{place.rows,  key_columns_of(place.side), Spec::sketch,
                                        Spec::zones, step.row_run(run, replays), batch};
          if (of.balances.on()) from.balances = at.balances + run.entry;
          if (learns && !routes.dense) from.samples = at.samples + run.token;
          from.learned_at = of.balances.rules().at(place.ordinal);
          from.values = value_columns_of(place.side);
          attend_retrieved<Spec::layout_type::shape, E, T>(
              exec, from, Spec::index_type::scoring, of.spec.reranker, rows(q), rows(out), sums,
              {options.keep, options.breadth, options.scale, options.soft_cap, options.others, options.budget}, whole_below,
              scratch.bytes.span(), scratch.counter_span(), far, where);
        }
      }
      if (!routes.dense) return;
      if (routes.retrieves) densely = step.prompts(replays);
    }
  }
  if constexpr (offloads<typename Spec::layout_type>()) {
    if (place.may_be_far()) return attend_all(offload.rows_of(place.ordinal).far);
  }
  attend_all(all_near{});
}

}  // namespace kvx
