// Prints how far each cache's attention is from exact attention, over a recorded trace of a model's queries, keys and values.
//
// usage: trace TRACE.kvxtrace     prints "name value"; lines that begin with # say under which conditions
//
// trace_error_<cache>: |out - exact| / |exact|; trace_mass_<cache>: share of exact attention on the rows that the cache attends to. Means
// over layers, queries and heads; caches and their settings are the decode loop's, keep 256.

#include <replay.hpp>
#include <trace.hpp>

#include <array>
#include <cstdio>
#include <exception>
#include <string>

namespace {

void run(const std::string& path) {
  using namespace decode_loop;
  const std::array<const cache_choice*, 3> caches = {find_cache("full"), find_cache("full-half"), find_cache("window")};
  const std::array<const char*, 3> names = {"full_bf16", "full_half", "window"};
  trace_reader trace(path);
  const trace_shape& s = trace.shape();
  std::printf("# %u layers from layer %u, %llu tokens, %llu queries of %u heads\n", s.layers, s.first_layer,
              static_cast<unsigned long long>(s.tokens), static_cast<unsigned long long>(s.queries), s.query_heads);
  const auto measured = replay_layers(trace, kvx::host{}, caches, 256);
  for (std::size_t c = 0; c < caches.size(); ++c) {
    double error = 0, mass = 0;
    for (const replayed& r : measured) {
      if (r.cache != caches[c]->name) continue;
      error += r.error / s.layers;
      mass += r.mass / s.layers;
    }
    std::printf("trace_error_%s %.3g\ntrace_mass_%s %.5f\n", names[c], error, names[c], mass);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: trace TRACE.kvxtrace\n", stderr);
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trace: %s\n", error.what());
    return 1;
  }
}
