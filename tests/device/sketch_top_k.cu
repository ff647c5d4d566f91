// Selection of the k largest on the device equals a full sort with the stated tie rule, whatever the scores, for many rows a launch.

#include <kvx/core/math.hpp>
#include <kvx/sketch/cuda/top_k.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "device/device_array.cuh"

using namespace kvx;
using kvx::test::device_array;

namespace {

/// The definition: a stable sort by descending score without NaN, cut, and put in order of position.
std::vector<std::int32_t> sorted(std::span<const float> scores, std::int64_t k) {
  std::vector<std::int32_t> positions;
  for (std::size_t t = 0; t < scores.size(); ++t) {
    if (!std::isnan(scores[t])) positions.push_back(static_cast<std::int32_t>(t));
  }
  std::stable_sort(positions.begin(), positions.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  positions.resize(static_cast<std::size_t>(std::min<std::int64_t>(k, static_cast<std::int64_t>(positions.size()))));
  std::sort(positions.begin(), positions.end());
  return positions;
}

/// All rows with one k; a row is as long as it is, behind its end lies the largest score.
template <int Threads>
void check(const std::vector<std::vector<float>>& rows, std::int64_t k, std::size_t odd = 0) {
  std::size_t pitch = 0;
  for (const auto& row : rows) pitch = std::max(pitch, row.size());
  pitch += odd;
  std::vector<float> scores(std::max<std::size_t>(rows.size() * pitch, 1), infinity);
  std::vector<std::int32_t> counts;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), scores.begin() + static_cast<std::ptrdiff_t>(r * pitch));
    counts.push_back(static_cast<std::int32_t>(rows[r].size()));
  }
  const std::size_t room = std::min(pitch, static_cast<std::size_t>(k)) + 3;
  const device_array<float> on_device(scores);
  const device_array<std::int32_t> lengths(counts), positions(rows.size() * room);
  const device_array<top_k_result> results(rows.size());
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  const auto n = static_cast<std::int64_t>(rows.size());
  const tensor_view<const float, 2> view(on_device.data(), n, pitch);
  const tensor_view<std::int32_t, 2> out(positions.data(), n, room);
  if constexpr (Threads == top_k_threads) {
    top_k(exec, view, lengths.data(), k, out, results.data());
  } else {
    launch(exec, {.grid = dim3(static_cast<unsigned>(n)), .threads = Threads}, top_k_kernel<Threads>, view, lengths.data(), k, out,
           results.data());
  }
  stream.wait();
  const auto taken = positions.read();
  const auto told = results.read();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    CAPTURE(r);
    CAPTURE(k);
    const auto expected = sorted(rows[r], k);
    const auto nans = std::count_if(rows[r].begin(), rows[r].end(), [](float x) { return std::isnan(x); });
    CHECK(told[r] == top_k_result{static_cast<std::int64_t>(expected.size()), nans});
    const auto first = taken.begin() + static_cast<std::ptrdiff_t>(r * room), end = first + static_cast<std::ptrdiff_t>(expected.size());
    CHECK(std::vector<std::int32_t>(first, end) == expected);
    CHECK(std::all_of(end, first + static_cast<std::ptrdiff_t>(room), [](std::int32_t x) { return x == -1; }));
  }
}

std::vector<float> normal_scores(std::size_t n, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> scores(n);
  for (float& x : scores) x = normal(random);
  return scores;
}

