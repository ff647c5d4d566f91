#pragma once
// The cache: sequences of rows for all layers of a model, written and attended to in steps.

#include <kvx/attend_options.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/cache_plan.hpp>
#include <kvx/cache_stats.hpp>
#include <kvx/contested_units.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/status.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/external.hpp>
#include <kvx/layout/page_csr.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/plan_batch.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>
#include <kvx/store_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvx {

class prefix_index;
template <class Backend, class Spec, class Store>
class restoring;

/// Keys and values of many sequences, for every layer of one model.
///
/// what        open or fork sequences; then for each forward pass: begin, for each layer append and attend, commit
/// threads     one writer at a time; views may be read by many threads between steps
/// moves       a cache that was moved from may be destroyed or assigned to, nothing else
/// errors      usage_error for arguments out of their limits, capacity_error where pages or sequences run out; nothing has changed then
/// cost        begin and commit: O(batch x groups of layers); append and attend neither allocate nor wait but for far rows and index_ahead
/// backend     the type of `exec`: kvx::host (kvx.hpp), kvx::device (kvx.cuh). Calls on streams are ordered: by one stream, or the caller
template <class Backend, class Spec>
class cache {
 public:
  using layout = typename Spec::layout_type;
  using spec_type = Spec;
  using index = typename Spec::index_type;
  using element_type = typename layout::element_type;
  static constexpr kvx::zones zones = Spec::zones;
  static constexpr bool spills = offloads<layout>() && requires { Backend::reads_far; };

  cache(const Backend& exec, Spec spec, kvx::geometry geometry, call_site where = call_site::here());
  cache(cache&&) noexcept = default;
  cache& operator=(cache&& other) noexcept {  // as if it were destroyed: work that goes on beside the caller ends before its memory goes
    if (this == &other) return *this;
    std::destroy_at(this);
    std::construct_at(this, std::move(other));
    return *this;
  }

  /// Memory that a cache of this geometry, and of these policies, will reserve.
  static cache_bytes bytes(const kvx::geometry& geometry, const Spec& spec = {}, call_site where = call_site::here()) {
    return plan_of(spec, geometry, where, spills).bytes;
  }

  const kvx::geometry& geometry() const { return parts_.geometry; }

  // ---- sequences ----

  sequence open(const Backend&, call_site where = call_site::here()) { return parts_.book->open(where); }
  void close(const Backend& exec, sequence s, call_site where = call_site::here()) {
    runner_.cut(exec, parts_.book->closable(s, where), 0);
    parts_.book->close(s, where);
    parts_.balances.truncate(s.slot, 0);
  }

  /// A new sequence of the committed tokens of another, or of its first `tokens`. Paged layouts share pages and copy on write.
  sequence fork(const Backend& exec, sequence s, call_site where = call_site::here()) { return fork(exec, s, length(s, where), where); }
  sequence fork(const Backend& exec, sequence s, std::int64_t tokens, call_site where = call_site::here());

  /// Forgets all but the first `tokens` tokens; append then continues from there, as if the others had never been.
  void truncate(const Backend& exec, sequence s, std::int64_t tokens, call_site where = call_site::here()) {
    runner_.cut(exec, parts_.book->cuttable(s, tokens, where), tokens);
    parts_.book->truncate(s, tokens, where);
    parts_.balances.truncate(s.slot, tokens);
  }

  /// Committed tokens.
  std::int64_t length(sequence s, call_site where = call_site::here()) const { return parts_.book->find(s, where).length; }

  // ---- steps ----

  /// Reserves rows for every entry, or throws and changes nothing. A page that is shared and partly filled is copied before it is written
  /// to, and held until the commit: the pool must have room for both. So are pages of the first 1,024 tokens where forks that part before
  /// them both retrieve: their balances differ, and codes lie with the pages.
  kvx::step begin(const Backend& exec, std::span<const advance> batch, call_site where = call_site::here());
  kvx::step begin(const Backend& exec, std::initializer_list<advance> batch, call_site where = call_site::here()) {
    return begin(exec, std::span<const advance>(batch.begin(), batch.size()), where);
  }

