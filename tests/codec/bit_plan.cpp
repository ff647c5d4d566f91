// The bit plan equals exhaustive search on small cases, and its errors are those of quantising.

#include <kvx/codec/bit_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <vector>

using namespace kvx;

namespace {

/// The least error of all plans within a budget, each looked at.
double exhaustive(std::int64_t components, std::int64_t budget, const plan_choices& choices,
                  const std::function<double(std::int64_t, std::int64_t, std::int32_t)>& error) {
  if (components == 0) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const std::int32_t size : choices.sizes) {
    for (const std::int32_t bits : choices.widths) {
      const bit_run run{size, bits};
      if (size > components || bits_of(run) > budget) continue;
      least = std::min(least, exhaustive(components - size, budget - bits_of(run), choices, error) + error(components - size, size, bits));
    }
  }
  return least;
}

double error_of(const bit_plan& plan, std::int64_t components,
                const std::function<double(std::int64_t, std::int64_t, std::int32_t)>& error) {
  double sum = 0;
  std::int64_t first = 0;
  for (const bit_run& r : plan.runs) {
    sum += error(first, r.size, r.bits);
    first += r.size;
  }
  for (; first < components; ++first) sum += error(first, 1, 0);
  return sum;
}

struct matrix {
  std::int64_t components;
  std::int32_t tokens;
  std::vector<float> x;
  matrix(std::int64_t c, std::int32_t t, unsigned seed) : components(c), tokens(t) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < c; ++i) {
      for (std::int32_t j = 0; j < t; ++j) x.push_back(normal(random) * 10 / std::pow(static_cast<float>(i + 1), 1.0f));
    }
  }
  measured_run_error error() const { return {x.data(), tokens, tokens}; }
};

}  // namespace

TEST_CASE("the plan is the best of all plans: measured errors, every budget of small cases") {
  for (const auto& sizes : {std::vector<std::int32_t>{1, 2, 4}, {1, 3}, {1}}) {
    for (std::int64_t components = 1; components <= 7; ++components) {
      const matrix m(components, 5, static_cast<unsigned>(components));
      const plan_choices choices{sizes, {0, 2, 4, 8}};
      for (std::int64_t budget = 0; budget <= 240; budget += 17) {
        const bit_plan plan = plan_bits(components, budget, choices, m.error());
        CAPTURE(components);
        CAPTURE(budget);
        CHECK(plan.bits_per_token() <= budget);
        CHECK(plan.components() <= components);
        CHECK((plan.runs.empty() || plan.runs.back().bits > 0));
        const double best = exhaustive(components, budget, choices, m.error());
        CHECK(error_of(plan, components, m.error()) == doctest::Approx(best).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("the plan is the best of all plans: errors at random, where long runs may beat short ones") {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::map<std::tuple<std::int64_t, std::int64_t, std::int32_t>, double> errors;
    const auto error = [&](std::int64_t first, std::int64_t size, std::int32_t bits) {
      const auto [at, fresh] = errors.try_emplace({first, size, bits}, 0);
      if (fresh) at->second = static_cast<double>(random() % 1000);
      return at->second;
    };
    const plan_choices choices{{1, 2, 5}, {0, 2, 8}};
    const std::int64_t budget = static_cast<std::int64_t>(random() % 200);
    const double best = exhaustive(6, budget, choices, error);
    const bit_plan plan = plan_bits(6, budget, choices, error);
    CHECK(plan.bits_per_token() <= budget);
    // What is left out at the end costs what its runs of no bits cost, whatever their sizes: not above the best.
    double sum = 0;
    std::int64_t first = 0;
    for (const bit_run& r : plan.runs) {
      sum += error(first, r.size, r.bits);
      first += r.size;
    }
    const auto rest = [&](std::int64_t n, const auto& self) -> double {
      if (n == 0) return 0.0;
      double least = std::numeric_limits<double>::infinity();
      for (const std::int32_t size : choices.sizes) {
        if (size <= n) least = std::min(least, error(6 - n, size, 0) + self(n - size, self));
      }
      return least;
    };
    CHECK(sum + rest(6 - first, rest) == best);
  }
}

TEST_CASE("a large plan: within budget, more bits for less error, wide runs after narrow ones") {
  const matrix m(700, 12, 3);
  double before = std::numeric_limits<double>::infinity();
  for (const double ratio : {64.0, 32.0, 16.0, 8.0, 4.0}) {
    const std::int64_t budget = plan_budget(700, ratio);
    const bit_plan plan = plan_bits(700, budget, {}, m.error());
    CHECK(plan.bits_per_token() <= budget);
    const double error = error_of(plan, 700, m.error());
    CHECK(error <= before);
    before = error;
  }
}

TEST_CASE("a run keeps its values within half a step, whatever they are") {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (const int bits : {2, 4, 8}) {
    for (const float spread : {0.0f, 1e-6f, 1.0f, 300.0f, 9000.0f}) {
      for (const float middle : {0.0f, -5.0f, 605.0f}) {
        std::vector<float> x(64);
        for (auto& v : x) v = middle + spread * normal(random);
        const auto [low, high] = std::minmax_element(x.begin(), x.end());
        const run_range range = make_range(*low, *high, bits);
        REQUIRE(is_finite(range));
        const double step = to_float(range.scale);
        // Half holds eleven bits of the shift, and of the scale, which counts once for every level.
        const double rounding =
            std::fabs(static_cast<double>(*low)) * 0x1p-11 + (static_cast<double>(*high) - *low) * 0x1p-11 + 0x1p-24 * (1 << bits);
        for (const float v : x)
          CHECK(std::fabs(static_cast<double>(value_of(level_of(v, range, bits), range)) - v) <= step / 2 + 2 * rounding);
      }
    }
  }
}

TEST_CASE("misuse") {
  const auto error = [](std::int64_t, std::int64_t, std::int32_t) { return 0.0; };
  CHECK_THROWS_AS(plan_bits(0, 10, {}, error), usage_error);
  CHECK_THROWS_AS(plan_bits(3, -1, {}, error), usage_error);
  CHECK_THROWS_AS(plan_bits(3, 10, {{2}, {0, 2}}, error), usage_error);
  CHECK_THROWS_AS(plan_bits(3, 10, {{1}, {2}}, error), usage_error);
}
