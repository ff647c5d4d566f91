#pragma once
// The balance of a head: the diagonal that brings the variance of the keys and the energy of the queries into the same channels.

#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/sketch/balance_channel.hpp>
#include <kvx/transform/rope_pairs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Running moments of the keys and queries of one KV head, and the balance that follows from them.
///
/// what        a_d = (E q_d^2 / Var k_d)^(1/4), with k' = a (k - c) and q' = q / a; the two channels of a RoPE pair share the means of
///             both moments, since positions turn them into each other
/// shapes      keys, queries (D)
/// exactness   sums in double in the order of the calls, products rounded: the same bits everywhere
/// cost        3 D operations a row
/// errors      usage_error: a dim below 1. Rows with NaN or infinity are left out. Channels without variance or energy count as 1e-6 of
///             the mean channel; where no query was seen, or fewer than two keys, or nothing varies, the balance is 1
/// source      ours: docs/pariskv.md; the geometric mean of Cov(k)^-1 and E q q^T, both taken as diagonal
class balance_moments {
 public:
  explicit balance_moments(int dim, call_site where = call_site::here()) : dim_(dim) {
    require(dim >= 1, "balance_moments: dim is at least 1", where);
    for (auto* sums : {&key_sums_, &key_squares_, &query_squares_}) sums->assign(static_cast<std::size_t>(dim), 0);
  }

  template <element E>
  void add_key(const E* key) {
    if (!all_finite(key)) return;
    ++keys_;
    for (std::size_t d = 0; d < key_sums_.size(); ++d) {
      const double k = to_float(key[d]);
      key_sums_[d] += k;
      key_squares_[d] += k * k;  // exact in double
    }
  }

  template <element E>
  void add_query(const E* query) {
    if (!all_finite(query)) return;
    ++queries_;
    for (std::size_t d = 0; d < query_squares_.size(); ++d) {
      const double q = to_float(query[d]);
      query_squares_[d] += q * q;
    }
  }

  /// The squares of a group's queries at one position, already added up over its heads.   energies (D)
  void add_energies(const bf16* energies) {
    if (!all_finite(energies)) return;
    ++queries_;
    for (std::size_t d = 0; d < query_squares_.size(); ++d) query_squares_[d] += static_cast<double>(to_float(energies[d]));
  }

  std::int64_t keys() const { return keys_; }
  std::int64_t queries() const { return queries_; }

  /// The balance.   a (D)
  void balance(const rope_pairs& pairs, float* a) const {
    std::fill_n(a, dim_, 1.0f);
    if (keys_ < 2 || queries_ == 0) return;
    double variances = 0, energies = 0;
    for (int d = 0; d < dim_; ++d) {
      variances += variance(d);
      energies += energy(d);
    }
    const double least_variance = least_moment(variances, dim_), least_energy = least_moment(energies, dim_);
    if (!(least_variance > 0) || !(least_energy > 0)) return;
    for (int d = 0; d < dim_; ++d) {
      const int partner = pairs.partner(d);
      a[d] = static_cast<float>(
          std::sqrt(std::sqrt(balance_ratio(energy(d), energy(partner), variance(d), variance(partner), least_energy, least_variance))));
    }
  }

  friend bool operator==(const balance_moments&, const balance_moments&) = default;

 private:
  template <element E>
  bool all_finite(const E* row) const {
    return std::all_of(row, row + dim_, [](E x) { return is_finite(to_float(x)); });
  }

  double variance(int d) const {
    return channel_variance(key_sums_[static_cast<std::size_t>(d)], key_squares_[static_cast<std::size_t>(d)], static_cast<double>(keys_));
  }
  double energy(int d) const { return query_squares_[static_cast<std::size_t>(d)] / static_cast<double>(queries_); }

  int dim_;
  std::int64_t keys_ = 0;
  std::int64_t queries_ = 0;
  std::vector<double> key_sums_;       // (D)
  std::vector<double> key_squares_;    // (D)
  std::vector<double> query_squares_;  // (D)
};

}  // namespace kvx