  /// Stores the rows of the step's new tokens in one layer, once.   k (N, H, D)   v (N, H, Dv)
  template <class T>
  void append(const Backend& exec, kvx::step& step, int layer, tensor_view<T, 3> k, tensor_view<T, 3> v,
              call_site where = call_site::here());
  template <element T>
  void append(const Backend& exec, kvx::step& step, int layer, const T* k, const T* v, call_site where = call_site::here()) {
    append(exec, step, layer, tensor_view<const T, 3>(k, step.tokens(), geometry().kv_heads, layout::shape.key_dim),
           tensor_view<const T, 3>(v, step.tokens(), geometry().kv_heads, layout::shape.value_dim), where);
  }

  /// External layouts: the caller has written the rows of the step's new tokens in this layer.
  void append(const Backend& exec, kvx::step& step, int layer, call_site where = call_site::here());

  /// External layouts: where the rows of a layer lie. Each layer before the first begin, and again, between steps, when they have moved.
  /// Rows that are not const can be restored to.
  template <class T = const element_type>
  void bind(int layer, row_view<T> rows, call_site where = call_site::here());

  /// Attention of the step's new tokens over their sequences, causally, after `append` of the layer.   q (N, Q, D)   out (N, Q, Dv)
  template <class Tq, class T>
  void attend(const Backend& exec, const kvx::step& step, int layer, tensor_view<Tq, 3> q, tensor_view<T, 3> out,
              attend_options options = {}, call_site where = call_site::here());
  template <element T>
  void attend(const Backend& exec, const kvx::step& step, int layer, const T* q, T* out, attend_options options = {},
              call_site where = call_site::here()) {
    attend(exec, step, layer, tensor_view<const T, 3>(q, step.tokens(), geometry().query_heads, layout::shape.key_dim),
           tensor_view<T, 3>(out, step.tokens(), geometry().query_heads, layout::shape.value_dim), options, where);
  }

  /// Queries that the composition may learn from, where a prompt is appended without `attend`; attend does the same.   q (N, Q, D)
  template <class T>
  void observe(const Backend& exec, const kvx::step& step, int layer, tensor_view<T, 3> q, call_site where = call_site::here());
  template <element T>
  void observe(const Backend& exec, const kvx::step& step, int layer, const T* q, call_site where = call_site::here()) {
    observe(exec, step, layer, tensor_view<const T, 3>(q, step.tokens(), geometry().query_heads, layout::shape.key_dim), where);
  }

  /// Makes the new tokens part of their sequences; with `accepted`, entry i keeps its first accepted[i].
  void commit(const Backend& exec, kvx::step& step, call_site where = call_site::here()) { finish(exec, step, {}, where); }
  void commit(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where = call_site::here());

  /// On a device, in place of append and attend: a graph captured from them in an earlier step is launched for this one. That step had the
  /// same number of new tokens in each entry, and no other step was open beside either.
  void replayed(kvx::step& step, call_site where = call_site::here()) {
    check_step(step, where);
    runner_.replayed(step.plan_, where);
    step.appended_.assign(step.appended_.size(), true);
    for (const learning_entry& entry : step.plan_.learning)
      for (const auto& sample : entry.samples) sample->seen.assign(sample->seen.size(), 1);
  }

  /// On a device: what is enqueued later sees the columns of all committed tokens, as attention does by itself.
  void settle(const Backend& exec) { runner_.release(exec); }

  // ---- storing: docs/storing.md; defined in storing.hpp ----

  /// Keeps the committed tokens of a sequence, or a range of them, under a key; the store's status, or that of the codec.
  template <class Store>
  status save(const Backend& exec, sequence s, Store& to, const digest& key, const save_options& options = {},
              call_site where = call_site::here()) const;

