#pragma once
// Semantic pages by their definition: one token after the other, every point looked at; and keys in pages with columns to index.

#include <support/paged_rows.hpp>

#include <kvx/backend/memory.hpp>
#include <kvx/core/fixed_dot.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/bisection.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_links.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/query_metric.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

namespace kvx::test {

/// One sequence of one layer, its columns under shuffled ids of their own.
template <class E>
class dci_world {
 public:
  dci_world(const dci_shape& shape, int page_tokens, int dim, std::int64_t tokens, std::int64_t sink = 0, int heads = 1, unsigned seed = 1)
      : shape_(shape),
        sink_(sink),
        rows_({.heads = heads, .page_tokens = page_tokens, .key_dim = dim, .value_dim = 8, .lengths = {tokens}, .seed = seed}) {
    const std::int64_t pages = tokens / page_tokens;
    column_pages_.resize(static_cast<std::size_t>(pages));
    std::iota(column_pages_.begin(), column_pages_.end(), 0);
    std::mt19937 random(seed + 1);
    std::shuffle(column_pages_.begin(), column_pages_.end(), random);
    const auto columns = dci_columns(shape, {page_tokens, dim, 8});
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::int64_t pitch = columns[c].pitch();
      memory_.emplace_back(std::pmr::new_delete_resource(), std::max<std::int64_t>(64, pitch * pages * heads));
      std::memset(memory_.back().data(), 0xff, static_cast<std::size_t>(memory_.back().size()));
      arrays_[c] = {pitch == 0 ? nullptr : memory_.back().data(), pitch, heads, pages * pitch};
    }
  }

  dci_head<E> head(int h = 0) const {
    dci_head<E> of;
    of.rows = rows_.view();
    of.members = arrays_[column_members];
    of.means = arrays_[column_member_means];
    of.links = arrays_[column_links];
    of.places = arrays_[column_places];
    of.codes = arrays_[column_mean_codes];
    of.pages = rows_.tables()[0].data();
    of.column_pages = column_pages_.data();
    of.head = h;
    of.sink = sink_;
    return of;
  }

  void set_key(std::int64_t token, int d, float x, int h = 0) { const_cast<E*>(head(h).key(token))[d] = round_to<E>(x); }

  void index(std::int64_t first, std::int64_t count, const std::vector<query_metric>& metrics = {}, int h = 0) {
    const memory_block scratch(std::pmr::new_delete_resource(),
                               index_blocks_bytes(shape_, head().rows.page_tokens, head().rows.key_dim, (first + count) * shape_.block));
    std::memset(scratch.data(), 0x7f, static_cast<std::size_t>(scratch.size()));
    index_blocks(host{}, shape_, head(h), first, count, metrics, {scratch.data(), static_cast<std::size_t>(scratch.size())});
  }

  /// All bytes of the columns.
  std::vector<std::byte> columns() const {
    std::vector<std::byte> all;
    for (const memory_block& m : memory_) all.insert(all.end(), m.data(), m.data() + m.size());
    return all;
  }

 private:
  dci_shape shape_;
  std::int64_t sink_;
  paged_rows<E> rows_;
  std::vector<std::int32_t> column_pages_;
  std::vector<memory_block> memory_;
  column_array arrays_[dci_column_count];
};

/// What the columns of a sequence should say.
struct plain_pages {
  std::vector<std::int32_t> parents;                 // (tokens)
  std::vector<float> radius;                         // (blocks)
  std::vector<float> spreads;                         // (pages)
  std::vector<std::vector<std::int32_t>> members;    // (pages): those that can be found, ascending positions
};

/// Keys as floats, zero up to whole lanes.
template <class E>
std::vector<std::vector<float>> plain_keys(const dci_head<E>& of, std::int64_t tokens) {
  std::vector<std::vector<float>> keys;
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto& key = keys.emplace_back(static_cast<std::size_t>(round_up(of.rows.key_dim, fixed_dot_lanes)));
    for (int d = 0; d < of.rows.key_dim; ++d) key[static_cast<std::size_t>(d)] = to_float(of.key(t)[d]);
  }
  return keys;
}

