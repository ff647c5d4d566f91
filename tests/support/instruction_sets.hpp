#pragma once
// The instruction sets that this machine can run, for tests that compare them in one process.

#include <kvx/backend/simd/level.hpp>

#include <vector>

namespace kvx::test {

inline std::vector<instruction_set> instruction_sets() {
  std::vector<instruction_set> sets;
  for (const auto s : {instruction_set::baseline, instruction_set::avx2, instruction_set::avx512}) {
    if (s <= simd_level().detected) sets.push_back(s);
  }
  return sets;
}

}  // namespace kvx::test