  /// A new sequence of the tokens under a key. Bytes that are wrong or do not fit give a status, and nothing has changed.
  template <class Store>
  restored restore(const Backend& exec, const Store& from, const digest& key, const restore_options& options = {},
                   call_site where = call_site::here());

  /// A new sequence of the longest prefix of these tokens that is stored, sound, and can be cut there; else the status of the longest.
  template <class Store>
  restored restore_prefix(const Backend& exec, const Store& from, const prefix_index& prefixes, std::span<const std::int32_t> token_ids,
                          const restore_options& options = {}, call_site where = call_site::here());

  /// The same layer by layer: every byte is checked first, then a layer can be attended to once `decode_layer` has come to it.
  template <class Store>
  restoring<Backend, Spec, Store> restore_layers(const Backend& exec, const Store& from, const digest& key,
                                                 const restore_options& options = {}, call_site where = call_site::here());
  template <class Store>
  status decode_layer(const Backend& exec, restoring<Backend, Spec, Store>& of, call_site where = call_site::here());

  /// What keys of this cache's sequences are made of, tokens aside: key_of(family, tokens).
  digest family(std::string_view salt = {}) const;

  // ---- looking inside ----

  /// Addresses of one layer's rows: what a kernel of your own takes.
  row_view<const element_type> view(int layer, call_site where = call_site::here()) const {
    require(!at(layer, where).may_be_far(), "view: rows of this layer may be far; on a device see `placed`", where);
    return at(layer, where).rows;
  }

  /// Rows of a layer that may lie far, see placed_rows: places are as of the last begin.
  auto placed(int layer, call_site where = call_site::here()) const {
    require(at(layer, where).may_be_far(), "placed: all rows of this layer lie near, see `view`", where);
    return runner_.placed(at(layer, where));
  }

  /// Physical pages of a sequence in one layer; -1 for pages that a window has left behind.
  std::span<const std::int32_t> pages(int layer, sequence s, call_site where = call_site::here()) const;

  /// The same for a batch of sequences, in CSR form; a usage_error for window layers whose pages are gone.
  page_csr pages(int layer, std::span<const sequence> batch, call_site where = call_site::here()) const;

  /// Addresses of the c-th column that the index declares, in a retrieving layer; blocks are found by the page ids of `pages`.
  column_array column(int layer, int c, call_site where = call_site::here()) const {
    const memory& place = at(layer, where);
    require(place.retrieves, "column: only retrieving layers have columns", where);
    require_range("c", c, 0, static_cast<std::int64_t>(parts::columns.size()) - 1, where);
    return place.side[static_cast<std::size_t>(c)];
  }

  cache_stats stats() const {
    cache_stats result = count_pages<layout>(parts_.geometry, parts_.plan, zones, parts::columns, *parts_.book);
    result.rows_copied = rows_copied_;
    parts_.balances.count(result);
    if constexpr (requires { runner_.count(parts_, result); }) runner_.count(parts_, result);
    return result;
  }

 private:
  using parts = cache_parts<Spec>;
  using memory = typename parts::memory;
  const memory& at(int layer, call_site where) const {
    require_range("layer", layer, 0, geometry().layers - 1, where);
    return parts_.layer(layer);
  }
  void check_step(const kvx::step& step, call_site where) const {
    require(step.book_ != nullptr, "step: committed or moved from", where);
    require(step.book_ == parts_.book, "step: of another cache", where);
  }
  void finish(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where);
  void count_copies(std::span<const page_copy> copies);

  parts parts_;
  decltype(allocate(std::declval<Backend>(), std::int64_t{})) memory_;
  decltype(make_runner(std::declval<Backend>(), std::declval<parts>(), call_site{})) runner_;  // goes before the memory that its work uses
  std::int64_t rows_copied_ = 0;
};

template <class Backend, class Spec>
cache<Backend, Spec>::cache(const Backend& exec, Spec spec, kvx::geometry geometry, call_site where)
    : parts_(plan_parts(std::move(spec), std::move(geometry), where, spills)),
      memory_(allocate(exec, parts_.plan.bytes.rows + parts_.plan.bytes.columns, where)),
      runner_(make_runner(exec, parts_, where)) {
  parts_.layers = place_layers<layout>(parts_.geometry, parts_.plan, parts::columns, memory_.data());
  parts_.balances = make_balances(parts_);
}

