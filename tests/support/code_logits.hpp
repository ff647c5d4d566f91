#pragma once
// Logits from key codes as they are defined, one coordinate at a time. The specification of rerank by rsq_ip.

#include <kvx/backend/simd/rerank_table.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/host/sign_sums.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/rerank/rsq_ip.hpp>
#include <kvx/sketch/key_code.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx::test {

/// Inner product of a whole query with the signed whole levels of one key, weighted.
inline float weighted_sum(const key_sketch& s, const whole_levels& levels, int dim, int page_tokens, int slot, const page_code<false>& code,
                          const std::vector<int>& query) {
  float lanes[simd::code_lanes_wide] = {};
  std::int64_t whole = 0;
  const std::uint8_t* const planes = code.magnitudes + std::int64_t{slot} * (s.bits - 1) * plane_bytes(dim);
  const half* const weights = code.weights + std::int64_t{slot} * weights_per_key(s, dim);
  for (int u = 0; u * 4 < dim; ++u) {
    int quad = 0;
    for (int d = 4 * u; d < 4 * u + 4 && d < dim; ++d) {
      const auto cell = static_cast<std::size_t>(cell_of(planes, s, dim, d));
      const int level = d < levels.last_from ? levels.all[cell] : levels.last[cell];
      quad += (is_nonnegative(code.signs, page_tokens, slot, d) ? level : -level) * query[static_cast<std::size_t>(d)];
    }
    whole += quad;
    if (s.weights == key_sketch::weighting::subspace) {
      float& lane = lanes[u % simd::code_lanes_wide];
      lane = std::fma(static_cast<float>(quad), to_float(weights[weight_of(s, 4 * u)]), lane);
    }
  }
  if (s.weights == key_sketch::weighting::key) return static_cast<float>(whole) * to_float(*weights);
  float group[4];
  for (int i = 0; i < 4; ++i) group[i] = (lanes[4 * i] + lanes[4 * i + 2]) + (lanes[4 * i + 1] + lanes[4 * i + 3]);
  return (group[0] + group[2]) + (group[1] + group[3]);
}

/// q.mean: float lanes of exact products, term d in lane d % 16.   query (D): 16 significant bits
inline float page_dot(const std::vector<float>& query, const bf16* mean, int dim) {
  float l[16] = {};
  for (int d = 0; d < dim; ++d) l[d % 16] += query[static_cast<std::size_t>(d)] * to_float(mean[d]);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) l[i] += l[i + step];
  }
  return l[0];
}

/// Logits (G, C).
template <int Bits, class E>
std::vector<float> code_logits(const key_sketch& s, const head_view<E>& from, const kvx::group_queries& queries,
                               std::span<const std::int32_t> ids) {
  const int D = from.rows.key_dim, P = from.rows.page_tokens;
  const whole_levels levels = whole_levels_of<Bits>(s, D);
  const float scale = queries.scale != 0 ? queries.scale : 1 / std::sqrt(static_cast<float>(D));
  std::vector<float> logits;
  for (std::int64_t g = 0; g < queries.rotated.extents[0]; ++g) {
    const query_scale q = scale_of(queries.rotated.at(g, 0), queries.rotated.strides[1], D);
    const float unit = scale * q.unit * levels.unit;
    std::vector<int> whole;
    std::vector<float> plain, page_query(static_cast<std::size_t>(sign_sum_parts::page_pitch(D)));
    for (int d = 0; d < D; ++d) whole.push_back(whole_component(*queries.rotated.at(g, d), q.inverse));
    for (int d = 0; s.centre && d < D; ++d) plain.push_back(*queries.plain.at(g, d));
    const double page_unit = s.centre ? static_cast<double>(scale) * fill_page_query(plain.data(), D, page_query.data()) : 0;
    for (const std::int32_t id : ids) {
      const page_code<false> code = code_of(from.columns, from.pages[id / P], from.head);
      const float term = s.centre ? static_cast<float>(page_unit * static_cast<double>(page_dot(page_query, code.means, D))) : 0;
      logits.push_back(multiply_add(unit, weighted_sum(s, levels, D, P, id % P, code, whole), term));
    }
  }
  return logits;
}

}  // namespace kvx::test
