#pragma once
// The cache: sequences of rows for all layers of a model, written and attended to in steps.

#include <kvx/attend_layer.hpp>
#include <kvx/attend_options.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/cache_plan.hpp>
#include <kvx/cache_stats.hpp>
#include <kvx/copy_pages.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/encode_step.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/external.hpp>
#include <kvx/layout/host/rows.hpp>
#include <kvx/layout/page_csr.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/learned_balance.hpp>
#include <kvx/sketch/host/sketch_writer.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
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
    return sketch_writer<E>{make_key_encoder<E, Spec::sketch.bits>(Spec::sketch, Spec::layout_type::shape.key_dim)};
  } else {
    return spec.index;
  }
}

/// Keys and values of many sequences, for every layer of one model.
///
/// what        open or fork sequences; then for each forward pass: begin, for each layer append and attend, commit
/// threads     one writer at a time; views may be read by many threads between steps
/// moves       a cache that was moved from may be destroyed or assigned to, nothing else
/// errors      usage_error for arguments out of their limits, capacity_error where pages or sequences run out; nothing has changed then
/// cost        begin and commit: O(batch x groups of layers); append and attend neither allocate nor wait for anything else
template <class Backend, class Spec>
class cache {
 public:
  using layout = typename Spec::layout_type;
  using index = typename Spec::index_type;
  using element_type = typename layout::element_type;
  static constexpr kvx::zones zones = Spec::zones;

  cache(const Backend& exec, Spec spec, kvx::geometry geometry, call_site where = call_site::here());

  /// Memory that a cache of this geometry will reserve.
  static cache_bytes bytes(const kvx::geometry& geometry, call_site where = call_site::here()) {
    return plan<layout>(geometry, Spec::columns(layout::shape), where).bytes;
  }

  const kvx::geometry& geometry() const { return geometry_; }

  // ---- sequences ----

  sequence open(const Backend&, call_site where = call_site::here()) { return book_->open(where); }
  void close(const Backend&, sequence s, call_site where = call_site::here()) {
    book_->close(s, where);
    balances_.truncate(s.slot, 0);
  }

  /// A new sequence of the committed tokens of another, or of its first `tokens`. Paged layouts share pages and copy on write.
  sequence fork(const Backend& exec, sequence s, call_site where = call_site::here()) { return fork(exec, s, length(s, where), where); }
  sequence fork(const Backend& exec, sequence s, std::int64_t tokens, call_site where = call_site::here());

  /// Forgets all but the first `tokens` tokens; append then continues from there, as if the others had never been.
  void truncate(const Backend&, sequence s, std::int64_t tokens, call_site where = call_site::here()) {
    book_->truncate(s, tokens, where);
    balances_.truncate(s.slot, tokens);
  }

  /// Committed tokens.
  std::int64_t length(sequence s, call_site where = call_site::here()) const { return book_->find(s, where).length; }

  // ---- steps ----

