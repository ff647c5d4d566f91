// Products of halves on the device, and floats as two halves: float precision, whatever the shapes, pitches and addresses.

#include <kvx/transform/cuda/split_halves.cuh>
#include <kvx/transform/cuda/tiled_product.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/device_array.cuh"

using namespace kvx;
using kvx::test::device_array;

namespace {

using direction = half_product::direction;

struct product_case {
  direction way;
  std::int64_t m, n, k;
  std::int64_t more = 0;   ///< halves of a row beyond its end, which hold NaN
  std::int64_t shift = 0;  ///< halves before the first
};

/// The product against sums in double of the very halves: floats add up to within 2^-20 of the sum of magnitudes.
void check(const product_case& p) {
  CAPTURE(p.m);
  CAPTURE(p.n);
  CAPTURE(p.k);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const bool restores = p.way == direction::restore;
  const auto matrix = [&](std::int64_t rows, std::int64_t width, float scale) {
    std::vector<kvx::half> x(static_cast<std::size_t>(p.shift + rows * (width + p.more)), kvx::half{0x7e00});
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < width; ++c)
        x[static_cast<std::size_t>(p.shift + r * (width + p.more) + c)] = round_to<kvx::half>(scale * normal(random));
    }
    return x;
  };
  const std::int64_t rows = restores ? p.k : p.m, width = restores ? p.m : p.k;
  const std::int64_t b_rows = restores ? p.k : p.n, b_width = restores ? p.n : p.k;
  const auto high = matrix(rows, width, 100), low = matrix(rows, width, .05f), b = matrix(b_rows, b_width, 1);
  const device_array<kvx::half> high_there(high), low_there(low), b_there(b);
  const std::int64_t out_rows = restores ? p.m : p.n, out_width = restores ? p.n : p.m, out_pitch = out_width + 3;
  const device_array<float> out(static_cast<std::size_t>(out_rows * out_pitch));
  const test::test_stream stream;
  const half_product product = tiled_products();
  product.run(product.context, {.stream = stream.get()}, {p.way, p.m, p.n, p.k},
              {high_there.data() + p.shift, low_there.data() + p.shift, width + p.more}, b_there.data() + p.shift, b_width + p.more,
              out.data(), out_pitch);
  stream.wait();
  const auto result = out.read();
  const auto at = [&](const std::vector<kvx::half>& x, std::int64_t pitch, std::int64_t r, std::int64_t c) {
    return static_cast<double>(to_float(x[static_cast<std::size_t>(p.shift + r * pitch + c)]));
  };
  double worst = 0;
  bool untouched = true;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      double sum = 0, size = 1e-6;
      for (std::int64_t k = 0; k < p.k; ++k) {
        const std::int64_t r = restores ? k : i, c = restores ? i : k;
        const double x = at(high, width + p.more, r, c) + at(low, width + p.more, r, c);
        const double y = restores ? at(b, b_width + p.more, k, j) : at(b, b_width + p.more, j, k);
        sum += x * y;
        size += std::fabs(x * y);
      }
      const double got = static_cast<double>(result[static_cast<std::size_t>(restores ? i * out_pitch + j : j * out_pitch + i)]);
      worst = std::isnan(got) ? 1 : std::max(worst, std::fabs(got - sum) / size);
    }
  }
  for (std::int64_t r = 0; r < out_rows; ++r) {
    for (std::int64_t c = out_width; c < out_pitch; ++c)
      untouched = untouched && std::isnan(result[static_cast<std::size_t>(r * out_pitch + c)]);
  }
  CHECK(worst < 0x1p-20);
  CHECK(untouched);
}

}  // namespace

TEST_CASE("products of every kind of edge: both ways, tiles that are full and not, odd pitches and addresses") {
  for (const direction way : {direction::project, direction::restore}) {
    CAPTURE(static_cast<int>(way));
    check({way, 1, 1, 1});
    check({way, 5, 3, 0});
    check({way, 40, 24, 32, 8});
    check({way, 7, 66, 65, 7});
    check({way, 8, 8, 136, 8, 3});
    check({way, 130, 9, 16, 6});
    check({way, 9, 130, 97, 8});
  }
}

TEST_CASE("a float is a factor times two halves to 22 bits; zeros beyond the tokens; what is no number is 0") {
  constexpr std::int64_t rows = 37, tokens = 41, pitch = 45;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * pitch), quiet_nan);
  const auto scale_of = [](std::int64_t t) { return std::ldexp(1.0f, static_cast<int>(t % 9) * 20 - 80); };
  for (std::int64_t c = 0; c < rows; ++c) {
    for (std::int64_t t = 0; t < tokens; ++t) x[static_cast<std::size_t>(c * pitch + t)] = t == 4 ? 0.0f : scale_of(t) * normal(random);
  }
  x[static_cast<std::size_t>(3 * pitch + 5)] = quiet_nan;
  const device_array<float> there(x), factors(tokens);
  const std::int64_t wide = 48;
  const device_array<kvx::half> high(static_cast<std::size_t>(rows * wide)), low(static_cast<std::size_t>(rows * wide));
  const test::test_stream stream;
  split_columns({.stream = stream.get()}, there.data(), pitch, rows, tokens, {high.data(), low.data(), wide}, factors.data());
  stream.wait();
  const auto h = high.read(), l = low.read();
  const auto f = factors.read();
  bool close = true, zero = true;
  for (std::int64_t t = 0; t < wide; ++t) {
    float largest = 0;
    for (std::int64_t c = 0; c < rows && t < tokens; ++c)
      largest = std::max(largest, std::fabs(x[static_cast<std::size_t>(c * pitch + t)]));
    for (std::int64_t c = 0; c < rows; ++c) {
      const auto i = static_cast<std::size_t>(c * wide + t);
      const float value = t < tokens ? x[static_cast<std::size_t>(c * pitch + t)] : 0.0f;
      if (t >= tokens || std::isnan(value)) {
        zero = zero && h[i] == kvx::half{} && l[i] == kvx::half{};
        continue;
      }
      const double back =
          static_cast<double>(f[static_cast<std::size_t>(t)]) * (static_cast<double>(to_float(h[i])) + static_cast<double>(to_float(l[i])));
      close = close && std::fabs(back - static_cast<double>(value)) <=
                           std::fabs(static_cast<double>(value)) * 0x1p-22 + static_cast<double>(largest) * 0x1p-38;
    }
  }
  CHECK(close);
  CHECK(zero);
}
