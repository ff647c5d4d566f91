#pragma once
// The cache: sequences of rows for all layers of a model, written and attended to in steps.

#include <kvx/attend/host/dense.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/cache_plan.hpp>
#include <kvx/cache_stats.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layout/host/rows.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/spec.hpp>
#include <kvx/step.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvx {

/// How `attend` computes.
///
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// soft_cap    c > 0 replaces a score s by c tanh(s / c), after scaling
/// lse         optional, (N, Q): log of the sum of exp(score), in nats; -inf where nothing was seen
struct attend_options {
  float scale = 0;
  float soft_cap = 0;
  float* lse = nullptr;
};

/// Keys and values of many sequences, for every layer of one model.
///
/// what        open or fork sequences; then for each forward pass: begin, for each layer append and attend, commit
/// threads     one writer at a time; views may be read by many threads between steps
/// errors      usage_error for arguments out of their limits, capacity_error where pages or sequences run out; nothing has changed then
/// cost        begin and commit: O(batch x groups of layers); append and attend neither allocate nor wait for anything else
template <class Backend, class Spec>
class cache {
 public:
  using layout = typename Spec::layout_type;
  using index = typename Spec::index_type;
  using element_type = typename layout::element_type;

  cache(const Backend& exec, Spec spec, kvx::geometry geometry, call_site where = call_site::here());

  /// Memory that a cache of this geometry will reserve.
  static cache_bytes bytes(const kvx::geometry& geometry, call_site where = call_site::here()) {
    return plan<layout>(geometry, index::columns(layout::shape), where).bytes;
  }

  const kvx::geometry& geometry() const { return geometry_; }

  // ---- sequences ----

  sequence open(const Backend&, call_site where = call_site::here()) { return book_->open(where); }
  void close(const Backend&, sequence s, call_site where = call_site::here()) { book_->close(s, where); }

  /// A new sequence of the committed tokens of another, or of its first `tokens`. Paged layouts share pages and copy on write.
  sequence fork(const Backend& exec, sequence s, call_site where = call_site::here()) { return fork(exec, s, length(s, where), where); }
  sequence fork(const Backend& exec, sequence s, std::int64_t tokens, call_site where = call_site::here());

  /// Forgets all but the first `tokens` tokens; append then continues from there, as if the others had never been.
  void truncate(const Backend&, sequence s, std::int64_t tokens, call_site where = call_site::here()) { book_->truncate(s, tokens, where); }

  /// Committed tokens.
  std::int64_t length(sequence s, call_site where = call_site::here()) const { return book_->find(s, where).length; }

  // ---- steps ----

  /// Reserves rows for every entry, or throws and changes nothing.
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

  /// Makes the new tokens part of their sequences; with `accepted`, entry i keeps its first accepted[i].
  void commit(const Backend& exec, kvx::step& step, call_site where = call_site::here()) { commit(exec, step, {}, where); }
  void commit(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where = call_site::here());

  // ---- looking inside ----

  /// Addresses of one layer's rows: what a kernel of your own takes.
  row_view<const element_type> view(int layer, call_site where = call_site::here()) const;

  /// Physical pages of a sequence in one layer; -1 for pages that a window has left behind.
  std::span<const std::int32_t> pages(int layer, sequence s, call_site where = call_site::here()) const;

  cache_stats stats() const;

 private:
  static constexpr auto columns = index::columns(layout::shape);

  struct layer_memory {
    int group = 0;
    bool retrieves = false;
    row_view<element_type> rows;
    std::array<column_array, columns.size()> side{};
  };

  const layer_memory& at(int layer, call_site where) const;
  void check_step(const kvx::step& step, call_site where) const;
  void copy(const Backend& exec, std::span<const page_copy> copies);
  void encode(const Backend& exec, const reservation& step, std::span<const std::int64_t> accepted);

  kvx::geometry geometry_;
  Spec spec_;
  cache_plan plan_;
  std::shared_ptr<sequence_book> book_;
  memory_block memory_;
  memory_block scratch_;
  std::vector<layer_memory> layers_;
};

