// The checksum is XXH64: published values, and no single flipped bit goes unseen.

#include <kvx/core/checksum.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <span>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

std::uint64_t of(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

}  // namespace

TEST_CASE("published values") {
  CHECK(of("") == 0xef46db3751d8e999u);
  CHECK(of("a") == 0xd24ec4f1a98c6e5bu);
  CHECK(of("abc") == 0x44bc2cf5ad770999u);
  CHECK(of("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1u);
}

TEST_CASE("every flipped bit, every truncation, every length up to a few rounds") {
  std::mt19937 random(1);
  for (std::size_t n = 0; n < 100; ++n) {
    std::vector<std::byte> x(n);
    for (auto& b : x) b = static_cast<std::byte>(random());
    const std::uint64_t sum = checksum(x);
    for (std::size_t i = 0; i < 8 * n; ++i) {
      x[i / 8] ^= std::byte{1} << i % 8;
      CHECK(checksum(x) != sum);
      x[i / 8] ^= std::byte{1} << i % 8;
    }
    for (std::size_t m = 0; m < n; ++m) CHECK(checksum(std::span(x).first(m)) != sum);
    std::vector<std::byte> moved(n + 1);
    std::copy(x.begin(), x.end(), moved.begin() + 1);
    CHECK(checksum(std::span(moved).subspan(1)) == sum);
  }
}
