#pragma once
// What makes keys similar to those who ask: the second moment of the queries.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/transform/rope_pairs.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Tokens whose queries a metric is learned from: the newest before the end of a block, every eighth of them (p % 8 = 7), which are those
/// that policies may learn from.
inline constexpr std::int64_t metric_tokens = 1024;
KVX_HD constexpr bool metric_reads(std::int64_t position) { return position % 8 == 7; }

/// The metric of one block of one KV head.
///
/// values      E q q^T (D, D) row-major where `full`, else its diagonal (D), up to a factor; null: keys as they are
/// source      ours. The diagonal with RoPE pairs sharing their mean is what stays true as positions turn the channels of a pair into each
///             other: pages packed in it capture as much as in the full metric, and what they spread is told better (docs/icecache.md)
struct query_metric {
  const float* values = nullptr;
  bool full = false;
};

/// Sums of q q^T, or of its diagonal, whose RoPE pairs share their mean.
///
/// exactness   sums of products of floats in double, query after query: the same bits everywhere
/// errors      a query with NaN or infinity is left out
class query_moments {
 public:
  query_moments(int dim, bool full) : dim_(dim), full_(full), sums_(static_cast<std::size_t>(full ? dim * dim : dim)) {}

  void add(const float* query) {
    for (int d = 0; d < dim_; ++d) {
      if (!(query[d] - query[d] == 0)) return;
    }
    ++count_;
    for (int d = 0; d < dim_; ++d) {
      const double q = static_cast<double>(query[d]);
      if (!full_) {
        sums_[static_cast<std::size_t>(d)] += q * q;
        continue;
      }
      double* const row = sums_.data() + static_cast<std::ptrdiff_t>(d) * dim_;
      for (int e = 0; e < dim_; ++e) row[e] += q * static_cast<double>(query[e]);
    }
  }

  /// The squares of a group's queries at one position, already added up over its heads; of the diagonal alone.   energies (D)
  void add_energies(const bf16* energies) {
    for (int d = 0; d < dim_; ++d) {
      if (!(to_float(energies[d]) - to_float(energies[d]) == 0)) return;
    }
    ++count_;
    for (int d = 0; d < dim_; ++d) sums_[static_cast<std::size_t>(d)] += static_cast<double>(to_float(energies[d]));
  }

  std::int64_t count() const { return count_; }

  /// The metric: (D, D) or (D) floats. Without a query it is none.
  query_metric write(float* values, const rope_pairs& pairs = {}) const {
    if (count_ == 0) return {};
    const auto mean = [&](std::size_t i) { return sums_[i] / static_cast<double>(count_); };
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const auto partner = full_ ? i : static_cast<std::size_t>(pairs.partner(static_cast<int>(i)));
      values[i] = static_cast<float>((mean(i) + mean(partner)) / 2);
    }
    return {values, full_};
  }

 private:
  int dim_;
  bool full_;
  std::int64_t count_ = 0;
  std::vector<double> sums_;
};

}  // namespace kvx
