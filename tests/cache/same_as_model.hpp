#pragma once
// Whether a cache holds, and attention computes, what the model of the cache says.

#include <support/cache_model.hpp>
#include <support/checksum_index.hpp>
#include <support/token_rows.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvx::test {

/// A cache beside its model; both outlive it.
template <class Cache>
struct same_as_model {
  using Layout = typename Cache::layout;
  using E = typename Layout::element_type;
  static constexpr int D = Layout::shape.key_dim;
  static constexpr int Dv = Layout::shape.value_dim;

  /// What the cache's attention rounds a weight to before it meets a value, relative: tensor cores take weights in the rows' element.
  static constexpr double weight_rounding = [] {
    if constexpr (requires { Cache::weight_rounding; }) {
      return Cache::weight_rounding;
    } else {
      return 0.0;
    }
  }();

  const Cache& cache;
  const cache_model& model;
  const cache_plan& plan;

  same_as_model(const Cache& c, const cache_model& m, const cache_plan& p) : cache(c), model(m), plan(p) {}

  /// Every row that the sequence must have, bit for bit, and every column of the retrieval zone. Returns how many columns there were.
  std::int64_t rows(int id, sequence handle) const {
    std::int64_t columns = 0;
    const std::int64_t n = cache.length(handle);
    const auto& expected = model.sequences.at(id);
    for (int layer = 0; layer < cache.geometry().layers; ++layer) {
      const auto g = static_cast<std::size_t>(plan.group_of[static_cast<std::size_t>(layer)]);
      const auto held = cache.view(layer);
      const auto pages = cache.pages(layer, handle);
      std::int64_t wrong = static_cast<std::int64_t>(pages.size()) == ceil_div(n, held.page_tokens) ? 0 : 1000000;
      for (std::int64_t t = 0; t < n && wrong < 1000000; ++t) {
        const std::int32_t page = pages[static_cast<std::size_t>(t / held.page_tokens)];
        if ((page >= 0) != model.has(expected, g, t)) wrong += 1000;
        if (page < 0) continue;
        const token name = expected.tokens[static_cast<std::size_t>(t)];
        for (int h = 0; h < held.heads; ++h) {
          if (!same(held.key.at(page, h, t % held.page_tokens), name, part::key, layer, h, D)) ++wrong;
          if (!same(held.value.at(page, h, t % held.page_tokens), name, part::value, layer, h, Dv)) ++wrong;
        }
      }
      CAPTURE(layer);
      CHECK(wrong == 0);
      if constexpr (Cache::index::columns(Layout::shape).size() > 0) {
        if (cache.geometry().kind(layer).sees == layer_kind::attention::retrieve) columns += check_columns(layer, pages, n);
      }
    }
    return columns;
  }

  /// Attention of a step's tokens in one layer, in double over the model's rows.   out (N, Q, Dv), lse (N, Q)
  void attention(std::span<const int> entries, std::span<const token> added, int layer, float given_scale, std::span<const float> out,
                 std::span<const float> lse) const {
    const int Q = cache.geometry().query_heads, group = Q / cache.geometry().kv_heads;
    const double scale = given_scale != 0 ? static_cast<double>(given_scale) : 1 / std::sqrt(static_cast<double>(D));
    const auto g = static_cast<std::size_t>(plan.group_of[static_cast<std::size_t>(layer)]);
    std::size_t row = 0;
    int wrong = 0;
    for (const int id : entries) {
      std::vector<token> tokens = model.sequences.at(id).tokens;
      const std::size_t before = tokens.size();
      const auto step = std::find_if(model.steps.begin(), model.steps.end(), [&](const auto& s) {
        return std::any_of(s.second.entries.begin(), s.second.entries.end(), [&](const auto& e) { return e.of == id; });
      });
      for (const auto& e : step->second.entries) {
        if (e.of == id) tokens.insert(tokens.end(), e.added.begin(), e.added.end());
      }
      for (std::size_t position = before; position < tokens.size(); ++position, ++row) {
        for (int head = 0; head < Q; ++head) {
          double sum = 0;
          std::vector<double> expected(static_cast<std::size_t>(Dv)), sizes(static_cast<std::size_t>(Dv));
          for (std::size_t t = 0; t <= position; ++t) {
            if (!model.seen(g, static_cast<std::int64_t>(t), static_cast<std::int64_t>(position))) continue;
            double score = 0;
            for (int c = 0; c < D; ++c)
              score += static_cast<double>(component(added[row], part::query, layer, head, c)) *
                       static_cast<double>(to_float(round_to<E>(component(tokens[t], part::key, layer, head / group, c))));
            const double weight = std::exp(score * scale);
            sum += weight;
            for (int c = 0; c < Dv; ++c) {
              const auto v = static_cast<double>(to_float(round_to<E>(component(tokens[t], part::value, layer, head / group, c))));
              expected[static_cast<std::size_t>(c)] += weight * v;
              sizes[static_cast<std::size_t>(c)] += weight * std::abs(v);
            }
          }
          const std::size_t at = row * static_cast<std::size_t>(Q) + static_cast<std::size_t>(head);
          // Float sums of at most 160 terms; NaN is wrong too.
          const auto compare = [&](double right, float found, double rounded) {
            wrong += !(std::abs(right - static_cast<double>(found)) < 2e-5 + rounded);
          };
          for (std::size_t c = 0; c < expected.size(); ++c)
            compare(expected[c] / sum, out[at * expected.size() + c], weight_rounding * sizes[c] / sum);
          compare(std::log(sum), lse[at], 0);
        }
      }
    }
    CHECK(wrong == 0);
  }

 private:
  static bool same(const E* row, token name, part which, int layer, int head, int dim) {
    for (int c = 0; c < dim; ++c) {
      const E expected = round_to<E>(component(name, which, layer, head, c));
      if (std::memcmp(row + c, &expected, sizeof(E)) != 0) return false;
    }
    return true;
  }

  std::int64_t check_columns(int layer, std::span<const std::int32_t> pages, std::int64_t n) const {
    const auto held = cache.view(layer);
    const column_array side = cache.column(layer, 0);
    std::int64_t wrong = 0, columns = 0;
    const std::int64_t P = held.page_tokens;
    for (std::int64_t j = Layout::zones.sink / P; j < edge(Layout::zones, n, P) / P; ++j) {
      for (int h = 0; h < held.heads; ++h) {
        const std::int32_t page = pages[static_cast<std::size_t>(j)];
        const std::uint64_t expected = checksum(held, page, h);
        if (std::memcmp(side.at(page, h), &expected, sizeof(expected)) != 0) ++wrong;
        ++columns;
      }
    }
    CHECK(wrong == 0);
    return columns;
  }
};

}  // namespace kvx::test
