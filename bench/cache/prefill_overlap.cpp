// How much of the indexing of a prompt hides behind the layers that compute.
//
// usage: prefill_overlap [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Setting: kvx::ice_cache and kvx::paris_kv, D 128, bf16, 4 KV heads, 16 query heads, four layers, a prompt of 4,096 tokens in pieces of
// 1,024. A layer's work is `append` and dense `attend` on one core; the cache's thread has the other.
//
//   prefill_overlap, prefill_overlap_paris     index time hidden / index time: what the thread worked, less what callers waited for it; of
//                                              that and of what commit indexes itself

#include "../support/timing.hpp"
#include "../support/world.hpp"

#include <kvx/kvx.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int layers = 4, heads = 4, group = 4, dim = 128;
constexpr std::int64_t prompt = 4096, piece = 1024;

/// Seconds of a prompt; overlap of the indexing where there is any.
template <class Spec>
double run(int ahead, double& overlap) {
  host exec{.threads = 1};
  exec.index_ahead = ahead;
  geometry g{.layers = layers, .kv_heads = heads, .query_heads = heads * group, .max_tokens = prompt + piece};
  g.kinds.assign(layers, layer_kind::retrieve());
  cache<host, Spec> c(exec, {}, g);
  const sequence s = c.open(exec);
  std::vector<bench::row_stream> streams;
  for (int h = 0; h < heads; ++h) streams.emplace_back(h, dim);
  std::vector<bf16> k(static_cast<std::size_t>(piece * heads * dim)), v(k.size());
  std::vector<float> q(static_cast<std::size_t>(piece * heads * group * dim), .1f), out(q.size());
  double seconds = 0, commits = 0, waited = 0;
  for (std::int64_t n = 0; n < prompt; n += piece) {
    for (std::int64_t t = 0; t < piece; ++t) {
      for (std::int64_t h = 0; h < heads; ++h)
        streams[static_cast<std::size_t>(h)].next(k.data() + (t * heads + h) * dim, v.data() + (t * heads + h) * dim);
    }
    step of = c.begin(exec, {{s, piece}});
    seconds += bench::seconds([&] {
      for (int layer = 0; layer < layers; ++layer) {
        c.append(exec, of, layer, k.data(), v.data());
        c.attend(exec, of, layer, q.data(), out.data());
      }
    });
    const double before = c.stats().index_waited_seconds, took = bench::seconds([&] { c.commit(exec, of); });
    seconds += took, commits += took, waited += c.stats().index_waited_seconds - before;
  }
  const cache_stats stats = c.stats();
  overlap = (stats.index_seconds - stats.index_waited_seconds) / (stats.index_seconds + commits - waited);
  return seconds;
}

template <class Spec>
void measure(const std::string& name) {
  double overlap = 0, none = 0;
  const double without = run<Spec>(0, none), with = run<Spec>(2, overlap);
  std::printf("# %s: prompt %.2f s, %.2f s with the index in commit\n%s %.3f\n", name.c_str(), with, without, name.c_str(), overlap);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  if (std::string_view("prefill_overlap").find(filter) != std::string_view::npos) measure<ice_cache<bf16, dim>>("prefill_overlap");
  if (std::string_view("prefill_overlap_paris").find(filter) != std::string_view::npos)
    measure<paris_kv<bf16, dim>>("prefill_overlap_paris");
  return 0;
}