std::vector<std::vector<float>> difficult_rows() {
  std::vector<std::vector<float>> rows = {{}, {3}, normal_scores(97, 1, 1), normal_scores(64, 1e30f, 2), std::vector<float>(50, 1.5f)};
  std::vector<float> zeros(40), few(200), some = normal_scores(60, 1, 4), tiny(90);
  for (std::size_t t = 0; t < zeros.size(); ++t) zeros[t] = t % 3 == 0 ? -0.0f : 0.0f;
  std::mt19937 random(3);
  for (float& x : few) x = static_cast<float>(static_cast<int>(random() % 5) - 2);
  some[0] = some[7] = quiet_nan;
  some[8] = -quiet_nan;
  some[9] = some[30] = infinity;
  some[10] = some[31] = -infinity;
  for (std::size_t t = 0; t < tiny.size(); ++t) tiny[t] = static_cast<float>(static_cast<int>(random() % 7) - 3) * 1e-45f;  // subnormal
  rows.insert(rows.end(), {zeros, few, some, tiny, std::vector<float>(20, quiet_nan), std::vector<float>(20, -infinity)});
  for (int bit = 0; bit < 31; ++bit) {  // scores that differ in one bit
    std::vector<float>& row = rows.emplace_back();
    for (std::uint32_t i = 0; i < 24; ++i) {
      const std::uint32_t bits = (0x2a55aa55u ^ (i % 2) << bit) | (i % 3 == 0 ? 0x80000000u : 0);
      float x = 0;
      std::memcpy(&x, &bits, sizeof x);
      row.push_back(x);
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("every k of few scores: ties, zeros of both signs, NaN, infinities, subnormal numbers, single bits") {
  const auto rows = difficult_rows();
  for (std::int64_t k = 0; k <= 25; ++k) check<64>(rows, k, static_cast<std::size_t>(k % 4));
  for (const std::int64_t k : {39, 40, 49, 50, 51, 57, 60, 89, 90, 97, 199, 200, 201, 4096}) check<64>(rows, k);
}

TEST_CASE("every number of scores around a block's turns, rows that begin anywhere") {
  std::vector<std::vector<float>> rows;
  for (const std::size_t n : {127u, 128u, 129u, 255u, 256u, 257u, 511u, 512u, 513u, 1030u}) {
    rows.push_back(normal_scores(n, 1, static_cast<unsigned>(n)));
    for (float& x : rows.back()) x = std::round(x * 8) / 8;  // many ties
  }
  for (const std::int64_t k : {1, 5, 64, 128, 300, 1029}) {
    for (const std::size_t odd : {0u, 1u, 2u, 3u}) check<64>(rows, k, odd);
    check<128>(rows, k, 1);
  }
}

TEST_CASE("long rows: probabilities over decades, ascending, descending, near the largest float, one value") {
  std::vector<std::vector<float>> rows;
  std::vector<float> scores = normal_scores(12'000, 4, 5);
  for (float& x : scores) x = std::exp(x - 12);
  rows.push_back(scores);
  std::sort(scores.begin(), scores.end());
  rows.push_back(scores);
  std::reverse(scores.begin(), scores.end());
  rows.push_back(scores);
  for (float& x : scores) x = std::min(largest_float, x * 1e38f);
  rows.push_back(scores);
  rows.push_back(std::vector<float>(9'001, 2.0f));
  for (const std::int64_t k : {1, 512, 4'096, 5'000, 11'999}) check<top_k_threads>(rows, k);
}

TEST_CASE("without counts every row is whole; no rows; misuse is refused") {
  const device_array<float> scores(normal_scores(300, 1, 9));
  const device_array<std::int32_t> positions(30);
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  const tensor_view<const float, 2> view(scores.data(), 3, 100);
  top_k(exec, view, nullptr, 10, tensor_view<std::int32_t, 2>(positions.data(), 3, 10), nullptr);
  stream.wait();
  const auto taken = positions.read(), host = sorted(std::span<const float>(normal_scores(300, 1, 9)).subspan(200), 10);
  CHECK(std::equal(host.begin(), host.end(), taken.begin() + 20));
  CHECK_NOTHROW(top_k(exec, tensor_view<const float, 2>(scores.data(), 0, 100), nullptr, 10,
                      tensor_view<std::int32_t, 2>(positions.data(), 0, 10), nullptr));
  CHECK_THROWS_AS(top_k(exec, view, nullptr, -1, tensor_view<std::int32_t, 2>(positions.data(), 3, 10), nullptr), usage_error);
  CHECK_THROWS_AS(top_k(exec, view, nullptr, 11, tensor_view<std::int32_t, 2>(positions.data(), 3, 10), nullptr), usage_error);
  CHECK_THROWS_AS(top_k(exec, view, nullptr, 10, tensor_view<std::int32_t, 2>(positions.data(), 2, 10), nullptr), usage_error);
}
