#pragma once
// Packing one block of tokens into semantic pages, on the host.

#include <kvx/core/bits.hpp>
#include <kvx/core/fixed_dot.hpp>
#include <kvx/core/random.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/bisection.hpp>
#include <kvx/index/block_keys.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/query_metric.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace kvx {

/// Where a packing keeps its numbers.
///
/// asked       (block, pitch) the rows in the query metric
/// values      (block) double; steps (block) float; sums (pitch) double; direction (pitch) float
struct packing_parts {
  float* asked;
  double* values;
  double* sums;
  float* steps;
  float* direction;

  packing_parts(scratch_parts& s, std::int64_t block, int dim) {
    const std::int64_t pitch = block_key_pitch(dim);
    asked = s.take<float>(block * pitch);
    values = s.take<double>(block);
    sums = s.take<double>(pitch);
    steps = s.take<float>(block);
    direction = s.take<float>(pitch);
  }
};

namespace host_packing {

/// One packing of one block. `order` becomes the tokens of page 0, of page 1, ...
class packer {
 public:
  packer(const dci_shape& shape, const block_keys& keys, const block_keys& asked, int page_tokens, const packing_parts& parts,
         std::int32_t* order)
      : shape_(shape), keys_(keys), asked_(asked), page_tokens_(page_tokens), at_(parts), order_(order) {
    std::iota(order_, order_ + keys_.n, 0);
  }

  void bisect() { bisect(0, keys_.n, static_cast<int>(ceil_div(keys_.n, page_tokens_))); }

  /// Page after page: the first token that is left, and those nearest to it.
  void gather_nearest() {
    for (int first = 0; first + page_tokens_ < keys_.n; first += page_tokens_) {
      const float* const seed = asked_.row(order_[first]);
      for (int i = first; i < keys_.n; ++i) {
        const std::int32_t t = order_[i];
        // |x - s|^2 less |s|^2: twice a float's product is exact
        at_.values[t] = fixed_dot(keys_.row(t), asked_.row(t), keys_.dim) - 2 * fixed_dot(keys_.row(t), seed, keys_.dim);
      }
      split(first + 1, first + page_tokens_, keys_.n);
    }
  }

  /// Cell after cell, by the value along one random direction inside of a cell.   parents (n)
  void project(const std::int32_t* parents) {
    for (int d = 0; d < keys_.dim; ++d) at_.direction[d] = first_direction(shape_.seed, d);
    std::fill(at_.direction + keys_.dim, at_.direction + keys_.pitch, 0.0f);
    for (int t = 0; t < keys_.n; ++t) at_.values[t] = fixed_dot(asked_.row(t), at_.direction, keys_.dim);
    std::sort(order_, order_ + keys_.n, [&](std::int32_t a, std::int32_t b) {
      if (parents[a] != parents[b]) return parents[a] < parents[b];
      return before(a, b);
    });
  }

 private:
  bool before(std::int32_t a, std::int32_t b) const { return at_.values[a] != at_.values[b] ? at_.values[a] < at_.values[b] : a < b; }

  /// Puts the smallest of order [first, end) before `middle`; both parts ascending.
  void split(int first, int middle, int end) {
    std::nth_element(order_ + first, order_ + middle, order_ + end, [&](std::int32_t a, std::int32_t b) { return before(a, b); });
    std::sort(order_ + first, order_ + middle);
    std::sort(order_ + middle, order_ + end);
  }

  void bisect(int first, int end, int pages) {
    if (pages < 2) return;
    const int D = keys_.dim;
    for (int d = 0; d < D; ++d) at_.direction[d] = first_direction(shape_.seed, d);
    std::fill(at_.direction + D, at_.direction + keys_.pitch, 0.0f);
    for (int step = 0; step < power_steps; ++step) {
      project(first, end);
      double mean = 0;
      for (int i = first; i < end; ++i) mean += at_.values[order_[i]];
      mean /= end - first;
      for (int i = first; i < end; ++i) at_.steps[i] = static_cast<float>(at_.values[order_[i]] - mean);
      std::fill_n(at_.sums, keys_.pitch, 0.0);
      for (int i = first; i < end; ++i) add(asked_.row(order_[i]), static_cast<double>(at_.steps[i]));
      scale_direction(at_.sums, D, at_.direction);
    }
    project(first, end);
    const int lower = lower_pages(pages), middle = first + lower * page_tokens_;
    split(first, middle, end);
    bisect(first, middle, lower);
    bisect(middle, end, pages - lower);
  }

