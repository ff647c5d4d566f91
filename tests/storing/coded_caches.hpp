#pragma once
// Caches that are saved by a calibrated codec, and how far what comes back is off.

#include <support/feed.hpp>
#include <support/small_calibration.hpp>

#include <kvx/kvtc.hpp>
#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvx::test::coded_caches {

inline constexpr int L = 4, H = 2, D = 6, Dv = 4;
using ours = cache<host, stored_by<spec<paged<float, page_shape{.tokens = 16, .key_dim = D, .value_dim = Dv}>>, calibrated<kvtc_entropy>>>;
using paper =
    cache<host, stored_by<spec<paged<bf16, page_shape{.tokens = 16, .key_dim = D, .value_dim = Dv}>>, calibrated<kvtc_faithful<rans>>>>;

inline const geometry coded_shape{.layers = L,
                                  .kv_heads = H,
                                  .query_heads = 2,
                                  .max_tokens = 3000,
                                  .max_sequences = 4,
                                  .kinds = {layer_kind::dense(), layer_kind::window(40, 3), layer_kind::dense(), layer_kind::window(40, 3)},
                                  .rollback = 16};

/// Layers 0 and 2 in one span, 1 and 3 in one each for the two heads of 1; 3 is in none.
inline std::vector<feature_span> coded_spans() { return {{{0, 2}, 0, 2}, {{1}, 0, 1}, {{1}, 1, 1}}; }

/// Embeddings of a model of any number of tokens.
inline void embed(void* scale, std::span<const std::int32_t> ids, float* out) {
  for (const std::int32_t id : ids) {
    for (int i = 0; i < 6; ++i) *out++ = *static_cast<const float*>(scale) * component(static_cast<token>(id), part::query, 0, 0, i);
  }
}
inline float one = 1;

inline std::shared_ptr<const calibrated_model> model(std::int64_t predictor_rank = 0) {
  return std::make_shared<const calibrated_model>(small_calibration({L, H, D, Dv}, coded_spans(), predictor_rank));
}

template <class Cache>
struct composition;
template <class Backend, class Spec>
struct composition<cache<Backend, Spec>> {
  using type = Spec;
};

template <class Cache>
typename composition<Cache>::type spec_of(std::shared_ptr<const calibrated_model> m, std::int16_t log2_step = -512) {
  typename composition<Cache>::type s;
  s.codec.model = std::move(m);
  s.codec.log2_step = log2_step;
  s.codec.embeddings = {embed, &one, 6, 1 << 24};
  return s;
}

/// K or V of one token in one layer and head.
template <class Cache>
std::vector<float> row(const Cache& c, sequence s, row_part which, int layer, std::int64_t t, int head) {
  const auto rows = c.view(layer);
  const auto& array = which == row_part::key ? rows.key : rows.value;
  const auto* from = array.at(c.pages(layer, s)[static_cast<std::size_t>(t / 16)], head, t % 16);
  std::vector<float> r;
  for (int d = 0; d < (which == row_part::key ? D : Dv); ++d) r.push_back(to_float(from[d]));
  return r;
}

/// Calls f(layer, token, a's row, b's row) for all rows that both must have.
template <class Cache, class F>
void for_each_pair(const Cache& a, sequence s, const Cache& b, sequence t, const F& f) {
  const std::int64_t n = b.length(t);
  for (int layer = 0; layer < L; ++layer) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (layer % 2 == 1 && i >= 3 && i + 40 <= n) continue;
      for (const row_part which : {row_part::key, row_part::value}) {
        for (int h = 0; h < H; ++h) f(layer, i, row(a, s, which, layer, i, h), row(b, t, which, layer, i, h));
      }
    }
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Root mean square of what coded rows are off by; rows that must stay raw are compared to the bit.
template <class Cache>
double error_of(const Cache& a, sequence s, const Cache& b, sequence t, std::int64_t sinks, std::int64_t newest_from) {
  double sum = 0;
  std::int64_t count = 0, wrong = 0;
  for_each_pair(a, s, b, t, [&](int layer, std::int64_t i, const auto& x, const auto& y) {
    if (layer == 3 || i < sinks || i >= newest_from) {
      wrong += same_bits(x, y) ? 0 : 1;
      return;
    }
    for (std::size_t d = 0; d < x.size(); ++d) sum += static_cast<double>(x[d] - y[d]) * static_cast<double>(x[d] - y[d]);
    count += std::ssize(x);
  });
  CHECK(wrong == 0);
  CHECK(count > 0);
  return std::sqrt(sum / static_cast<double>(count));
}

}  // namespace kvx::test::coded_caches
