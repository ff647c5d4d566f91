// Packed levels: both orders give back what went in, at the size of the plan; damage is an error or another sound set of levels.

#include <kvx/codec/host/packed.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

using namespace kvx;

namespace {

const host exec;

const std::vector<bit_plan> plans = {
    {}, {{{1, 2}}}, {{{1, 8}, {16, 4}, {64, 2}}}, {{{3, 4}, {5, 0}, {7, 2}, {1, 8}, {2, 2}}}, {{{5, 0}, {3, 8}}}, {{{64, 8}, {1, 2}}}};

struct packed_case {
  bit_plan plan;
  std::int32_t tokens;
  std::vector<float> x;
  std::vector<std::int16_t> levels;
  std::vector<run_range> ranges;

  packed_case(const bit_plan& p, std::int32_t n, unsigned seed) : plan(p), tokens(n) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    x.resize(size());
    for (auto& v : x) v = 3 * normal(random);
    levels.resize(size());
    ranges.resize(static_cast<std::size_t>(plan.stored_runs() * tokens));
  }
  std::size_t size() const { return static_cast<std::size_t>(plan.components() * tokens); }
  component_matrix<const float> coefficients() const { return {x.data(), plan.components(), tokens, tokens}; }
  component_matrix<std::int16_t> matrix(std::vector<std::int16_t>& of) const { return {of.data(), plan.components(), tokens, tokens}; }
  component_matrix<const std::int16_t> matrix() const { return {levels.data(), plan.components(), tokens, tokens}; }
};

}  // namespace

TEST_CASE("levels and ranges come back in both orders, at the size of the plan") {
  for (const bit_plan& plan : plans) {
    for (const std::int32_t tokens : {0, 1, 2, 3, 5, 8, 33}) {
      packed_case c(plan, tokens, 1);
      REQUIRE(quantise(exec, plan, c.coefficients(), c.matrix(c.levels), c.ranges).ok());
      for (const packing order : {packing::tokens, packing::components}) {
        std::vector<std::byte> out(static_cast<std::size_t>(packed_bytes(plan, tokens)));
        std::int64_t bytes = 0;
        REQUIRE(pack(exec, plan, c.matrix(), c.ranges, order, out, bytes).ok());
        CHECK(bytes == (plan.bits_per_token() * tokens + 7) / 8);
        std::vector<std::int16_t> levels(c.levels.size(), 99);
        std::vector<run_range> ranges(c.ranges.size());
        REQUIRE(unpack(exec, plan, out, order, c.matrix(levels), ranges).ok());
        CHECK(levels == c.levels);
        CHECK(ranges == c.ranges);
        if (bytes > 0) {
          const std::span<std::byte> shorter(out.data(), out.size() - 1);
          CHECK(pack(exec, plan, c.matrix(), c.ranges, order, shorter, bytes) == status::code::no_space);
          CHECK(unpack(exec, plan, shorter, order, c.matrix(levels), ranges) == status::code::truncated);
        }
        out.push_back(std::byte{0});
        CHECK(unpack(exec, plan, out, order, c.matrix(levels), ranges) == status::code::corrupt);
      }
    }
  }
}

