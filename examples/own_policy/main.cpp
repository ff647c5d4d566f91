// A cache with a policy of the program's own: which pages of a sequence could hold a key that a query is looking for?

#include "page_bounds.hpp"

#include <cstdio>
#include <random>

int main() {
  constexpr int layers = 3, dim = 32, tokens = 1024, hidden = 700;
  constexpr kvx::page_shape page{.tokens = 16, .key_dim = dim, .value_dim = dim};
  using layout = kvx::paged<float, page, kvx::zones{.sink = 4, .local = 64}>;

  kvx::host exec{};
  kvx::cache cache{exec, kvx::spec<layout, page_bounds>{}, {.layers = layers, .kv_heads = 1, .query_heads = 1, .max_tokens = tokens}};
  const kvx::sequence text = cache.open(exec);

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> k(tokens * dim), v(tokens * dim), q(dim);                                     // k, v (N, 1, D)   q (D)
  for (float& x : k) x = normal(random);
  for (float& x : v) x = normal(random);
  for (float& x : q) x = 3 * normal(random);
  for (int d = 0; d < dim; ++d) k[static_cast<std::size_t>(hidden * dim + d)] = q[static_cast<std::size_t>(d)];  // one key that answers q

  kvx::step step = cache.begin(exec, {{text, tokens}});
  for (int layer = 0; layer < layers; ++layer) cache.append(exec, step, layer, k.data(), v.data());
  cache.commit(exec, step);

  constexpr int layer = 2;  // the first that retrieves
  const kvx::column_array bounds = cache.column(layer, 0);
  const std::span<const std::int32_t> pages = cache.pages(layer, text);
  const std::int64_t indexed = kvx::edge(layout::zones, tokens, page.tokens) / page.tokens;
  std::int64_t best = 0;
  const auto bound = [&](std::int64_t p) { return upper_bound(bounds.at(pages[static_cast<std::size_t>(p)], 0), q); };
  for (std::int64_t p = 1; p < indexed; ++p) {
    if (bound(p) > bound(best)) best = p;
  }
  std::printf("%d pages indexed; the key at token %d is in page %d; the highest bound has page %d\n", static_cast<int>(indexed), hidden,
              hidden / page.tokens, static_cast<int>(best));
  return best == hidden / page.tokens ? 0 : 1;
}
