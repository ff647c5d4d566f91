// Decode steps of a cache whose rows lie in a file but for the latest, against those of a resident one.
//
// usage: far_step [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Setting: D 128, 8 KV heads, 32 query heads, bf16, one layer, kvx::ice_cache with 12 pages found of 131,072 tokens, 8,192 of them near.
// The file is warm in the system's memory. Each step asks with other queries, so that pages are in slots as far as such queries share them.
//
//   far_step_vs_resident     seconds of a step / of the same step with all rows near
//   far_step_hits            far pages that were in a slot / asked for
//   far_step_memory          memory that the process holds for rows and slots / bytes of all rows

#include "../support/feed_world.hpp"
#include "../support/machine.hpp"
#include "../support/open_step.hpp"
#include "../support/timing.hpp"
#include "../support/world.hpp"

#include <kvx/kvx.hpp>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

using namespace kvx;

namespace {

constexpr int heads = bench::step_heads, group = bench::step_group, dim = bench::step_dim, asked = 16;
constexpr std::int64_t tokens = 131072, near = 8192;

template <placement Place>
using cache_type = cache<host, ice_cache<bf16, dim, dim, Place>>;

/// Bytes of memory that the process holds.
double held() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

geometry of(std::int64_t near_tokens) {
  geometry g = bench::step_geometry(tokens + 4096);
  g.near_tokens = near_tokens;
  return g;
}

/// A sequence and one token open behind it.
template <placement Place>
struct decoding {
  const host& exec;
  cache_type<Place> c;
  sequence s;
  step open;

  decoding(const host& by, std::int64_t near_tokens) : exec(by), c(by, {}, of(near_tokens)), s(c.open(by)), open(c.begin(by, {})) {
    bench::feed_world(c, exec, s, tokens);
    open = c.begin(exec, {{s, 1}});
    const std::vector<bf16> row(heads * dim, round_to<bf16>(.5f));
    c.append(exec, open, 0, row.data(), row.data());
  }
  void attend(const float* q, float* out) { c.attend(exec, open, 0, q, out, {.keep = 192}); }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  const auto print = [&](std::string_view name, double value) {
    if (name.find(filter) != std::string_view::npos) std::printf("%s %.3f\n", std::string(name).c_str(), value);
  };
  const host exec;
  const double before = held();
  decoding<placement::offload_bulk> far(exec, near);
  const double memory = held() - before - static_cast<double>(far.c.stats().column_bytes);
  decoding<placement::resident> all(exec, 0);
  std::vector<std::vector<float>> queries;
  for (int i = 0; i < asked; ++i)
    queries.push_back(bench::queries_near(all.c.view(0), all.c.pages(0, all.s).data(), tokens - 256 * i, 1, group));
  std::vector<float> near_out(heads * group * dim), far_out(near_out.size());
  int far_asked = 0, near_asked = 0, apart = 0;
  const auto t = bench::alternate({[&] { far.attend(queries[static_cast<std::size_t>(far_asked++ % asked)].data(), far_out.data()); },
                                   [&] {
                                     all.attend(queries[static_cast<std::size_t>(near_asked++ % asked)].data(), near_out.data());
                                     apart += near_out == far_out ? 0 : 1;
                                   }},
                                  61);
  const cache_stats stats = far.c.stats();
  std::printf("# %d threads: step %.3f ms, resident %.3f ms; %d of 62 outputs differ; %.1f MB a step\n", bench::cores(), t[0] * 1e3,
              t[1] * 1e3, apart, static_cast<double>(stats.far_bytes_moved) / 62 * 1e-6);
  print("far_step_vs_resident", t[0] / t[1]);
  print("far_step_hits", static_cast<double>(stats.far_hit) / static_cast<double>(stats.far_wanted));
  print("far_step_memory", memory / static_cast<double>(all.c.stats().row_bytes));
  return apart;
}