TEST_CASE("the order of tokens to the bit: shift, scale, levels from the lowest bit on") {
  const bit_plan plan{{{2, 2}, {1, 4}}};
  const std::vector<std::int16_t> levels = {1, 2, 3, 0, 9, 15};  // (3 components, 2 tokens)
  const std::vector<run_range> ranges = {{{0x1234}, {0x5678}}, {{0x0001}, {0x0002}}, {{0x1111}, {0x2222}}, {{0x0003}, {0x0004}}};
  std::vector<std::byte> out(static_cast<std::size_t>(packed_bytes(plan, 2)));
  std::int64_t bytes = 0;
  REQUIRE(pack(exec, plan, {levels.data(), 3, 2, 2}, ranges, packing::tokens, out, bytes).ok());
  REQUIRE(bytes == 18);
  const int expected[9] = {0x34, 0x12, 0x78, 0x56, 0x1d, 0x11, 0x21, 0x22, 0x92};  // 1, 3: 0b1101 below the 1 of 0x1111, and so on
  for (std::size_t i = 0; i < 9; ++i) CHECK(std::to_integer<int>(out[i]) == expected[i]);
  REQUIRE(pack(exec, plan, {levels.data(), 3, 2, 2}, ranges, packing::components, out, bytes).ok());
  CHECK(std::to_integer<int>(out[4]) == 1);    // the range of the second token follows that of the first
  CHECK(std::to_integer<int>(out[16]) == (1 | 2 << 2 | 3 << 4 | 0 << 6));
  CHECK(std::to_integer<int>(out[17]) == (9 | 15 << 4));
}

TEST_CASE("coefficients come back within half a step; what the plan leaves out comes back as 0") {
  for (const bit_plan& plan : plans) {
    packed_case c(plan, 20, 2);
    REQUIRE(quantise(exec, plan, c.coefficients(), c.matrix(c.levels), c.ranges).ok());
    std::vector<float> back(c.x.size() + 40, -1);
    dequantise(exec, plan, c.matrix(), c.ranges, {back.data(), plan.components() + 2, 20, 20});
    std::int64_t first = 0;
    std::size_t number = 0;
    for (const bit_run& run : plan.runs) {
      for (std::int64_t i = 0; i < run.size * 20; ++i) {
        const auto at = static_cast<std::size_t>(first * 20 + i);
        if (run.bits == 0) {
          CHECK(back[at] == 0);
        } else {
          const run_range& range = c.ranges[number * 20 + static_cast<std::size_t>(i % 20)];
          CHECK(std::abs(back[at] - c.x[at]) <= to_float(range.scale) * .5f + .01f);
        }
      }
      first += run.size;
      number += run.bits > 0 ? 1 : 0;
    }
    for (std::size_t i = c.x.size(); i < back.size(); ++i) CHECK(back[i] == 0);
  }
}

TEST_CASE("rows that are no numbers or too large are refused, constant ones are kept") {
  const bit_plan plan = plans[2];
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e6f, -1e6f}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{5 * 10 + 3}, std::size_t{80 * 10 + 9}}) {
      packed_case c(plan, 10, 3);
      c.x[at] = bad;
      CHECK(quantise(exec, plan, c.coefficients(), c.matrix(c.levels), c.ranges) == status::code::unfit);
    }
  }
  packed_case c(plan, 10, 3);
  for (auto& v : c.x) v = 605;
  REQUIRE(quantise(exec, plan, c.coefficients(), c.matrix(c.levels), c.ranges).ok());
  std::vector<float> back(c.x.size());
  dequantise(exec, plan, c.matrix(), c.ranges, {back.data(), plan.components(), 10, 10});
  CHECK(back == c.x);
}

TEST_CASE("every flipped bit: an error, or levels that pack to the same bytes") {
  const bit_plan plan = plans[3];
  packed_case c(plan, 3, 4);
  REQUIRE(quantise(exec, plan, c.coefficients(), c.matrix(c.levels), c.ranges).ok());
  std::vector<std::byte> out(static_cast<std::size_t>(packed_bytes(plan, 3))), again(out.size());
  std::int64_t bytes = 0;
  REQUIRE(pack(exec, plan, c.matrix(), c.ranges, packing::components, out, bytes).ok());
  for (std::size_t i = 0; i < 8 * out.size(); ++i) {
    std::vector<std::byte> damaged = out;
    damaged[i / 8] ^= std::byte{1} << i % 8;
    const status s = unpack(exec, plan, damaged, packing::components, c.matrix(c.levels), c.ranges);
    if (!s.ok()) continue;
    REQUIRE(pack(exec, plan, c.matrix(), c.ranges, packing::components, again, bytes).ok());
    CHECK(again == damaged);
  }
}
