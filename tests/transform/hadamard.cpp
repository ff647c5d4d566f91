// The Walsh-Hadamard transform is its definition for every length, and its own inverse up to the length of each block.

#include <kvx/transform/hadamard.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

TEST_CASE("every length up to 600: signed sums over blocks of powers of two, exact in integers") {
  std::mt19937 random(2);
  for (std::size_t n = 0; n <= 600; n += n < 70 ? 1 : 53) {
    CAPTURE(n);
    std::vector<std::int64_t> x(n), expected;
    for (auto& v : x) v = static_cast<std::int64_t>(random() % 2001) - 1000;
    std::vector<std::int64_t> inverse;
    for (std::size_t first = 0; first < n;) {
      const std::size_t p = std::bit_floor(n - first);
      for (std::size_t i = 0; i < p; ++i) {
        std::int64_t sum = 0;
        for (std::size_t j = 0; j < p; ++j) sum += std::popcount(i & j) % 2 != 0 ? -x[first + j] : x[first + j];
        expected.push_back(sum);
        inverse.push_back(static_cast<std::int64_t>(p) * x[first + i]);
      }
      first += p;
    }
    kvx::hadamard(x.data(), n);
    CHECK(x == expected);
    kvx::hadamard(x.data(), n);
    CHECK(x == inverse);
  }
}

TEST_CASE("floats that are whole numbers give whole numbers") {
  std::vector<float> x(96, 1);
  kvx::hadamard(x.data(), x.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == (i == 0 ? 64 : i == 64 ? 32 : 0));
}
