#pragma once
// How many of the keys that matter the coarse score of a sketch finds, computed key by key from the codes.

#include <kvx/sketch/host/key_code.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "support/key_code.hpp"

namespace kvx::test {

/// Share of the exact best `best_keys` keys of each query among the tenth of all keys with the largest coarse scores.
///
/// what        coarse score: norm times the sum of signs times q~, plus q.mean of the page, in double
/// shapes      keys (n, dim), n a multiple of 64; queries (count, dim); balance (dim) or null
inline double coarse_recall(const std::vector<float>& keys, const std::vector<float>& queries, int dim, std::size_t best_keys,
                            const float* balance) {
  const key_sketch s;
  constexpr int tokens = 64;
  const auto n = keys.size() / static_cast<std::size_t>(dim);
  const auto encoder = make_key_encoder<float>(s, dim);
  std::vector<coded_page> pages;
  for (std::size_t first = 0; first < n; first += tokens) {
    pages.emplace_back(s, dim, tokens);
    encode_page(encoder, keys.data() + first * static_cast<std::size_t>(dim), dim, tokens, balance, pages.back().columns());
  }
  const double kappa = std::sqrt(2 / (3.14159265358979 * dim));
  double found = 0;
  int wanted = 0;
  for (std::size_t q = 0; q < queries.size(); q += static_cast<std::size_t>(dim)) {
    const float* const query = queries.data() + q;
    std::vector<float> rotated(query, query + dim);
    if (balance != nullptr) {
      for (std::size_t d = 0; d < rotated.size(); ++d) rotated[d] /= balance[d];
    }
    rotate(rotated.data(), rotated.size(), s.seed);
    std::vector<double> exact, coarse;
    for (std::size_t t = 0; t < n; ++t) {
      const auto& page = pages[t / tokens];
      const int slot = static_cast<int>(t % tokens);
      double sum = 0, centre = 0;
      for (int d = 0; d < dim; ++d) {
        const auto i = static_cast<std::size_t>(d);
        sum += is_nonnegative(page.signs.data(), tokens, slot, d) ? rotated[i] : -rotated[i];
        centre += static_cast<double>(query[d]) * to_float(page.means[i]);
      }
      coarse.push_back(norm_of(page.norms[static_cast<std::size_t>(slot)]) * kappa * sum + centre);
      exact.push_back(std::inner_product(query, query + dim, keys.begin() + static_cast<std::ptrdiff_t>(t) * dim, 0.0));
    }
    auto sorted = coarse;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(n / 10), sorted.end(), std::greater<>());
    const double candidate = sorted[n / 10];
    sorted = exact;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(best_keys), sorted.end(), std::greater<>());
    const double best = sorted[best_keys];
    for (std::size_t t = 0; t < n; ++t) {
      if (exact[t] > best) {
        ++wanted;
        found += coarse[t] > candidate ? 1 : 0;
      }
    }
  }
  return found / wanted;
}

}  // namespace kvx::test
