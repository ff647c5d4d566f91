#pragma once
// What random operations on sequences draw.

#include <cstddef>
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

  /// Does one of some things: each in so many of a hundred draws, the last in all others.
  template <std::size_t N, class... Things>
  void do_one_of(const int (&shares)[N], const Things&... things) {
    static_assert(sizeof...(Things) == N + 1);
    int dice = below(100);
    std::size_t chosen = 0, at = 0;
    while (chosen < N && dice >= shares[chosen]) dice -= shares[chosen++];
    ((at++ == chosen ? things() : void()), ...);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace kvx::test