  /// Reserves rows for every entry, or throws and changes nothing. A page that is shared and partly filled is copied before it is
  /// written to, and held until the commit: the pool must have room for both, so it may be full although the last page is not. So are
  /// pages of the first 1,024 tokens where forks that part before them both retrieve: their balances differ, and codes lie with the pages.
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
    append(exec, step, layer, tensor_view<const T, 3>(k, step.tokens(), geometry_.kv_heads, layout::shape.key_dim),
           tensor_view<const T, 3>(v, step.tokens(), geometry_.kv_heads, layout::shape.value_dim), where);
  }

  /// External layouts: the caller has written the rows of the step's new tokens in this layer.
  void append(const Backend& exec, kvx::step& step, int layer, call_site where = call_site::here());

  /// External layouts: where the rows of a layer lie. Each layer before the first begin, and again, between steps, when they have moved.
  void bind(int layer, row_view<const element_type> rows, call_site where = call_site::here());

  /// Attention of the step's new tokens over their sequences, causally, after `append` of the layer.   q (N, Q, D)   out (N, Q, Dv)
  template <class Tq, class T>
  void attend(const Backend& exec, const kvx::step& step, int layer, tensor_view<Tq, 3> q, tensor_view<T, 3> out,
              attend_options options = {}, call_site where = call_site::here());
  template <element T>
  void attend(const Backend& exec, const kvx::step& step, int layer, const T* q, T* out, attend_options options = {},
              call_site where = call_site::here()) {
    attend(exec, step, layer, tensor_view<const T, 3>(q, step.tokens(), geometry_.query_heads, layout::shape.key_dim),
           tensor_view<T, 3>(out, step.tokens(), geometry_.query_heads, layout::shape.value_dim), options, where);
  }

  /// Queries that the composition may learn from, where a prompt is appended without `attend`; attend does the same.   q (N, Q, D)
  template <class T>
  void observe(const Backend& exec, const kvx::step& step, int layer, tensor_view<T, 3> q, call_site where = call_site::here());
  template <element T>
  void observe(const Backend& exec, const kvx::step& step, int layer, const T* q, call_site where = call_site::here()) {
    observe(exec, step, layer, tensor_view<const T, 3>(q, step.tokens(), geometry_.query_heads, layout::shape.key_dim), where);
  }

  /// Makes the new tokens part of their sequences; with `accepted`, entry i keeps its first accepted[i].
  void commit(const Backend& exec, kvx::step& step, call_site where = call_site::here()) { finish(exec, step, {}, where); }
  void commit(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where = call_site::here());

  // ---- looking inside ----

  /// Addresses of one layer's rows: what a kernel of your own takes.
  row_view<const element_type> view(int layer, call_site where = call_site::here()) const;

  /// Physical pages of a sequence in one layer; -1 for pages that a window has left behind.
  std::span<const std::int32_t> pages(int layer, sequence s, call_site where = call_site::here()) const;

  /// The same for a batch of sequences, in CSR form; a usage_error for window layers whose pages are gone.
  page_csr pages(int layer, std::span<const sequence> batch, call_site where = call_site::here()) const;

  /// Addresses of the c-th column that the index declares, in a retrieving layer; blocks are found by the page ids of `pages`.
  column_array column(int layer, int c, call_site where = call_site::here()) const {
    const memory& place = at(layer, where);
    require(place.retrieves, "column: only retrieving layers have columns", where);
    require_range("c", c, 0, static_cast<std::int64_t>(columns.size()) - 1, where);
    return place.side[static_cast<std::size_t>(c)];
  }

  cache_stats stats() const {
    cache_stats result = count_pages<layout>(geometry_, plan_, zones, columns, *book_);
    result.rows_copied = rows_copied_;
    balances_.count(result);
    return result;
  }

 private:
  static constexpr auto columns = Spec::columns(layout::shape);
  static constexpr bool retrieves = reads_sketch<typename Spec::index_type>;

  using memory = layer_memory<row_element<layout>, columns.size()>;

  const memory& at(int layer, call_site where) const;
  void check_step(const kvx::step& step, call_site where) const;
  void finish(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where);
  int retrieving_group() const;
  template <class T>
  void observe(const kvx::step& step, const memory& place, const tensor_view<T, 3>& q) const;

  kvx::geometry geometry_;
  Spec spec_;
  decltype(column_writer<Spec>(std::declval<Backend>(), std::declval<Spec>())) writer_;
  cache_plan plan_;
  std::shared_ptr<sequence_book> book_;
  balance_book balances_;
  memory_block memory_;
  memory_block scratch_;
  std::vector<memory> layers_;
  std::int64_t rows_copied_ = 0;
};

template <class Backend, class Spec>
cache<Backend, Spec>::cache(const Backend& exec, Spec spec, kvx::geometry geometry, call_site where)
    : geometry_(std::move(geometry)),
      spec_(spec),
      writer_(column_writer<Spec>(exec, spec)),
      plan_(plan<layout>(geometry_, columns, where)) {
  std::vector<sequence_book::group> groups;
  for (const layer_group& g : plan_.groups) groups.push_back({g.rules, page_pool(g.units)});
  require_range("geometry.rope.dims", geometry_.rope.dims, 0, layout::shape.key_dim, where);
  book_ = std::make_shared<sequence_book>(std::move(groups), geometry_.max_sequences);
  memory_ = allocate(exec, plan_.bytes.rows + plan_.bytes.columns);
  layers_ = place_layers<layout>(geometry_, plan_, columns, memory_.data());
  if constexpr (retrieves) {
    int layers = 0;
    for (const memory& layer : layers_) layers += layer.retrieves ? 1 : 0;
    balances_ = balance_book({Spec::sketch.balance, zones.sink, layers, geometry_.kv_heads, layout::shape.key_dim, geometry_.rope},
                             book_->slots().size());
  }
}

template <class Backend, class Spec>
const typename cache<Backend, Spec>::memory& cache<Backend, Spec>::at(int layer, call_site where) const {
  require_range("layer", layer, 0, geometry_.layers - 1, where);
  return layers_[static_cast<std::size_t>(layer)];
}

