// Prints the attention time of one decode step on one core, full cache and window: attend_ms_<cache>_<context>, milliseconds.

#include <kvx/kvx.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

// The shape of SmolLM2-135M.
constexpr int layers = 30, kv_heads = 3, query_heads = 9, dim = 64;
constexpr std::int64_t chunk = 1024;
constexpr std::int64_t longest = 32768;
constexpr int repeats = 15;

using cache = kvx::cache<kvx::host, kvx::full<kvx::bf16, dim>>;

std::vector<float> random_rows(std::int64_t rows, int heads) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<std::size_t>(rows * heads * dim));
  for (float& value : x) value = normal(random);
  return x;
}

struct rows {
  std::vector<float> k = random_rows(chunk, kv_heads);                  // (chunk, H, D)
  std::vector<float> v = random_rows(chunk, kv_heads);                  // (chunk, H, D)
  std::vector<float> q = random_rows(1, query_heads);                   // (1, Q, D)
  std::vector<float> out = q;                                           // (1, Q, D)
};

/// Milliseconds of `attend` over all layers for one new token behind n: the sum of every layer's fastest of `repeats` steps, none of
/// which is committed. What else runs on the machine then hardly counts.
double attend_milliseconds(const kvx::host& exec, cache& c, kvx::sequence s, rows& r) {
  std::vector<double> fastest(layers, 1e30);                            // (L)
  for (int i = 0; i < repeats; ++i) {
    auto step = c.begin(exec, {{s, 1}});
    for (int l = 0; l < layers; ++l) {
      c.append(exec, step, l, r.k.data(), r.v.data());
      const auto start = std::chrono::steady_clock::now();
      c.attend(exec, step, l, r.q.data(), r.out.data());
      const double time = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      fastest[static_cast<std::size_t>(l)] = std::min(fastest[static_cast<std::size_t>(l)], time);
    }
  }
  return std::accumulate(fastest.begin(), fastest.end(), 0.0);
}

void measure(const kvx::host& exec, const std::string& name, std::vector<kvx::layer_kind> kinds) {
  rows r;
  cache c(exec, {},
          {.layers = layers,
           .kv_heads = kv_heads,
           .query_heads = query_heads,
           .max_tokens = longest + 1,
           .kinds = std::move(kinds),
           .max_step_tokens = chunk});
  const kvx::sequence s = c.open(exec);
  for (std::int64_t context = chunk; context <= longest; context *= 2) {
    while (c.length(s) < context) {
      auto step = c.begin(exec, {{s, chunk}});
      for (int l = 0; l < layers; ++l) c.append(exec, step, l, r.k.data(), r.v.data());
      c.commit(exec, step);
    }
    std::printf("attend_ms_%s_%lld %.4g\n", name.c_str(), static_cast<long long>(context), attend_milliseconds(exec, c, s, r));
    std::fflush(stdout);
  }
}

}  // namespace

int main() {
  const kvx::host exec{.threads = 1};
  std::vector<kvx::layer_kind> kinds(layers, kvx::layer_kind::dense());
  measure(exec, "full", kinds);
  std::fill(kinds.begin() + 2, kinds.end(), kvx::layer_kind::window(512, 4));
  measure(exec, "window", kinds);
}
