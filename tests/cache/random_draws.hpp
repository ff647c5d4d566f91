#pragma once
// What random operations on sequences draw.

#include <cstdint>
#include <iterator>
#include <random>

namespace kvx::test {

class random_draws {
 public:
  explicit random_draws(std::uint64_t seed) : random_(seed) {}

  /// One of [0, n).
  int below(std::int64_t n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  /// An element of what is not empty.
  template <class Container>
  auto any(Container& of) {
    return std::next(of.begin(), below(std::ssize(of)));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace kvx::test