template <class Backend, class Spec>
void cache<Backend, Spec>::check_step(const kvx::step& step, call_site where) const {
  require(step.book_ != nullptr, "step: committed or moved from", where);
  require(step.book_ == book_, "step: of another cache", where);
}

template <class Backend, class Spec>
int cache<Backend, Spec>::retrieving_group() const {
  const auto first = std::find_if(layers_.begin(), layers_.end(), [](const memory& layer) { return layer.retrieves; });
  return first != layers_.end() ? first->group : 0;
}

template <class Backend, class Spec>
sequence cache<Backend, Spec>::fork(const Backend& exec, sequence s, std::int64_t tokens, call_site where) {
  std::vector<page_copy> copies;
  book_->find(s, where);
  learned_balance learned = balances_.cut_at(s.slot, tokens);
  const sequence result = book_->fork(s, tokens, layout::shares_pages, copies, where);
  balances_.assign(result.slot, std::move(learned));
  rows_copied_ += copy_pages<layout>(exec, plan_, std::span<const memory>(layers_), copies);
  return result;
}

template <class Backend, class Spec>
kvx::step cache<Backend, Spec>::begin(const Backend& exec, std::span<const advance> batch, call_site where) {
  const auto own = [&, encoding = std::vector<std::uint32_t>()](const reservation::part& p) mutable {
    return balances_.contested(p, zones, layout::shape.tokens, book_->slots(), retrieving_group(), encoding);
  };
  kvx::step step(book_, batch, retrieving_group(), own, where);
  require_range("tokens of a step", step.tokens(), 0, geometry_.step_tokens(), where);
  step.appended_.resize(static_cast<std::size_t>(geometry_.layers));
  step.items_.resize(plan_.groups.size());
  for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
    for (const reservation::part& p : step.entries()) {
      const page_table& table = book_->slots()[p.slot].tables[g];
      step.items_[g].push_back({table.pages.data(), p.length + p.tokens, p.tokens, p.first});
    }
  }
  if constexpr (!layout::owns_rows) {
    for (const memory& layer : layers_) require(layer.bound, "begin: bind the rows of every layer first", where);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      step.external_.push_back(external_item(step.items_[0][i], batch[i], layout::shape.tokens, where));
      for (const layer_group& group : plan_.groups) check_seen_pages(group.rules, step.external_.back(), where);
    }
  }
  step.workers_ = worker_count(exec);
  std::int64_t scratch = 0;
  for (std::size_t g = 0; g < plan_.groups.size(); ++g)
    scratch = std::max(scratch, attend_layer_scratch(exec, spec_, layers_[0], step.rows(static_cast<int>(g)), geometry_.query_heads));
  if (scratch > scratch_.size()) scratch_ = allocate(exec, scratch);
  if (balances_.on()) {
    for (const reservation::part& p : step.entries()) {
      step.learning_.push_back(balances_.begin(p));
      step.balances_.push_back(balances_.diagonals(p.slot));
    }
  }
  rows_copied_ += copy_pages<layout>(exec, plan_, std::span<const memory>(layers_), step.reserved_.copies);
  return step;
}

template <class Backend, class Spec>
template <class T>
void cache<Backend, Spec>::append(const Backend& exec, kvx::step& step, int layer, tensor_view<T, 3> k, tensor_view<T, 3> v,
                                  call_site where) {
  check_step(step, where);
  const memory& place = at(layer, where);
  static_assert(layout::owns_rows, "an external layout has its rows written by the caller: append takes no k and v");
  require(!step.appended_[static_cast<std::size_t>(layer)], "append: the step has rows of this layer already", where);
  require_shape("k", k, {step.tokens(), geometry_.kv_heads, layout::shape.key_dim}, where);
  require_shape("v", v, {step.tokens(), geometry_.kv_heads, layout::shape.value_dim}, where);
  append_rows(exec, place.rows, step.rows(place.group), read_only(k), read_only(v));
  step.appended_[static_cast<std::size_t>(layer)] = true;
}

template <class Backend, class Spec>
void cache<Backend, Spec>::append(const Backend&, kvx::step& step, int layer, call_site where) {
  static_assert(!layout::owns_rows, "append takes the k and v of the new tokens: only external layouts have rows written by the caller");
  check_step(step, where);
  at(layer, where);
  require(!step.appended_[static_cast<std::size_t>(layer)], "append: the step has rows of this layer already", where);
  step.appended_[static_cast<std::size_t>(layer)] = true;
}

