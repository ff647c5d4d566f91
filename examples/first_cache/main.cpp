// The smallest whole program: a prompt and two tokens through a KV cache.

#include <kvx/kvx.hpp>

#include <cstdio>
#include <vector>

int main() {
  constexpr int layers = 4, kv_heads = 2, query_heads = 8, dim = 64;
  kvx::host exec{.threads = 2};
  kvx::cache cache{
      exec, kvx::full<kvx::bf16, dim>{}, {.layers = layers, .kv_heads = kv_heads, .query_heads = query_heads, .max_tokens = 4096}};
  const kvx::sequence text = cache.open(exec);

  for (const int count : {100, 1, 1}) {
    const auto tokens = static_cast<std::size_t>(count);
    std::vector<float> k(tokens * kv_heads * dim, 0.5f), v(tokens * kv_heads * dim, 2.0f);    // from your model's projections
    std::vector<float> q(tokens * query_heads * dim, 1.0f), out(tokens * query_heads * dim);  // attention's input and output
    kvx::step step = cache.begin(exec, {{text, count}});
    for (int layer = 0; layer < layers; ++layer) {
      cache.append(exec, step, layer, k.data(), v.data());
      cache.attend(exec, step, layer, q.data(), out.data());
    }
    cache.commit(exec, step);
    std::printf("%3d tokens in the cache, out[0] = %g\n", static_cast<int>(cache.length(text)), static_cast<double>(out[0]));
  }
}
