// The inner kernels of every instruction set: conversions to the bit, exp within its bound, the choice of the set.

#include "../support/dense_case.hpp"

#include <kvx/backend/simd/convert.hpp>
#include <kvx/backend/simd/dispatch.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

/// Floats of every kind: all exponents, ties of both 16-bit types, subnormals, infinities, NaN.
std::vector<float> kinds_of_floats() {
  std::vector<float> x;
  std::mt19937 random(3);
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const std::uint32_t fraction :
         {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0x17fffu, 0x18000u, 0xfffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffffu, 0x400000u}) {
      for (const std::uint32_t sign : {0u, 1u}) x.push_back(std::bit_cast<float>(sign << 31 | exponent << 23 | fraction));
    }
    for (int i = 0; i < 8; ++i) x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random()) >> 9 | exponent << 23));
  }
  return x;
}

template <class E>
void check_conversions(const simd::kernel_table& kernels) {
  const std::vector<float> floats = kinds_of_floats();
  std::size_t wrong = 0;
  for (std::size_t n = 0, length = 1; n + length <= floats.size(); n += length, length = length % 67 + 1) {
    std::vector<E> narrow(length + 1, round_to<E>(7.0f));
    kernels.template conversions<E>().from_floats(floats.data() + n, static_cast<int>(length), narrow.data());
    wrong += !(narrow[length] == round_to<E>(7.0f));  // one more than asked for
    std::vector<float> wide(length + simd::padding);
    kernels.template conversions<E>().to_floats(narrow.data(), static_cast<int>(length), wide.data());
    for (std::size_t i = 0; i < length; ++i) {
      const E expected = round_to<E>(floats[n + i]);
      wrong += std::memcmp(&narrow[i], &expected, sizeof(E)) != 0;
      const float back = to_float(expected);
      wrong += std::bit_cast<std::uint32_t>(wide[i]) != std::bit_cast<std::uint32_t>(back);
    }
  }
  CHECK(wrong == 0);
}

template <class E, class T>
void check_convert_row() {
  const std::vector<float> floats = kinds_of_floats();
  std::vector<T> from;
  for (const float x : floats) from.push_back(round_to<T>(x));
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{511}, std::size_t{513}, from.size() - 1}) {
    std::vector<E> to(n + 1, round_to<E>(7.0f)), expected = to;
    simd::convert_row(to.data(), from.data(), static_cast<std::int64_t>(n));
    for (std::size_t i = 0; i < n; ++i) expected[i] = round_to<E>(to_float(from[i]));
    CHECK(std::memcmp(to.data(), expected.data(), to.size() * sizeof(E)) == 0);
  }
}

}  // namespace

TEST_CASE("a row of any element becomes a row of any other") {
  check_convert_row<float, float>();
  check_convert_row<float, half>();
  check_convert_row<float, bf16>();
  check_convert_row<half, float>();
  check_convert_row<half, half>();
  check_convert_row<half, bf16>();
  check_convert_row<bf16, float>();
  check_convert_row<bf16, half>();
  check_convert_row<bf16, bf16>();
}

TEST_CASE("conversions have the bits of round_to and to_float, and write nothing more") {
  for (const instruction_set set : instruction_sets()) {
    CAPTURE(name_of(set));
    check_conversions<float>(simd::kernels_of(set));
    check_conversions<half>(simd::kernels_of(set));
    check_conversions<bf16>(simd::kernels_of(set));
  }
}

TEST_CASE("the softmax of a block: exp within 2 units in the last place, a first score of 0 is the maximum") {
  for (const instruction_set set : instruction_sets()) {
    CAPTURE(name_of(set));
    double worst = 0;
    for (float x = 0; x > -90; x -= 2.9f) {
      float scores[simd::block_tokens], max = -infinity, sum = 0, factor = 0;
      for (int t = 0; t < simd::block_tokens; ++t) scores[t] = t == 0 ? 0 : x - .045f * static_cast<float>(t);
      std::vector<float> given(scores, scores + simd::block_tokens);
      simd::kernels_of(set).row_softmax(scores, 1, simd::block_tokens, 0, &max, &sum, &factor);
      CHECK(max == 0);
      for (std::size_t t = 0; t < given.size(); ++t) {
        const double exact = std::exp(static_cast<double>(given[t]));
        if (given[t] < -87.33f) {
          CHECK(scores[t] == 0);
        } else {
          const auto unit = static_cast<double>(std::nextafter(static_cast<float>(exact), infinity) - static_cast<float>(exact));
          worst = std::max(worst, std::abs(static_cast<double>(scores[t]) - exact) / unit);
        }
      }
    }
    CHECK(worst <= 2);
    CHECK(worst > 0);
  }
}

TEST_CASE("the softmax of a block in every length, a soft cap in it") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 10);
  for (const instruction_set set : instruction_sets()) {
    CAPTURE(name_of(set));
    for (int n = 1; n <= simd::block_tokens; ++n) {
      for (const float cap : {0.0f, 8.0f}) {
        float scores[simd::block_tokens], max = 3, sum = 2, factor = 0;
        for (float& s : scores) s = normal(random);
        const std::vector<float> given(scores, scores + n);
        simd::kernels_of(set).row_softmax(scores, 1, n, cap, &max, &sum, &factor);
        double expected_max = 3, expected_sum = 0;
        const auto capped = [&](float s) {
          return cap > 0 ? static_cast<double>(cap) * std::tanh(static_cast<double>(s) / static_cast<double>(cap)) : static_cast<double>(s);
        };
        for (const float s : given) expected_max = std::max(expected_max, capped(s));
        for (const float s : given) expected_sum += std::exp(capped(s) - expected_max);
        expected_sum += 2 * std::exp(3 - expected_max);
        CHECK(static_cast<double>(max) == doctest::Approx(expected_max).epsilon(1e-6));
        CHECK(static_cast<double>(sum) == doctest::Approx(expected_sum).epsilon(1e-5));
        CHECK(static_cast<double>(factor) == doctest::Approx(std::exp(3 - expected_max)).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("finite blocks and blocks that hold one NaN or infinity anywhere") {
  for (const instruction_set set : instruction_sets()) {
    for (const float spoil : {quiet_nan, infinity, -infinity}) {
      std::vector<float> x(72, 3e38f);
      CHECK(simd::kernels_of(set).all_finite(x.data(), 72));
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = spoil;
        CHECK_FALSE(simd::kernels_of(set).all_finite(x.data(), 72));
        x[i] = 0;
      }
    }
  }
}

TEST_CASE("the instruction set: what is detected, unless a lower one is asked for") {
  constexpr auto baseline = instruction_set::baseline, avx2 = instruction_set::avx2, avx512 = instruction_set::avx512;
  for (const auto detected : {baseline, avx2, avx512}) {
    for (const auto wanted : {baseline, avx2, avx512}) {
      const simd_choice c = choose_instruction_set(detected, name_of(wanted));
      CHECK(c.detected == detected);
      CHECK(c.used == std::min(wanted, detected));
      CHECK(c.refused == (wanted > detected));
    }
    for (const char* wrong : {"AVX2", "avx", "avx2 ", "3"}) {
      CHECK(choose_instruction_set(detected, wrong).used == detected);
      CHECK(choose_instruction_set(detected, wrong).refused);
    }
    for (const char* none : {static_cast<const char*>(nullptr), ""}) {
      CHECK(choose_instruction_set(detected, none).used == detected);
      CHECK_FALSE(choose_instruction_set(detected, none).refused);
    }
  }
  CHECK(simd_level().used <= simd_level().detected);
  CHECK(simd::kernels().lanes == simd::kernels_of(simd_level().used).lanes);
}
