// The code of a value is what its definition says, bit for bit, for every instruction set; and it says what the value is.

#include "../support/value_code.hpp"
#include "../support/instruction_sets.hpp"

#include <kvx/sketch/host/value_code.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr std::uint64_t seed = 12345;

template <class E>
std::vector<E> random_values(int tokens, int dim, float mean = 1) {
  std::mt19937 random(static_cast<unsigned>(tokens * 1000 + dim));
  std::normal_distribution<float> normal(mean, 1);
  std::vector<E> values;
  for (int i = 0; i < tokens * dim; ++i) values.push_back(round_to<E>(normal(random)));
  return values;
}

/// What the library makes of a page, everything else poison before.
template <int Bits, class E>
coded_values encode(const std::vector<E>& values, int dim, instruction_set set) {
  const int tokens = static_cast<int>(values.size()) / dim;
  coded_values page(Bits, dim, tokens);
  std::fill(page.codes.begin(), page.codes.end(), std::uint8_t{0xff});
  const auto encoder = make_value_encoder<E, Bits>(dim, seed, simd::encode_kernels_of(set));
  encode_values(encoder, values.data(), dim, tokens, page.columns());
  return page;
}

template <int Bits, class E>
void check_page(const std::vector<E>& values, int dim) {
  const coded_values expected = encode_values_slowly(Bits, seed, values, dim);
  for (const instruction_set set : instruction_sets()) {
    CAPTURE(dim);
    CAPTURE(name_of(set));
    CHECK(encode<Bits>(values, dim, set) == expected);
  }
}

}  // namespace

TEST_CASE("codes, scales and means are those of the definition: every dim to 130, those of models, pages of 16, 64 and 256") {
  std::vector<int> dims = {192, 256, 512, 576};
  for (int d = 1; d <= 130; ++d) dims.push_back(d);
  for (const int dim : dims) {
    check_page<4>(random_values<bf16>(16, dim), dim);
    check_page<2>(random_values<float>(16, dim), dim);
    if (dim % 16 != 0) continue;
    check_page<0>(random_values<half>(64, dim), dim);
    check_page<4>(random_values<float>(256, dim), dim);
  }
}

TEST_CASE("values that are not finite have scale NaN and change no other") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    auto values = random_values<float>(64, 80);
    values[5 * 80 + 79] = bad;
    values[63 * 80] = bad;
    check_page<4>(values, 80);
    check_page<2>(values, 80);
    const coded_values page = encode<4>(values, 80, instruction_set::baseline);
    for (std::size_t t = 0; t < 64; ++t) CHECK(is_nan(to_float(page.scales[t])) == (t == 5 || t == 63));
  }
  check_page<4>(std::vector<float>(64 * 48, std::numeric_limits<float>::quiet_NaN()), 48);
  auto far = random_values<float>(64, 48);
  far[17] = 0x1p70f;  // takes the mean with it, and that is too far from every value
  check_page<4>(far, 48);
}

TEST_CASE("a constant page is its mean and nothing else") {
  const std::vector<bf16> values(64 * 72, round_to<bf16>(-3.25f));
  const coded_values page = encode<4>(values, 72, simd_level().detected);
  for (const bf16 m : page.means) CHECK(to_float(m) == -3.25f);
  for (const half s : page.scales) CHECK(to_float(s) == 0);
  check_page<4>(values, 72);
}

TEST_CASE("what a code says along its value is the value, and the error is that of a Gaussian's best levels") {
  // Of the normal distribution, 4 bits lose .0095 of the energy, 2 bits .1175 (Max 1960); without bias a little more.
  const auto check = [](auto bits, double most) {
    constexpr int B = decltype(bits)::value, dim = 128, tokens = 64;
    const auto values = random_values<float>(tokens, dim, 0);
    const coded_values page = encode<B>(values, dim, simd_level().detected);
    double energy = 0, error = 0, along = 0;
    for (int t = 0; t < tokens; ++t) {
      const auto v = decoded_value<B>(page.codes.data() + t * value_row_bytes(B, dim), page.scales[static_cast<std::size_t>(t)], dim, seed);
      for (int d = 0; d < dim; ++d) {
        const auto i = static_cast<std::size_t>(d);
        const double x = static_cast<double>(values[static_cast<std::size_t>(t * dim + d)]) - static_cast<double>(to_float(page.means[i]));
        energy += x * x;
        error += (v[i] - x) * (v[i] - x);
        along += v[i] * x;
      }
    }
    CHECK(error / energy < most);
    CHECK(std::abs(along / energy - 1) < .003);
  };
  check(std::integral_constant<int, 4>{}, .0125);
  check(std::integral_constant<int, 2>{}, .145);
}
