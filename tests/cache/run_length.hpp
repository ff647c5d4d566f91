#pragma once
// How long a random run is, and which: from the environment.

#include <algorithm>
#include <cstdlib>

namespace kvx::test {

/// A number from the environment: KVX_TEST_OPERATIONS for slow builds, KVX_TEST_SEED for other runs.
inline int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

/// Operations of one run.
inline int operations() { return std::max(1, from_environment("KVX_TEST_OPERATIONS", 10000)); }

}  // namespace kvx::test