template <class Backend, class Spec>
cache<Backend, Spec>::cache(const Backend& exec, Spec spec, kvx::geometry geometry, call_site where)
    : geometry_(std::move(geometry)), spec_(spec), plan_(plan<layout>(geometry_, columns, where)) {
  std::vector<sequence_book::group> groups;
  for (const layer_group& g : plan_.groups) groups.push_back({g.rules, page_pool(g.units)});
  book_ = std::make_shared<sequence_book>(std::move(groups), geometry_.max_sequences);

  memory_ = allocate(exec, plan_.bytes.rows + plan_.bytes.columns);
  std::byte* next = memory_.data();
  for (int l = 0; l < geometry_.layers; ++l) {
    const layer_group& group = plan_.groups[static_cast<std::size_t>(plan_.group_of[static_cast<std::size_t>(l)])];
    layer_memory& layer = layers_.emplace_back();
    layer.group = plan_.group_of[static_cast<std::size_t>(l)];
    layer.retrieves = geometry_.kind(l).sees == layer_kind::attention::retrieve;
    layer.rows = layout::rows(reinterpret_cast<element_type*>(next), group.pages(), geometry_.kv_heads);
    next += row_bytes<element_type>(layout::shape, group.pages(), geometry_.kv_heads);
    if (!layer.retrieves) continue;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      layer.side[c] = {next, columns[c].pitch(), geometry_.kv_heads};
      next += group.pages() * geometry_.kv_heads * columns[c].pitch();
    }
  }
}

template <class Backend, class Spec>
const typename cache<Backend, Spec>::layer_memory& cache<Backend, Spec>::at(int layer, call_site where) const {
  require_range("layer", layer, 0, geometry_.layers - 1, where);
  return layers_[static_cast<std::size_t>(layer)];
}

template <class Backend, class Spec>
void cache<Backend, Spec>::check_step(const kvx::step& step, call_site where) const {
  require(step.book_ != nullptr, "step: committed or moved from", where);
  require(step.book_ == book_, "step: of another cache", where);
}

template <class Backend, class Spec>
void cache<Backend, Spec>::copy(const Backend& exec, std::span<const page_copy> copies) {
  for (const page_copy& c : copies) {
    for (const layer_memory& layer : layers_) {
      if (layer.group != c.group) continue;
      const std::int64_t unit_pages = plan_.groups[static_cast<std::size_t>(c.group)].rules.unit_pages;
      copy_rows(exec, layer.rows, c.from * unit_pages, c.to * unit_pages, c.rows);
      for (const column_array& column : layer.side) {
        if (column.data != nullptr)
          copy_blocks(exec, column, c.from * unit_pages, c.to * unit_pages, ceil_div(c.rows, layout::shape.tokens));
      }
    }
  }
}

template <class Backend, class Spec>
sequence cache<Backend, Spec>::fork(const Backend& exec, sequence s, std::int64_t tokens, call_site where) {
  std::vector<page_copy> copies;
  const sequence result = book_->fork(s, tokens, layout::shares_pages, copies, where);
  copy(exec, copies);
  return result;
}

template <class Backend, class Spec>
kvx::step cache<Backend, Spec>::begin(const Backend& exec, std::span<const advance> batch, call_site where) {
  kvx::step step(book_, batch, where);
  require_range("tokens of a step", step.tokens(), 0, geometry_.step_tokens(), where);
  step.appended_.resize(static_cast<std::size_t>(geometry_.layers));
  step.items_.resize(plan_.groups.size());
  std::int64_t scratch = 0;
  for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
    for (const reservation::part& p : step.entries()) {
      const page_table& table = book_->slots()[p.slot].tables[g];
      step.items_[g].push_back({table.pages.data(), p.length + p.tokens, p.tokens, p.first});
    }
    scratch = std::max(scratch, attend_dense_scratch(exec, layers_[0].rows, step.items_[g], geometry_.query_heads));
  }
  if (scratch > scratch_.size()) scratch_ = allocate(exec, scratch);
  copy(exec, step.reserved_.copies);
  return step;
}

template <class Backend, class Spec>
template <class T>
void cache<Backend, Spec>::append(const Backend& exec, kvx::step& step, int layer, tensor_view<T, 3> k, tensor_view<T, 3> v,
                                  call_site where) {
  check_step(step, where);
  const layer_memory& memory = at(layer, where);
  require(!step.appended_[static_cast<std::size_t>(layer)], "append: the step has rows of this layer already", where);
  require_shape("k", k, {step.tokens(), geometry_.kv_heads, layout::shape.key_dim}, where);
  require_shape("v", v, {step.tokens(), geometry_.kv_heads, layout::shape.value_dim}, where);
  append_rows(exec, memory.rows, step.items_[static_cast<std::size_t>(memory.group)], read_only(k), read_only(v));
  step.appended_[static_cast<std::size_t>(layer)] = true;
}