  void project(int first, int end) {
    for (int i = first; i < end; ++i) at_.values[order_[i]] = fixed_dot(keys_.row(order_[i]), at_.direction, keys_.dim);
  }
  void add(const float* row, double factor) {
    for (std::int64_t d = 0; d < keys_.pitch; ++d) at_.sums[d] += static_cast<double>(row[d]) * factor;
  }

  const dci_shape& shape_;
  const block_keys& keys_;
  const block_keys& asked_;
  int page_tokens_;
  const packing_parts& at_;
  std::int32_t* order_;
};

}  // namespace host_packing

/// The rows of a block in its query metric: into parts.asked, unless there is none.
///
/// cost        n D^2 products with a full metric
/// exactness   sums of products of floats in double, ascending
inline asked_keys ask_block(const block_keys& keys, const query_metric& metric, const packing_parts& parts) {
  const int D = keys.dim;
  if (metric.values == nullptr) return {keys, static_cast<double>(D)};
  const auto diagonal = [&](int d) { return static_cast<double>(metric.values[metric.full ? std::ptrdiff_t{d} * (D + 1) : d]); };
  double largest = 0, trace = 0;  // no component of a second moment is larger than the largest of its diagonal
  for (int d = 0; d < D; ++d) largest = std::max(largest, diagonal(d));
  const double factor = power_to_one(largest);
  for (int d = 0; d < D; ++d) trace += diagonal(d) * factor;
  for (int t = 0; t < keys.n; ++t) {
    const float* const x = keys.row(t);
    float* const z = parts.asked + t * keys.pitch;
    if (!metric.full) {
      for (int d = 0; d < D; ++d) z[d] = asked_component(metric.values[d], x[d], factor);
      std::fill(z + D, z + keys.pitch, 0.0f);
      continue;
    }
    std::fill_n(parts.sums, keys.pitch, 0.0);
    for (int e = 0; e < D; ++e) {  // M is symmetric: its row e
      const float* const row = metric.values + static_cast<std::ptrdiff_t>(e) * D;
      for (int d = 0; d < D; ++d) parts.sums[d] += static_cast<double>(row[d]) * static_cast<double>(x[e]);
    }
    for (std::int64_t d = 0; d < keys.pitch; ++d) z[d] = static_cast<float>(parts.sums[d] * factor);
  }
  return {{parts.asked, keys.offsets, keys.n, D, keys.pitch}, trace};
}

/// Orders the tokens of a block so that those of a page follow each other.
///
/// shapes      parents (n): read by packing::projection alone; order (n): indices of rows; page j takes order [j P, (j + 1) P)
/// cost        bisection: 2 (power_steps + 1) n D products for each halving
/// exactness   the same order everywhere: every decision is one of double sums in a fixed order
/// source      bisection.hpp; projection: IceCache (arXiv 2604.10539), whose cells are cut each by itself: pages here hold the end of one
///             cell and the start of the next, so none is left part empty
inline void pack_block(const dci_shape& shape, const block_keys& keys, const block_keys& asked, const std::int32_t* parents,
                       int page_tokens, const packing_parts& parts, std::int32_t* order) {
  host_packing::packer packer(shape, keys, asked, page_tokens, parts, order);
  switch (shape.pack) {
    case dci_shape::packing::positional: break;
    case dci_shape::packing::projection: packer.project(parents); break;
    case dci_shape::packing::greedy: packer.gather_nearest(); break;
    case dci_shape::packing::bisection: packer.bisect(); break;
  }
}

}  // namespace kvx
