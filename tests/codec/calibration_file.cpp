// The calibration file: round trips, every truncation and every flipped byte refused, and what contradicts itself named.

#include <support/sample_calibration.hpp>

#include <kvx/codec/calibration_file.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace kvx;
using namespace kvx::test;

TEST_CASE("a calibration comes back as it was, with and without its optional parts") {
  for (const bool everything : {false, true}) {
    const calibration c = sample_calibration(everything);
    CHECK(check_calibration(c).ok());
    const auto bytes = write_calibration(c);
    calibration back;
    CHECK(read_calibration(bytes, back).ok());
    CHECK(back == c);
    CHECK(fingerprint(back) == fingerprint(c));
  }
  CHECK(!(fingerprint(sample_calibration(true)) == fingerprint(sample_calibration(false))));
}

TEST_CASE("every truncation, every flipped byte and bytes behind the end are refused, and nothing is changed") {
  const auto bytes = write_calibration(sample_calibration(true));
  const calibration before = sample_calibration(false);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    calibration c = before;
    CHECK_FALSE(read_calibration(std::span(bytes).first(n), c).ok());
    CHECK(c == before);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto flipped = bytes;
    flipped[i] ^= std::byte{0x10};
    calibration c = before;
    CHECK_FALSE(read_calibration(flipped, c).ok());
    CHECK(c == before);
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  calibration c;
  CHECK(read_calibration(longer, c) == status::code::corrupt);
}

TEST_CASE("damage that the checksum agrees with is found, at every byte") {
  // As an attacker would: the checksum is made anew. Whatever is read is then sound, or refused.
  const auto bytes = write_calibration(sample_calibration(true));
  std::mt19937 random(1);
  for (std::size_t i = sizeof(calibration_file_header); i < bytes.size(); ++i) {
    for (int trial = 0; trial < 2; ++trial) {
      auto changed = bytes;
      changed[i] = trial == 0 ? std::byte{0xff} : static_cast<std::byte>(random());
      mend_calibration(changed);
      calibration c;
      const status s = read_calibration(changed, c);
      CHECK((!s.ok() || check_calibration(c).ok()));
    }
  }
}

TEST_CASE("what contradicts itself is named") {
  const auto refused = [](const auto& change, const std::string& field) {
    calibration c = sample_calibration(true);
    change(c);
    const status s = check_calibration(c);
    CHECK(s == status::code::corrupt);
    CHECK(std::string(s.what).find(field) != std::string::npos);
    calibration back;
    CHECK(read_calibration(write_calibration(c), back) == s.kind);
  };
  refused([](calibration& c) { c.shape.layers = 0; }, "shape");
  refused([](calibration& c) { c.rounding = 200; }, "rounding");
  refused([](calibration& c) { c.turn_of_layer[1] = 1; }, "rotary");
  refused([](calibration& c) { c.turns[0].pairs.dims = 6; }, "rotary");
  refused([](calibration& c) { c.turns[0].base = std::numeric_limits<double>::quiet_NaN(); }, "rotary");
  refused([](calibration& c) { c.spans[0].layers[0] = 3; }, "layers");
  refused([](calibration& c) { c.spans[1].heads = 3; }, "span");
  refused([](calibration& c) { c.keys.pop_back(); }, "spans");
  refused([](calibration& c) { c.keys[0].mean[0] = infinity; }, "mean");
  refused([](calibration& c) { c.keys[0].weights[0] = 0; }, "weights");
  refused([](calibration& c) { c.values[1].basis.pop_back(); }, "basis");
  refused([](calibration& c) { c.values[1].basis[0] = half{0x7c00}; }, "finite");
  refused([](calibration& c) { c.values[1].scales[0].laplace = 5; }, "scale");
  refused([](calibration& c) { c.keys[0].plan.runs[0].size = 9; }, "plan");
  refused([](calibration& c) { c.keys[0].levels[0].of[1] = 1; }, "levels");
  refused([](calibration& c) { c.key_predictor.rank = 1; }, "predictor");
  refused([](calibration& c) { c.costs[1].log2_step = -300; }, "costs");
}

TEST_CASE("steps for a ratio, an error and a KL lie between the measured ones") {
  const calibration c = sample_calibration(true);
  CHECK(cost_at(c, -200).bits == 30);
  CHECK(static_cast<double>(cost_at(c, -250).bits) == doctest::Approx(std::sqrt(50.0 * 30)));
  CHECK(cost_at(c, -1000) == c.costs.front());
  CHECK(cost_at(c, 1000) == c.costs.back());
  const double middle = ratio_of(c, cost_at(c, -150));
  CHECK(std::abs(step_for_ratio(c, middle) + 150) <= 5);  // the ids' bits bend the line
  CHECK(step_for_rate(c, 16 / middle) == step_for_ratio(c, middle));
  CHECK_THROWS_AS(static_cast<void>(step_for_rate(c, 0)), usage_error);
  CHECK(step_for_error(c, 6) == -200);
  CHECK(step_for_error(c, 1e9) == -100);
  CHECK(step_for_kl(c, expected_kl(cost_at(c, -200))) == -200);
  CHECK_THROWS_AS(static_cast<void>(step_for_kl(sample_calibration(false), 1)), usage_error);
  CHECK_THROWS_AS(static_cast<void>(step_for_ratio(c, 0)), usage_error);
}
