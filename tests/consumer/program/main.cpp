// A consumer's program: two translation units, two caches of different elements. Rows of one value attend to that value.

#include "other.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  using cache_type = kvx::cache<kvx::host, kvx::full<kvx::bf16, 64>>;
  const kvx::host exec;
  cache_type cache{exec, {}, {.layers = 1, .kv_heads = 2, .query_heads = 4, .max_tokens = 256}};
  const auto sequence = cache.open(exec);
  const std::vector<kvx::bf16> k(100 * 2 * 64, kvx::round_to<kvx::bf16>(0.5f)), v(100 * 2 * 64, kvx::round_to<kvx::bf16>(3.0f));
  const std::vector<kvx::bf16> q(100 * 4 * 64, kvx::round_to<kvx::bf16>(0.25f));
  std::vector<kvx::bf16> out(100 * 4 * 64);
  auto step = cache.begin(exec, {{sequence, 100}});
  cache.append(exec, step, 0, k.data(), v.data());
  cache.attend(exec, step, 0, q.data(), out.data());
  cache.commit(exec, step);

  const float here = kvx::to_float(out.back());
  const float there = decode_floats(130, 7.0f);
  std::printf("%d tokens, %g and %g\n", static_cast<int>(cache.length(sequence)), static_cast<double>(here), static_cast<double>(there));
  return cache.length(sequence) == 100 && std::fabs(here - 3) < 0.01f && std::fabs(there - 7) < 1e-4f ? 0 : 1;
}