class plain_packing {
 public:
  plain_packing(const dci_shape& shape, int page_tokens, std::vector<std::vector<float>> keys, const query_metric& metric, int dim)
      : shape_(shape), page_tokens_(page_tokens), dim_(dim), keys_(std::move(keys)), asked_(keys_), trace_(dim) {
    if (metric.values == nullptr) return;
    double largest = 0;
    for (int d = 0; d < dim; ++d) largest = std::max(largest, static_cast<double>(metric.values[metric.full ? d * (dim + 1) : d]));
    trace_ = 0;
    for (int d = 0; d < dim; ++d) trace_ += static_cast<double>(metric.values[metric.full ? d * (dim + 1) : d]) * power_to_one(largest);
    for (std::size_t t = 0; t < keys_.size(); ++t) {
      for (int d = 0; d < dim; ++d) {
        double sum = 0;
        for (int e = metric.full ? 0 : d; e < (metric.full ? dim : d + 1); ++e)
          sum += static_cast<double>(metric.values[metric.full ? e * dim + d : d]) * static_cast<double>(key(t)[e]);
        asked_[t][static_cast<std::size_t>(d)] = static_cast<float>(sum * power_to_one(largest));
      }
    }
  }

  /// The spread of one page of rows.
  float spread(const std::vector<int>& page) const {
    const auto lanes = asked_[0].size();
    const auto mean_of = [&](const std::vector<std::vector<float>>& rows) {
      std::vector<float> mean(lanes);
      for (std::size_t d = 0; d < lanes; ++d) {
        double sum = 0;
        for (const int t : page) sum += static_cast<double>(rows[static_cast<std::size_t>(t)][d]);
        mean[d] = static_cast<float>(sum / static_cast<double>(page.size()));
      }
      return mean;
    };
    const auto mean = mean_of(keys_), asked_mean = mean_of(asked_);
    double sum = 0;
    for (const int t : page) {
      std::vector<float> x(lanes), z(lanes);
      for (std::size_t d = 0; d < lanes; ++d) {
        x[d] = key(t)[d] - mean[d];
        z[d] = asked(t)[d] - asked_mean[d];
      }
      sum += dot(x.data(), z.data());
    }
    return sum > 0 ? static_cast<float>(std::sqrt(sum / (static_cast<double>(page.size()) * trace_))) : 0.0f;
  }

  /// Pages of rows, each ascending.
  std::vector<std::vector<int>> pages(const std::vector<std::int32_t>& parents) {
    std::vector<int> all(keys_.size());
    std::iota(all.begin(), all.end(), 0);
    if (shape_.pack == dci_shape::packing::bisection) {
      halve(all);
    } else if (shape_.pack == dci_shape::packing::greedy) {
      while (!all.empty()) {
        const int seed = all.front();
        std::vector<std::pair<double, int>> by;
        for (const int t : all) {
          const double near = dot(key(t), asked(t)) - 2 * dot(key(t), asked(seed));
          by.emplace_back(t == seed ? -static_cast<double>(infinity) : near, t);
        }
        std::sort(by.begin(), by.end());
        std::vector<int> page;
        for (std::size_t i = 0; i < std::min(by.size(), static_cast<std::size_t>(page_tokens_)); ++i) page.push_back(by[i].second);
        std::sort(page.begin(), page.end());
        std::vector<int> rest;
        std::set_difference(all.begin(), all.end(), page.begin(), page.end(), std::back_inserter(rest));
        result_.push_back(page);
        all = rest;
      }
    } else {
      if (shape_.pack == dci_shape::packing::projection) {
        std::vector<float> direction(asked_.empty() ? 0 : asked_[0].size());
        for (int d = 0; d < dim_ && !direction.empty(); ++d) direction[static_cast<std::size_t>(d)] = first_direction(shape_.seed, d);
        std::vector<std::tuple<std::int32_t, double, int>> by;
        for (const int t : all) by.emplace_back(parents[static_cast<std::size_t>(t)], dot(asked(t), direction.data()), t);
        std::sort(by.begin(), by.end());
        for (std::size_t i = 0; i < by.size(); ++i) all[i] = std::get<2>(by[i]);
      }
      cut(all);
    }
    for (auto& page : result_) std::sort(page.begin(), page.end());
    std::sort(result_.begin(), result_.end());
    return result_;
  }

 private:
  template <class I>
  const float* key(I t) const {
    return keys_[static_cast<std::size_t>(t)].data();
  }
  const float* asked(int t) const { return asked_[static_cast<std::size_t>(t)].data(); }
  double dot(const float* a, const float* b) const { return fixed_dot(a, b, dim_); }