template <class Backend, class Spec>
void cache<Backend, Spec>::bind(int layer, row_view<const element_type> rows, call_site where) {
  static_assert(!layout::owns_rows, "only external layouts have rows that the caller places");
  at(layer, where);
  for (const sequence_book::slot& slot : book_->slots()) require(!slot.in_step, "bind: a step is open", where);
  check_rows(rows, layout::shape, geometry_.kv_heads, where);
  layers_[static_cast<std::size_t>(layer)].rows = rows;
  layers_[static_cast<std::size_t>(layer)].bound = true;
}

template <class Backend, class Spec>
template <class Tq, class T>
void cache<Backend, Spec>::attend(const Backend& exec, const kvx::step& step, int layer, tensor_view<Tq, 3> q, tensor_view<T, 3> out,
                                  attend_options options, call_site where) {
  static_assert(std::is_same_v<std::remove_const_t<Tq>, T>, "q and out have one element type");
  check_step(step, where);
  const memory& place = at(layer, where);
  require(step.appended_[static_cast<std::size_t>(layer)], "attend: append the rows of this layer first", where);
  require_shape("q", q, {step.tokens(), geometry_.query_heads, layout::shape.key_dim}, where);
  require_shape("out", out, {step.tokens(), geometry_.query_heads, layout::shape.value_dim}, where);
  require(options.soft_cap >= 0 && options.soft_cap < infinity, "attend: soft_cap is finite and not negative", where);
  require(options.scale > -infinity && options.scale < infinity, "attend: scale is finite", where);
  require_range("attend: keep", options.keep, 0, std::numeric_limits<std::int64_t>::max(), where);
  observe(step, place, q);
  const attend_batch batch{step.rows(place.group), step.items_[static_cast<std::size_t>(place.group)], step.balances_,
                           balances_.rules().at(place.ordinal)};
  const Backend sized = limited(exec, step.workers_);  // scratch was sized for the workers that begin was given
  attend_layer<Spec, memory, T>(sized, spec_, place, geometry_.kind(layer), batch, q, out, options,
                                std::span(scratch_.data(), static_cast<std::size_t>(scratch_.size())));
}

template <class Backend, class Spec>
template <class T>
void cache<Backend, Spec>::observe(const kvx::step& step, const memory& place, const tensor_view<T, 3>& q) const {
  if (!place.retrieves) return;
  for (std::size_t i = 0; i < step.learning_.size(); ++i)
    observe_queries(balances_.rules(), step.learning_[i], step.entries()[i], place.ordinal, q);
}

template <class Backend, class Spec>
template <class T>
void cache<Backend, Spec>::observe(const Backend&, const kvx::step& step, int layer, tensor_view<T, 3> q, call_site where) {
  check_step(step, where);
  const memory& place = at(layer, where);
  require_shape("q", q, {step.tokens(), geometry_.query_heads, layout::shape.key_dim}, where);
  observe(step, place, q);
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
  if (step.tokens() > 0) {
    for (int l = 0; l < geometry_.layers; ++l)
      require(step.appended_[static_cast<std::size_t>(l)], "commit: a layer was not appended", where);
  }
  if constexpr (columns.size() > 0) {
    const std::span<const batch_item> columns_of = step.items_[static_cast<std::size_t>(retrieving_group())];
    encode_step<layout>(exec, writer_, zones, std::span<const memory>(layers_), step.reserved_, accepted, step.rows(retrieving_group()),
                        columns_of, balances_, step.learning_);
  }
  for (std::size_t i = 0; i < step.learning_.size(); ++i)
    balances_.accept(step.learning_[i], step.entries()[i], accepted.empty() ? step.entries()[i].tokens : accepted[i]);
  book_->commit(step.reserved_, accepted);
  step.book_ = nullptr;
}

template <class Backend, class Spec>
row_view<const typename cache<Backend, Spec>::element_type> cache<Backend, Spec>::view(int layer, call_site where) const {
  return at(layer, where).rows;
}

template <class Backend, class Spec>
std::span<const std::int32_t> cache<Backend, Spec>::pages(int layer, sequence s, call_site where) const {
  const auto group = static_cast<std::size_t>(at(layer, where).group);
  const sequence_book::slot& slot = book_->find(s, where);
  return {slot.tables[group].pages.data(), static_cast<std::size_t>(plan_.groups[group].rules.pages(slot.length))};
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
