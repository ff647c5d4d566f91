// The consumer's other translation unit: a cache of floats, one token a step.

#include "other.hpp"

#include <vector>

float decode_floats(int tokens, float value) {
  const kvx::host exec{.threads = 2};
  other_cache cache{exec, {}, {.layers = 2, .kv_heads = 1, .query_heads = 3, .max_tokens = 200}};
  const auto sequence = cache.open(exec);
  const std::vector<float> k(24, 0.5f), v(24, value), q(3 * 24, 0.25f);  // k (N, H, D)   v (N, H, Dv)   q (N, Q, D)
  std::vector<float> out(3 * 24);                                        // out (N, Q, Dv)
  for (int t = 0; t < tokens; ++t) {
    auto step = cache.begin(exec, {{sequence, 1}});
    for (int layer = 0; layer < 2; ++layer) {
      cache.append(exec, step, layer, k.data(), v.data());
      cache.attend(exec, step, layer, q.data(), out.data());
    }
    cache.commit(exec, step);
  }
  return cache.length(sequence) == tokens ? out[0] : -1.0f;
}