/// K and V of one layer count as one row.
template <class Backend, class Spec>
void cache<Backend, Spec>::count_copies(std::span<const page_copy> copies) {
  if constexpr (layout::owns_rows) {
    for (const page_copy& c : copies) rows_copied_ += c.rows * parts_.plan.groups[static_cast<std::size_t>(c.group)].layers;
  }
}

template <class Backend, class Spec>
sequence cache<Backend, Spec>::fork(const Backend& exec, sequence s, std::int64_t tokens, call_site where) {
  std::vector<page_copy> copies;
  parts_.book->find(s, where);
  learned_balance learned = parts_.balances.cut_at(s.slot, tokens);
  const sequence result = parts_.book->fork(s, tokens, layout::shares_pages, copies, where);
  parts_.balances.assign(result.slot, std::move(learned));
  try {
    runner_.copy(exec, parts_, copies, where);
  } catch (...) {
    parts_.book->close(result, where);
    parts_.balances.truncate(result.slot, 0);
    throw;
  }
  count_copies(copies);
  return result;
}

template <class Backend, class Spec>
kvx::step cache<Backend, Spec>::begin(const Backend& exec, std::span<const advance> batch, call_site where) {
  kvx::step step(parts_.book, batch, parts_.retrieving_group(), contested_units<Spec>(parts_), where);
  require_range("tokens of a step", step.tokens(), 0, geometry().step_tokens(), where);
  step.appended_.resize(static_cast<std::size_t>(geometry().layers));
  plan_batch(exec, parts_, batch, step.plan_, where);
  runner_.plan(exec, parts_, step.plan_, where);
  count_copies(step.plan_.reserved.copies);
  return step;
}

template <class Backend, class Spec>
template <class T>
void cache<Backend, Spec>::append(const Backend& exec, kvx::step& step, int layer, tensor_view<T, 3> k, tensor_view<T, 3> v,
                                  call_site where) {
  static_assert(layout::owns_rows, "an external layout has its rows written by the caller: append takes no k and v");
  check_step(step, where);
  at(layer, where);
  require(!step.appended_[static_cast<std::size_t>(layer)], "append: the step has rows of this layer already", where);
  require_shape("k", k, {step.tokens(), geometry().kv_heads, layout::shape.key_dim}, where);
  require_shape("v", v, {step.tokens(), geometry().kv_heads, layout::shape.value_dim}, where);
  runner_.append(exec, parts_, step.plan_, layer, read_only(k), read_only(v));
  step.appended_[static_cast<std::size_t>(layer)] = true;
}

template <class Backend, class Spec>
void cache<Backend, Spec>::append(const Backend&, kvx::step& step, int layer, call_site where) {
  static_assert(!layout::owns_rows, "append takes the k and v of the new tokens: only external layouts have rows written by the caller");
  check_step(step, where);
  at(layer, where);
  require(!step.appended_[static_cast<std::size_t>(layer)], "append: the step has rows of this layer already", where);
  if constexpr (requires { runner_.appended(step.plan_, layer); }) runner_.appended(step.plan_, layer);
  step.appended_[static_cast<std::size_t>(layer)] = true;
}

template <class Backend, class Spec>
template <class T>
void cache<Backend, Spec>::bind(int layer, row_view<T> rows, call_site where) {
  static_assert(!layout::owns_rows, "only external layouts have rows that the caller places");
  at(layer, where);
  for (const sequence_book::slot& slot : parts_.book->slots()) require(!slot.in_step, "bind: a step is open", where);
  check_rows(rows, layout::shape, geometry().kv_heads, where);
  parts_.layers[static_cast<std::size_t>(layer)].bind(rows);
}