template <class Backend, class Spec>
template <class Tq, class T>
void cache<Backend, Spec>::attend(const Backend& exec, const kvx::step& step, int layer, tensor_view<Tq, 3> q, tensor_view<T, 3> out,
                                  attend_options options, call_site where) {
  static_assert(std::is_same_v<std::remove_const_t<Tq>, T>, "q and out have one element type");
  check_step(step, where);
  const layer_memory& memory = at(layer, where);
  require(step.appended_[static_cast<std::size_t>(layer)], "attend: append the rows of this layer first", where);
  require_shape("q", q, {step.tokens(), geometry_.query_heads, layout::shape.key_dim}, where);
  require_shape("out", out, {step.tokens(), geometry_.query_heads, layout::shape.value_dim}, where);
  require(options.soft_cap >= 0 && options.soft_cap < infinity, "attend: soft_cap is finite and not negative", where);
  require(options.scale > -infinity && options.scale < infinity, "attend: scale is finite", where);
  const layer_kind kind = geometry_.kind(layer);
  const dense_options dense{options.scale, options.soft_cap, kind.tokens, kind.sink};
  const tensor_view<float, 2> lse(options.lse, step.tokens(), geometry_.query_heads);
  attend_dense<element_type, T>(exec, memory.rows, step.items_[static_cast<std::size_t>(memory.group)], q, out, lse, dense,
                                {scratch_.data(), static_cast<std::size_t>(scratch_.size())});
}

template <class Backend, class Spec>
void cache<Backend, Spec>::commit(const Backend& exec, kvx::step& step, std::span<const std::int64_t> accepted, call_site where) {
  check_step(step, where);
  const auto entries = step.entries();
  if (!accepted.empty()) {
    require(accepted.size() == entries.size(), "accepted: one count for each entry of the batch", where);
    for (std::size_t i = 0; i < entries.size(); ++i) require_range("an entry of accepted", accepted[i], 0, entries[i].tokens, where);
  }
  if (step.tokens() > 0) {
    for (int l = 0; l < geometry_.layers; ++l)
      require(step.appended_[static_cast<std::size_t>(l)], "commit: a layer was not appended", where);
  }
  if constexpr (columns.size() > 0) encode(exec, step.reserved_, accepted);
  book_->commit(step.reserved_, accepted);
  step.book_ = nullptr;
}

/// Fills the columns of pages that the commit moves into the retrieval zone.
template <class Backend, class Spec>
void cache<Backend, Spec>::encode(const Backend& exec, const reservation& step, std::span<const std::int64_t> accepted) {
  struct entering {
    std::uint32_t slot;
    std::int64_t page;
  };
  std::vector<entering> pages;
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const reservation::part& p = step.parts[i];
    const std::int64_t n = p.length + (accepted.empty() ? p.tokens : accepted[i]);
    const std::int64_t end = edge(layout::zones, n, layout::shape.tokens) / layout::shape.tokens;
    for (std::int64_t page = edge(layout::zones, p.length, layout::shape.tokens) / layout::shape.tokens; page < end; ++page)
      pages.push_back({p.slot, page});
  }
  for (const layer_memory& layer : layers_) {
    if (!layer.retrieves) continue;
    for_each_task(exec, static_cast<std::int64_t>(pages.size()) * geometry_.kv_heads, [&](std::int64_t task) {
      const auto [slot, logical] = pages[static_cast<std::size_t>(task / geometry_.kv_heads)];
      const std::int32_t page = book_->slots()[slot].tables[static_cast<std::size_t>(layer.group)].pages[static_cast<std::size_t>(logical)];
      const int head = static_cast<int>(task % geometry_.kv_heads);
      std::array<std::byte*, columns.size()> blocks;
      for (std::size_t c = 0; c < columns.size(); ++c) blocks[c] = layer.side[c].at(page, head);
      encode_page(exec, spec_.index, row_view<const element_type>(layer.rows), page, head, blocks);
    });
  }
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
cache_stats cache<Backend, Spec>::stats() const {
  cache_stats result;
  for (const sequence_book::slot& s : book_->slots()) {
    if (!s.open) continue;
    ++result.sequences;
    result.tokens += s.length;
    const std::int64_t sink = std::min<std::int64_t>(layout::zones.sink, s.length);
    const std::int64_t end = std::max(sink, std::min(edge(layout::zones, s.length, layout::shape.tokens), s.length));
    result.sink_tokens += sink;
    result.retrieval_tokens += end - sink;
    result.recent_tokens += s.length - end;
  }
  std::int64_t column_bytes = 0;
  for (const column& c : columns) column_bytes += c.pitch();
  for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
    const page_pool& pool = book_->groups()[g].pool;
    const std::int64_t unit_pages = plan_.groups[g].rules.unit_pages;
    result.pages_total += pool.size() * unit_pages;
    result.pages_used += pool.used() * unit_pages;
    result.pages_free += pool.free() * unit_pages;
    result.pages_shared += pool.shared() * unit_pages;
    for (const layer_memory& layer : layers_) {
      if (layer.group != static_cast<int>(g)) continue;
      result.row_bytes += row_bytes<element_type>(layout::shape, pool.used() * unit_pages, geometry_.kv_heads);
      if (layer.retrieves) result.column_bytes += pool.used() * unit_pages * geometry_.kv_heads * column_bytes;
    }
  }
  return result;
}

}  // namespace kvx
