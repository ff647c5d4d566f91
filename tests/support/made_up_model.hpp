#pragma once
// A model whose rows are made up: what calibration should find in them is known.

#include <kvx/calibrate/calibrator.hpp>
#include <kvx/codec/host/chain.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace kvx::test {

inline constexpr calibration_shape shape{.layers = 4, .kv_heads = 2, .key_dim = 8, .value_dim = 6};
inline constexpr std::int64_t width = 5, vocabulary = 40;

/// Rows that are a map of the token and the one before it, plus correlated noise, about a mean.
struct model {
  std::vector<float> embeddings;
  row_matrix map_k, map_v, noise_k, noise_v;

  model() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto filled = [&](std::int64_t r, std::int64_t c, float spread) {
      row_matrix m(r, c);
      for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = spread * normal(random);
      return m;
    };
    for (std::int64_t i = 0; i < vocabulary * width; ++i) embeddings.push_back(normal(random));
    map_k = filled(2 * width, shape.key_features(), 1);
    map_v = filled(2 * width, shape.value_features(), 1);
    noise_k = filled(10, shape.key_features(), .5f);
    noise_v = filled(10, shape.value_features(), .5f);
  }

  struct passage {
    std::vector<float> keys, values, embeddings;
    std::int64_t tokens = 0;
  };
  passage run(std::int64_t tokens, unsigned seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    passage p;
    p.tokens = tokens;
    row_matrix z(1, 2 * width);
    z.setZero();
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t id = static_cast<std::int64_t>(random() % vocabulary);
      z.rightCols(width) = z.leftCols(width).eval();
      normed_embedding(embeddings.data() + id * width, width, z.data());
      p.embeddings.insert(p.embeddings.end(), embeddings.begin() + id * width, embeddings.begin() + (id + 1) * width);
      row_matrix e(1, 10);
      for (Eigen::Index i = 0; i < 10; ++i) e(0, i) = normal(random) / static_cast<float>(i + 1);
      const row_matrix k = z * map_k + e * noise_k, v = z * map_v + e * noise_v;
      for (Eigen::Index i = 0; i < k.size(); ++i) p.keys.push_back(k.data()[i] + 100 * static_cast<float>(i % 2) + .01f * normal(random));
      for (Eigen::Index i = 0; i < v.size(); ++i) p.values.push_back(v.data()[i] + .01f * normal(random));
    }
    return p;
  }
};

inline void feed(calibrator& c, const model::passage& p, std::int64_t chunk, bool embeddings, int threads = 1) {
  host exec;
  exec.threads = threads;
  for (std::int64_t t = 0; t < p.tokens; t += chunk) {
    const auto n = static_cast<std::size_t>(std::min(chunk, p.tokens - t));
    const auto of = [&](const std::vector<float>& x, std::int64_t row) {
      return std::span(x).subspan(static_cast<std::size_t>(t * row), n * static_cast<std::size_t>(row));
    };
    passage_rows rows{t, p.tokens, of(p.keys, shape.key_features()), of(p.values, shape.value_features()), {}, {}};
    if (embeddings) rows.embeddings = of(p.embeddings, width);
    if (embeddings && t > 0) rows.previous = std::span(p.embeddings).subspan(static_cast<std::size_t>((t - 1) * width), width);
    c.add(exec, rows);
  }
}

inline calibration calibrated(calibration_options options, bool predictor, std::int64_t chunk = 100, calibration_report* report = nullptr,
                              std::span<const float> key_weights = {}, std::span<const float> value_weights = {}) {
  const model m;
  calibrator c(shape, std::move(options), predictor ? width : 0);
  for (unsigned i = 0; i < 8; ++i) feed(c, m.run(500, 10 + i), chunk, predictor);
  return c.finish(host{}, key_weights, value_weights, report);
}

/// Mean squared weighted error and bits a token of coding a passage's K of a span by the codec itself.
inline coded_cost code_keys(const calibration& c, std::size_t s, const model::passage& p, std::int16_t step) {
  const span_basis& b = c.keys[s];
  row_matrix rows(p.tokens, b.features());
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    gather_features(c.spans[s], p.keys.data() + t * shape.key_features(), shape.kv_heads, shape.key_dim, rows.row(t).data());
  }
  const scale_tables tables(c.rounding);
  span_model view;
  view.basis = b.view();
  view.scales = b.scales.data();
  view.tables = &tables;
  std::vector<std::byte> bytes(static_cast<std::size_t>(chunk_bound<float>(p.tokens, b.features())));
  std::int64_t used = 0;
  const tensor_view<const float, 2> in(rows.data(), p.tokens, b.features());
  REQUIRE(encode_chunk<kvtc_entropy, float>(host{}, plain_products(), {}, view, in, {}, step, bytes, used).ok());
  opened_chunk<float> opened;
  REQUIRE(open_chunk<kvtc_entropy, float>(host{}, {}, view, std::span(bytes).first(static_cast<std::size_t>(used)), p.tokens, b.features(),
                                          opened)
              .ok());
  row_matrix back(p.tokens, b.features());
  restore_rows<float>(host{}, plain_products(), view, opened, {}, 0, tensor_view<float, 2>(back.data(), p.tokens, b.features()));
  return {8 * static_cast<double>(used) / static_cast<double>(p.tokens),
          static_cast<double>((back - rows).squaredNorm()) / static_cast<double>(p.tokens)};
}

}  // namespace kvx::test
