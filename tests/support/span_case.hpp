#pragma once
// A small span with everything that a chunk needs: rows of a power-law spectrum, their basis, scales, plan and alphabets.

#include <kvx/codec/chain.hpp>
#include <kvx/codec/host/packed.hpp>
#include <kvx/codec/level_alphabets.hpp>
#include <kvx/core/tensor_view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace kvx::test {

/// heads * dim features, whose i-th principal component has the standard deviation 20 (i + 1)^-0.75, the basis being a cosine transform.
struct span_case {
  std::int64_t heads, dim, rank;
  std::vector<float> mean, weights;
  std::vector<half> basis;
  std::vector<component_scale> scales;
  bit_plan plan;
  std::vector<symbol_frequencies> frequencies;
  level_alphabets alphabets{{}, {}};

  static const scale_tables& tables() {
    static const scale_tables t;
    return t;
  }

  span_case(std::int64_t h, std::int64_t d, double ratio, bool weighted = true) : heads(h), dim(d), rank(h * d) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::int64_t f = 0; f < rank; ++f) {
      mean.push_back(3 * normal(random));
      if (weighted) weights.push_back(std::exp(.3f * normal(random)));
    }
    for (std::int64_t c = 0; c < rank; ++c) {
      for (std::int64_t f = 0; f < rank; ++f) basis.push_back(round_to<half>(static_cast<float>(row(c, f))));
      scales.push_back({code_of_power(static_cast<float>(scale(c))), 0, 0});
    }
    // A plan and its alphabets from coefficients of the same law.
    constexpr std::int32_t tokens = 96;
    std::vector<float> sample(static_cast<std::size_t>(rank * tokens));
    for (std::int64_t c = 0; c < rank; ++c) {
      for (std::int32_t t = 0; t < tokens; ++t)
        sample[static_cast<std::size_t>(c * tokens + t)] = static_cast<float>(scale(c)) * normal(random);
    }
    plan = plan_bits(rank, plan_budget(rank, ratio), {{1, 16, 64}, {0, 2, 4, 8}}, measured_run_error{sample.data(), tokens, tokens});
    std::vector<std::int16_t> levels(static_cast<std::size_t>(plan.components() * tokens));
    std::vector<run_range> ranges(static_cast<std::size_t>(plan.stored_runs() * tokens));
    const component_matrix<std::int16_t> view{levels.data(), plan.components(), tokens, tokens};
    (void)quantise(host{}, plan, {sample.data(), rank, tokens, tokens}, view, ranges);
    level_counts counts(plan);
    counts.add(view);
    frequencies = counts.frequencies();
    alphabets = level_alphabets(plan, frequencies);
  }

  double scale(std::int64_t c) const { return 20 * std::pow(static_cast<double>(c + 1), -.75); }
  double row(std::int64_t c, std::int64_t f) const {
    const auto n = static_cast<double>(rank);
    return std::sqrt((c == 0 ? 1 : 2) / n) * std::cos(3.14159265358979 * static_cast<double>(c) * (static_cast<double>(f) + .5) / n);
  }

  span_model model() const {
    span_model m;
    m.basis = {rank, rank, mean.data(), weights.empty() ? nullptr : weights.data(), basis.data()};
    m.scales = scales.data();
    m.tables = &tables();
    m.plan = &plan;
    m.levels = alphabets.model();
    return m;
  }

  /// Rows (tokens, features) of this law.
  std::vector<float> rows(std::int64_t tokens, unsigned seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::vector<float> all;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<double> x(static_cast<std::size_t>(rank));
      for (std::int64_t c = 0; c < rank; ++c) {
        const double y = scale(c) * normal(random);
        for (std::int64_t f = 0; f < rank; ++f) x[static_cast<std::size_t>(f)] += y * row(c, f);
      }
      for (std::size_t f = 0; f < x.size(); ++f) all.push_back(static_cast<float>(x[f] / (weights.empty() ? 1 : weights[f]) + mean[f]));
    }
    return all;
  }
};

}  // namespace kvx::test
