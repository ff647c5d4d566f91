// A consumer's program: two translation units that both include kvx.

#include "other.hpp"

#include <kvx/attend/softmax_state.hpp>

#include <cstdio>

int main() {
  kvx::softmax_state mine{.max = 1, .sum = 2};
  kvx::merge(mine, theirs());
  std::printf("%g\n", static_cast<double>(mine.sum));
  return mine.sum == 5 ? 0 : 1;
}
