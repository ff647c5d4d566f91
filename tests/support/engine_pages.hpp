#pragma once
// Pages of rows as an engine of its own keeps them: other ids and strides than a cache's, recycled, copied and moved at any time.

#include <support/token_rows.hpp>

#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kvx::test {

/// How rows lie in a page: slots of heads (NHD) or heads of slots (HND), K and V in one array or each in its own. The four forms of
/// FlashInfer's paged KV caches: (pages, 2, P, H, D), (pages, 2, H, P, D), and pairs of (pages, P, H, D) and (pages, H, P, D).
struct arrangement {
  bool heads_first = false;
  bool apart = false;
};
inline constexpr arrangement arrangements[] = {{false, false}, {true, false}, {false, true}, {true, true}};

/// A pool for all layers, and the page tables of its sequences. Slots behind all tokens hold NaN.
template <class E>
class engine_pages {
 public:
  using table = std::vector<std::int32_t>;

  engine_pages(const geometry& g, page_shape shape, arrangement a, std::int32_t pages, unsigned seed)
      : geometry_(g), shape_(shape), arrangement_(a), users_(static_cast<std::size_t>(pages)), random_(seed) {
    const std::int64_t slots = std::int64_t{g.kv_heads} * shape.tokens;
    for (const std::int64_t dims : a.apart ? std::vector{shape.key_dim, shape.value_dim} : std::vector{shape.key_dim + shape.value_dim}) {
      const auto size = static_cast<std::size_t>(g.layers * pages * slots * dims);
      arrays_.push_back({slots * dims, std::vector<E>(size, round_to<E>(quiet_nan))});
    }
  }

  row_view<const E> rows(int layer) const { return const_cast<engine_pages*>(this)->writable(layer); }

  row_view<E> writable(int layer) {
    const std::int64_t H = geometry_.kv_heads, P = shape_.tokens;
    const auto rows = [&](E* first, std::int64_t page, std::int64_t dim) {
      return arrangement_.heads_first ? row_array<E>{first, page, P * dim, dim} : row_array<E>{first, page, dim, H * dim};
    };
    block& k = arrays_.front();
    block& v = arrays_.back();
    E* const value = v.page(*this, layer, 0) + (arrangement_.apart ? 0 : H * P * shape_.key_dim);
    return {rows(k.page(*this, layer, 0), k.elements, shape_.key_dim),
            rows(value, v.elements, shape_.value_dim),
            geometry_.kv_heads,
            shape_.tokens,
            shape_.key_dim,
            shape_.value_dim};
  }

  /// Makes room for tokens [n, n + more); a shared page is copied before it is written to.
  void grow(table& pages, std::int64_t n, std::int64_t more) {
    if (more > 0 && n % shape_.tokens != 0 && users_[at(pages.back())] > 1) {
      const std::int32_t copy = acquire();
      for (block& b : arrays_) {
        for (int layer = 0; layer < geometry_.layers; ++layer)
          std::copy_n(b.page(*this, layer, pages.back()), b.elements, b.page(*this, layer, copy));
      }
      release(std::exchange(pages.back(), copy));
    }
    while (static_cast<std::int64_t>(pages.size()) * shape_.tokens < n + more) pages.push_back(acquire());
  }

  /// Writes the rows of tokens [n, n + ids.size()) of one layer.
  void write(const table& pages, std::int64_t n, std::span<const token> ids, int layer) {
    const row_view<E> to = writable(layer);
    for (const token id : ids) {
      const std::int64_t page = pages[at(n / shape_.tokens)], slot = n++ % shape_.tokens;
      for (int h = 0; h < geometry_.kv_heads; ++h) {
        for (int c = 0; c < shape_.key_dim; ++c) to.key.at(page, h, slot)[c] = round_to<E>(component(id, part::key, layer, h, c));
        for (int c = 0; c < shape_.value_dim; ++c) to.value.at(page, h, slot)[c] = round_to<E>(component(id, part::value, layer, h, c));
      }
    }
  }

  /// Forgets the tokens behind the first n.
  void cut(table& pages, std::int64_t n) {
    for (; static_cast<std::int64_t>(pages.size()) > (n + shape_.tokens - 1) / shape_.tokens; pages.pop_back()) release(pages.back());
    if (n % shape_.tokens == 0 || users_[at(pages.back())] > 1) return;
    for (int layer = 0; layer < geometry_.layers; ++layer) {
      const row_view<E> rows = writable(layer);
      for (int h = 0; h < geometry_.kv_heads; ++h) {
        for (std::int64_t slot = n % shape_.tokens; slot < shape_.tokens; ++slot) {
          std::fill_n(rows.key.at(pages.back(), h, slot), shape_.key_dim, round_to<E>(quiet_nan));
          std::fill_n(rows.value.at(pages.back(), h, slot), shape_.value_dim, round_to<E>(quiet_nan));
        }
      }
    }
  }

  table fork(const table& pages, std::int64_t n) {
    table result = pages;
    for (const std::int32_t page : result) ++users_[at(page)];
    cut(result, n);
    return result;
  }

  /// Gives every page another id, and moves its rows to another place: what `rows` returned before points nowhere.
  void move_all(std::span<table* const> tables) {
    std::vector<std::int32_t> to(users_.size());
    std::iota(to.begin(), to.end(), 0);
    std::shuffle(to.begin(), to.end(), random_);
    const engine_pages from = *this;
    for (std::int32_t page = 0; page < size(); ++page) {
      users_[at(to[at(page)])] = from.users_[at(page)];
      for (std::size_t a = 0; a < arrays_.size(); ++a) {
        for (int layer = 0; layer < geometry_.layers; ++layer)
          std::copy_n(from.arrays_[a].page(from, layer, page), arrays_[a].elements, arrays_[a].page(*this, layer, to[at(page)]));
      }
    }
    for (block& b : arrays_) std::vector<E>(b.data).swap(b.data);
    for (table* const pages : tables) {
      for (std::int32_t& page : *pages) page = to[at(page)];
    }
  }

  std::int64_t used() const { return size() - std::count(users_.begin(), users_.end(), 0); }

 private:
  /// One array (layers, pages, elements of a page).
  struct block {
    std::int64_t elements;
    std::vector<E> data;
    const E* page(const engine_pages& of, int layer, std::int64_t p) const { return data.data() + (layer * of.size() + p) * elements; }
    E* page(const engine_pages& of, int layer, std::int64_t p) { return data.data() + (layer * of.size() + p) * elements; }
  };

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::int32_t size() const { return static_cast<std::int32_t>(users_.size()); }

  /// Any free page: a freed one as likely as one never used.
  std::int32_t acquire() {
    std::vector<std::int32_t> free;
    for (std::int32_t page = 0; page < size(); ++page) {
      if (users_[at(page)] == 0) free.push_back(page);
    }
    if (free.empty()) throw std::length_error("engine_pages: full");
    const std::int32_t page = free[random_() % free.size()];
    users_[at(page)] = 1;
    return page;
  }

  void release(std::int32_t page) {
    if (--users_[at(page)] > 0) return;
    for (block& b : arrays_) {
      for (int layer = 0; layer < geometry_.layers; ++layer) std::fill_n(b.page(*this, layer, page), b.elements, round_to<E>(quiet_nan));
    }
  }

  geometry geometry_;
  page_shape shape_;
  arrangement arrangement_;
  std::vector<block> arrays_;
  std::vector<int> users_;  // (pages)
  std::mt19937 random_;
};

}  // namespace kvx::test
