// Alphabets: every slot has its symbol, encoder and decoder agree on it, and those of scales are what a density says.

#include <support/rans.hpp>

#include <kvx/codec/scale_tables.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

const scale_tables& tables() {
  static const scale_tables t;
  return t;
}

}  // namespace

TEST_CASE("every alphabet holds its symbols as often as it says, and encoder and decoder agree on the slots") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::uint64_t weights[alphabet_size];
    for (auto& w : weights) w = round % 3 == 0 ? (random() % 4 == 0 ? random() : 0) : std::uint64_t{random()} >> random() % 32;
    const symbol_frequencies f = normalised(weights);
    CHECK(sums_to_one(f));
    const symbol_lookup t = make_lookup(f, {});
    symbol_slots slots;
    make_slots(t, slots);
    bool right = true;
    for (int s = 0; s < alphabet_size; ++s) {
      right = right && t.frequencies[s] == f.of[s];
      for (std::uint32_t place = 0; place < f.of[s]; ++place) {
        std::uint32_t x = put_symbol(t, slots, s, 5 * f.of[s] + place);
        right = right && take_symbol(t, x) == s && x == 5 * f.of[s] + place;
      }
    }
    CHECK(right);
  }
}

TEST_CASE("division by a frequency is a product: for every frequency, at both ends of every quotient's range") {
  for (std::uint32_t f = 1; f <= 4096; ++f) {
    symbol_frequencies two;
    two.of[3] = static_cast<std::uint16_t>(f);
    two.of[4] = static_cast<std::uint16_t>(4096 - f);
    const symbol_lookup t = make_lookup(two, {});
    symbol_slots slots;
    make_slots(t, slots);
    bool right = true;
    for (std::uint32_t q = 1; q < 1u << 20; q += q < 100 ? 1 : q / 3) {
      for (const std::uint32_t rest : {0u, f / 2, f - 1}) {
        std::uint32_t x = put_symbol(t, slots, 3, q * f + rest);
        right = right && x >> 12 == q && take_symbol(t, x) == 3 && x == q * f + rest;
      }
    }
    std::uint32_t x = put_symbol(t, slots, 3, (1u << 20) * f - 1);
    right = right && take_symbol(t, x) == 3 && x == (1u << 20) * f - 1;
    CHECK(right);
  }
}

TEST_CASE("the alphabets of scales: probabilities of the density, symmetric, an escape everywhere") {
  for (int i = 0; i < scale_count; ++i) {
    CAPTURE(i);
    const double scale = std::exp2((i + smallest_scale) / 8.0);
    const int raw = raw_bits_of_scale(i);
    for (int q = 0; q < shape_count; ++q) {
      const symbol_lookup& t = tables().lookup(static_cast<std::uint16_t>(q * scale_count + i));
      CHECK(t.frequencies[15] > 0);
      CHECK(t.raw_bits == raw);
      const auto above = [&](double x) {  // the mass above x
        const double u = std::fabs(x) / scale;
        const double tail = (4 - q) / 4.0 * .5 * std::erfc(u / std::sqrt(2.0)) + q / 4.0 * .5 * std::exp(-std::sqrt(2.0) * u);
        return x < 0 ? 1 - tail : tail;
      };
      const auto edge = [](double v) { return v >= 1 ? v - 77 / 256.0 : v - 1 + 77 / 256.0; };
      double worst = 0, left_out = 0;
      for (int s = 0; s < 15; ++s) {
        const double first = s * (1 << raw) + t.offset;
        const double p = above(edge(first)) - above(edge(first + (1 << raw)));
        if (t.frequencies[s] == 0) {
          left_out = std::max(left_out, p);
          continue;
        }
        if (s != 7) worst = std::max(worst, std::fabs(t.frequencies[s] / 4096.0 - p));
      }
      CHECK(worst < 2.5 / 4096);
      CHECK(left_out < 1.0 / 40000);
      if (raw == 0) {
        for (int s = 0; s < 7; ++s) CHECK(t.frequencies[s] == t.frequencies[14 - s]);
      }
    }
  }
}

TEST_CASE("levels are the centroids of their bins") {
  for (const int i : {0, 10, 24, 30, 35}) {
    const double scale = std::exp2((i + smallest_scale) / 8.0);
    for (int v = 1; v < scale_tables::levels; ++v) {
      double mass = 0, moment = 0;
      for (int p = 0; p < 4000; ++p) {
        const double x = v - 77 / 256.0 + (p + .5) / 4000;
        const double w = std::exp(-.5 * (x / scale) * (x / scale));
        mass += w;
        moment += w * x;
      }
      const double level = tables().level(static_cast<std::uint16_t>(i))[v] / 1024.0;
      CAPTURE(i);
      CAPTURE(v);
      CHECK(level >= v - 77 / 256.0);
      CHECK(level <= v + 1 - 77 / 256.0);
      if (mass / 4000 > 1e-4 * scale) CHECK(std::fabs(level - moment / mass) < .02);
    }
  }
}

TEST_CASE("the alphabets fit normal coefficients: bits over the entropy of the quantised density") {
  std::mt19937 random(12);
  std::normal_distribution<double> normal;
  for (const double scale : {.3, .5, 1.0, 2.0, 2.55, 2.9, 4.0, 5.1, 30.0}) {
    constexpr std::int32_t tokens = 100000;
    std::vector<std::int16_t> values(tokens);
    const std::uint16_t table = table_of_scale({code_of_power(static_cast<float>(scale)), 0, 0}, 0);
    double ideal = 0;
    for (std::int32_t t = 0; t < tokens; ++t) {
      const double x = scale * normal(random);
      const double n = std::floor(std::fabs(x) + 77 / 256.0);
      values[static_cast<std::size_t>(t)] = static_cast<std::int16_t>(x < 0 ? -n : n);
      const double low = n - 77 / 256.0, high = low + 1;
      const auto tail = [&](double y) { return .5 * std::erfc(y / scale / std::sqrt(2.0)); };
      ideal -= std::log2(n == 0 ? 1 - 2 * tail(high) : tail(low) - tail(high));
    }
    const double bits = cross_entropy({tables().lookups(), &table, 1}, {values.data(), 1, tokens, tokens});
    MESSAGE("scale ", scale, ": ", bits / tokens, " bits, ideal ", ideal / tokens);
    CHECK(bits < 1.01 * ideal);
  }
}
