#pragma once
// Dense attention as it is defined: every visible key in turn, in double precision, two passes. The specification of attend_dense.

#include <kvx/attend/dense.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvx::test {

/// Reference output; rows of q that belong to no item stay NaN.
struct dense_reference {
  std::vector<double> out;  // (N, Q, Dv)
  std::vector<double> lse;  // (N, Q)
};

template <class E, class T>
dense_reference dense_attention(const row_view<const E>& rows, std::span<const attend_item> batch, const tensor_view<const T, 3>& q,
                                const dense_options& o) {
  const std::int64_t N = q.extents[0], Q = q.extents[1], D = rows.key_dim, Dv = rows.value_dim, group = Q / rows.heads;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  dense_reference r{std::vector<double>(static_cast<std::size_t>(N * Q * Dv), nan),
                    std::vector<double>(static_cast<std::size_t>(N * Q), nan)};
  const double scale = o.scale != 0 ? static_cast<double>(o.scale) : 1 / std::sqrt(static_cast<double>(D));
  for (const attend_item& item : batch) {
    for (std::int64_t i = 0; i < item.queries; ++i) {
      const std::int64_t position = item.length - item.queries + i;
      for (std::int64_t head = 0; head < Q; ++head) {
        const auto place = static_cast<std::size_t>((item.first + i) * Q + head);
        std::vector<double> logits;
        std::vector<const E*> values;
        for (std::int64_t t = 0; t <= position; ++t) {
          if (t < window_start(o, position) && t >= o.sink) continue;
          const std::int64_t page = item.pages[t / rows.page_tokens];
          const E* const k = rows.key.at(page, head / group, t % rows.page_tokens);
          double score = 0;
          for (std::int64_t d = 0; d < D; ++d) {
            score += static_cast<double>(to_float(*q.at(item.first + i, head, d))) * static_cast<double>(to_float(k[d]));
          }
          score *= scale;
          if (o.soft_cap > 0) score = static_cast<double>(o.soft_cap) * std::tanh(score / static_cast<double>(o.soft_cap));
          logits.push_back(score);
          values.push_back(rows.value.at(page, head / group, t % rows.page_tokens));
        }
        double* const out = r.out.data() + place * static_cast<std::size_t>(Dv);
        std::fill_n(out, Dv, 0.0);
        r.lse[place] = -std::numeric_limits<double>::infinity();
        if (logits.empty()) continue;
        const double max = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const double s : logits) sum += std::exp(s - max);
        for (std::size_t t = 0; t < logits.size(); ++t) {
          const double w = std::exp(logits[t] - max) / sum;
          for (std::int64_t d = 0; d < Dv; ++d) out[d] += w * static_cast<double>(to_float(values[t][d]));
        }
        r.lse[place] = max + std::log(sum);
      }
    }
  }
  return r;
}

}  // namespace kvx::test