template <class Backend, class Spec>
template <class Tq, class T>
void cache<Backend, Spec>::attend(const Backend& exec, const kvx::step& step, int layer, tensor_view<Tq, 3> q, tensor_view<T, 3> out,
                                  attend_options options, call_site where) {
  static_assert(std::is_same_v<std::remove_const_t<Tq>, T>, "q and out have one element type");
  check_step(step, where);
  at(layer, where);
  require(step.appended_[static_cast<std::size_t>(layer)], "attend: append the rows of this layer first", where);
  for (const reservation::part& p : step.entries())
    require(layer < parts_.book->slots()[p.slot].ready, "attend: a sequence is being restored, and this layer is not there yet", where);
  require_shape("q", q, {step.tokens(), geometry().query_heads, layout::shape.key_dim}, where);
  require_shape("out", out, {step.tokens(), geometry().query_heads, layout::shape.value_dim}, where);
  require(options.soft_cap >= 0 && options.soft_cap < infinity, "attend: soft_cap is finite and not negative", where);
  require(options.scale > -infinity && options.scale < infinity, "attend: scale is finite", where);
  require_range("attend: keep", options.keep, 0, std::numeric_limits<std::int64_t>::max(), where);
  runner_.template attend<T>(exec, parts_, step.plan_, layer, read_only(q), out, options, where);
}

template <class Backend, class Spec>
template <class T>
void cache<Backend, Spec>::observe(const Backend& exec, const kvx::step& step, int layer, tensor_view<T, 3> q, call_site where) {
  check_step(step, where);
  at(layer, where);
  require_shape("q", q, {step.tokens(), geometry().query_heads, layout::shape.key_dim}, where);
  runner_.observe(exec, parts_, step.plan_, layer, read_only(q));
}

template <class Backend, class Spec>
void cache<Backend, Spec>::commit(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where) {
  check_step(step, where);
  const auto entries = step.entries();
  require(accepted.size() == entries.size(), "accepted: one count for each entry of the batch", where);
  for (std::size_t i = 0; i < entries.size(); ++i) require_range("an entry of accepted", accepted[i], 0, entries[i].tokens, where);
  finish(exec, step, accepted, where);
}

template <class Backend, class Spec>
void cache<Backend, Spec>::finish(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where) {
  check_step(step, where);
  for (const reservation::part& p : step.entries())
    require(parts_.book->slots()[p.slot].whole(), "commit: a sequence is being restored: decode all of its layers first", where);
  if (step.tokens() > 0) {
    for (int l = 0; l < geometry().layers; ++l)
      require(step.appended_[static_cast<std::size_t>(l)], "commit: a layer was not appended", where);
  }
  runner_.encode(exec, parts_, step.plan_, accepted, where);
  for (std::size_t i = 0; i < step.plan_.learning.size(); ++i)
    parts_.balances.accept(step.plan_.learning[i], step.entries()[i], accepted.empty() ? step.entries()[i].tokens : accepted[i]);
  parts_.book->commit(step.plan_.reserved, accepted);
  step.plan_.of_backend.reset();
  step.book_ = nullptr;
}

template <class Backend, class Spec>
std::span<const std::int32_t> cache<Backend, Spec>::pages(int layer, sequence s, call_site where) const {
  const auto group = static_cast<std::size_t>(at(layer, where).group);
  const sequence_book::slot& slot = parts_.book->find(s, where);
  return {slot.tables[group].pages.data(), static_cast<std::size_t>(parts_.plan.groups[group].rules.pages(slot.length))};
}

template <class Backend, class Spec>
page_csr cache<Backend, Spec>::pages(int layer, std::span<const sequence> batch, call_site where) const {
  page_csr result;
  for (const sequence s : batch) {
    const std::span<const std::int32_t> table = pages(layer, s, where);
    require(std::find(table.begin(), table.end(), -1) == table.end(), "pages: a window layer has freed pages of the sequence", where);
    result.add(table, length(s, where), layout::shape.tokens);
  }
  return result;
}

}  // namespace kvx
