#pragma once
// How long random runs are, how many, and which: from the environment.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace kvx::test {

/// A number from the environment: KVX_TEST_OPERATIONS for slow builds, KVX_TEST_SEED for other runs.
inline int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

/// Runs of one random test, each from another seed.
inline constexpr int runs = 3;

/// The seed of a run of a test that calls itself `test`.
inline std::uint64_t seed_of(int test, int run) {
  return (static_cast<std::uint64_t>(from_environment("KVX_TEST_SEED", 0)) << 16) + static_cast<std::uint64_t>(1000 * run + test);
}

/// Operations of one run.
inline int operations() { return std::max(1, from_environment("KVX_TEST_OPERATIONS", 10000)); }

}  // namespace kvx::test