  void cut(const std::vector<int>& order) {
    for (std::size_t i = 0; i < order.size(); i += static_cast<std::size_t>(page_tokens_))
      result_.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(i),
                           order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), i + static_cast<std::size_t>(page_tokens_))));
  }

  /// Splits rows at the median of their principal direction, see bisection.hpp.
  void halve(const std::vector<int>& rows) {
    const auto pages = static_cast<int>(ceil_div(static_cast<std::int64_t>(rows.size()), page_tokens_));
    if (pages < 2) return cut(rows);
    std::vector<float> w(keys_[0].size());
    for (int d = 0; d < dim_; ++d) w[static_cast<std::size_t>(d)] = first_direction(shape_.seed, d);
    std::vector<std::pair<double, int>> by;
    for (int step = 0; step <= power_steps; ++step) {
      by.clear();
      double mean = 0;
      for (const int t : rows) {
        by.emplace_back(dot(key(t), w.data()), t);
        mean += by.back().first;
      }
      if (step == power_steps) break;
      mean /= static_cast<double>(rows.size());
      std::vector<double> sums(w.size());
      for (const auto& [y, t] : by) {
        const auto c = static_cast<double>(static_cast<float>(y - mean));
        for (int d = 0; d < dim_; ++d) sums[static_cast<std::size_t>(d)] += static_cast<double>(asked(t)[d]) * c;
      }
      double largest = 0;
      for (const double x : sums) largest = std::max(largest, std::fabs(x));
      for (std::size_t d = 0; d < w.size(); ++d) w[d] = static_cast<float>(sums[d] * power_to_one(largest));
    }
    std::sort(by.begin(), by.end());
    const auto middle = static_cast<std::size_t>(pages / 2 * page_tokens_);
    std::vector<int> halves[2];
    for (std::size_t i = 0; i < by.size(); ++i) halves[i < middle ? 0 : 1].push_back(by[i].second);
    for (auto& half : halves) {
      std::sort(half.begin(), half.end());
      halve(half);
    }
  }

  dci_shape shape_;
  int page_tokens_, dim_;
  std::vector<std::vector<float>> keys_, asked_;
  double trace_;
  std::vector<std::vector<int>> result_;
};

/// The columns of `tokens` tokens, whole blocks, by definition.
template <class E>
plain_pages plain_index(const dci_shape& shape, const dci_head<E>& of, std::int64_t tokens, const std::vector<query_metric>& metrics = {}) {
  const int P = of.rows.page_tokens, D = of.rows.key_dim;
  const auto root = [](double x) { return std::sqrt(x); };
  const auto keys = plain_keys(of, tokens);
  std::vector<double> squares;
  for (const auto& key : keys) squares.push_back(fixed_dot(key.data(), key.data(), D));
  const auto found = [&](std::int64_t t) { return t >= of.sink && can_be_found(squares[static_cast<std::size_t>(t)]); };
  plain_pages all;
  all.parents.assign(static_cast<std::size_t>(tokens), not_in_tree);
  float radius = 0;
  for (std::int64_t first = 0; first < tokens; first += shape.block) {
    const std::int64_t end = first + shape.block;
    double largest = 0;
    for (std::int64_t t = 0; t < end; ++t) largest = found(t) ? std::max(largest, squares[static_cast<std::size_t>(t)]) : largest;
    radius = sphere_radius(radius, largest, root);
    all.radius.push_back(radius);
    std::vector<std::int32_t> here, parents;
    std::vector<std::vector<float>> rows;
    for (std::int64_t t = first; t < end; ++t) {
      if (!found(t)) continue;
      std::int32_t best = no_parent;
      double most = 0;
      const auto height = [&](std::int64_t i) { return sphere_height(radius, squares[static_cast<std::size_t>(i)], root); };
      for (std::int64_t p = 0; p < end; ++p) {
        if (!found(p) || level_of(shape, p) != level_of(shape, t) + 1) continue;
        const double value =
            sphere_product(keys[static_cast<std::size_t>(t)].data(), height(t), keys[static_cast<std::size_t>(p)].data(), height(p), D);
        if (best != no_parent && !(value > most)) continue;
        best = static_cast<std::int32_t>(p);
        most = value;
      }
      all.parents[static_cast<std::size_t>(t)] = best;
      here.push_back(static_cast<std::int32_t>(t));
      parents.push_back(best);
      rows.push_back(keys[static_cast<std::size_t>(t)]);
    }
    const auto block = static_cast<std::size_t>(first / shape.block);
    plain_packing packing(shape, P, rows, metrics.empty() ? query_metric{} : metrics[block], D);
    const auto pages = packing.pages(parents);
    const std::int64_t sinks = std::clamp<std::int64_t>(of.sink - first, 0, shape.block) / P;
    for (std::int64_t j = 0; j < shape.block / P; ++j) {
      auto& members = all.members.emplace_back();
      all.spreads.push_back(0);
      if (j < sinks || j - sinks >= static_cast<std::int64_t>(pages.size())) continue;
      for (const int i : pages[static_cast<std::size_t>(j - sinks)]) members.push_back(here[static_cast<std::size_t>(i)]);
      if (keeps_means(shape)) all.spreads.back() = packing.spread(pages[static_cast<std::size_t>(j - sinks)]);
    }
  }
  return all;
}

}  // namespace kvx::test
