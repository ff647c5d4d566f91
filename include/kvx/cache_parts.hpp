#pragma once
// What a cache is, whichever backend runs its steps: geometry, policies, plan, sequences, addresses of its layers.

#include <kvx/cache_plan.hpp>
#include <kvx/core/check.hpp>
#include <kvx/geometry.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/page_reuse.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/spec.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvx {

/// The parts of a cache that all backends share. What one backend adds (scratch, writers of columns, descriptors) is its runner's:
/// `make_runner<Spec>(exec, parts, where)`, found by the backend's type, gives an object with
///
///     plan(exec, parts, step, where)                          // last part of begin: may throw, then the step is dropped
///     append(exec, parts, step, layer, k, v)                  // these only enqueue
///     attend(exec, parts, step, layer, q, out, options, where)
///     observe(exec, parts, step, layer, q)
///     replayed(step, where)                                   // a graph was launched in place of them
///     encode(exec, parts, step, accepted, where)              // first part of commit: may throw, and nothing can be seen of it
///     encode(exec, parts, step, accepted, first, layers, where)   // the same of some layers, of a sequence that is being restored
///     place(exec, parts, step, where)                         // what is restored is near from here on, until others are planned or placed
///     copy(exec, parts, copies, where)                        // rows and columns of pages
///     forget_queries(exec, parts, step)                       // of the new tokens of a restored sequence, behind the copies
///     hold(parts, slot, where)                                // rows of a sequence lie at their addresses as long as the result is there
///     count(parts, stats)                                     // what it adds to the counts of a cache, where there is something
///     release(exec)                                           // before pages are given back that work beside the stream may read
///     cut(exec, slot, tokens)                                 // the same, before a sequence is cut to its first `tokens` tokens or less
template <class Spec>
struct cache_parts {
  using layout = typename Spec::layout_type;
  static constexpr auto columns = Spec::columns(layout::shape);
  using memory = layer_memory<row_element<layout>, columns.size()>;

  kvx::geometry geometry;
  Spec spec;
  cache_plan plan;
  std::shared_ptr<sequence_book> book;
  balance_book balances;
  std::vector<memory> layers;

  const memory& layer(int l) const { return layers[static_cast<std::size_t>(l)]; }

  /// The group of layers whose tables the columns lie under.
  int retrieving_group() const {
    const auto first = std::find_if(layers.begin(), layers.end(), [](const memory& layer) { return layer.retrieves; });
    return first != layers.end() ? first->group : 0;
  }
};

/// The plan of a cache of these policies; throws a usage_error where the geometry or what a policy holds breaks a limit.
template <class Spec>
cache_plan plan_of(const Spec& spec, const kvx::geometry& geometry, call_site where, bool spills) {
  cache_plan result = plan<typename Spec::layout_type>(geometry, cache_parts<Spec>::columns, where, spills, Spec::zones);
  if constexpr (packs_blocks<typename Spec::index_type>) {
    require_reuse(spec.index.reuse, where);
    std::int64_t layers = 0;
    for (const layer_group& group : result.groups) layers += group.retrieving;
    result.bytes.selections = kept_bytes(spec.index.reuse, geometry.max_sequences, layers, geometry.kv_heads);
  }
  return result;
}

/// Parts of a cache whose memory is not there yet: no layers have addresses.
template <class Spec>
cache_parts<Spec> plan_parts(Spec spec, kvx::geometry geometry, call_site where, bool spills) {
  using layout = typename Spec::layout_type;
  cache_parts<Spec> result{std::move(geometry), std::move(spec), {}, {}, {}, {}};
  result.plan = plan_of(result.spec, result.geometry, where, spills);
  require_range("geometry.rope.dims", result.geometry.rope.dims, 0, layout::shape.key_dim, where);
  std::vector<sequence_book::group> groups;
  for (const layer_group& g : result.plan.groups) groups.push_back({g.rules, page_pool(g.units)});
  result.book = std::make_shared<sequence_book>(std::move(groups), result.geometry.max_sequences);
  return result;
}

/// What the sequences of a cache learn, of layers that have their addresses; nothing where the index reads no sketch.
template <class Spec>
balance_book make_balances(const cache_parts<Spec>& of) {
  if constexpr (reads_sketch<typename Spec::index_type>) {
    int layers = 0;
    for (const auto& layer : of.layers) layers += layer.retrieves ? 1 : 0;
    return balance_book(
        {Spec::sketch.balance, Spec::zones.sink, layers, of.geometry.kv_heads, Spec::layout_type::shape.key_dim, of.geometry.rope},
        of.book->slots().size());
  }
  return {};
}

}  // namespace kvx
