// Attention of a decode step over semantic pages on a GPU against the bytes that it must read, and against dense attention: 131,072 tokens,
// 4 layers of 8 KV heads, 32 query heads of 128 dims, bf16, 12 pages of 16 tokens.
//
// usage: pages [<tokens>, a multiple of 4,096]
//
// Prints device_ice_vs_floor: time of a layer over that of its bytes at the bandwidth of a copy. The bytes: means and lists of the pages
// whose means are looked at, before them the codes of all means where these are not all pages (proposed_pages), keys of the pages found,
// rows of these, of the sink, and recent. Keys of pages that are looked at and not found count nothing. device_ice_vs_dense: time of the
// dense kernel over that of a layer. device_ice_tiered_…: the same in tiers, 32 rows kept and a tenth of the pages found; of all pages the
// means of values too, of those found the codes of keys and values.

#include "device_timing.cuh"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace {

using namespace kvx;

/// Prints what a layer takes by calls and in a graph, and each of its kernels there.   floor: seconds for its bytes
template <class Spec>
void time_layer(const char* name, std::span<const char* const> kernels, const device& exec, std::int64_t tokens, const attend_options& how,
                double floor) {
  const attend_options dense{.path = attend_options::route::dense};
  bench::decoding<Spec> d(exec, tokens, layer_kind::retrieve());
  bench::stopwatch watch;
  d.attend(how);
  const double direct = watch.seconds(exec.stream, 31, [&] { d.attend(how); }) / bench::layers;
  const double all = watch.seconds(exec.stream, 31, [&] { d.attend(dense); }) / bench::layers;
  const bench::captured_launches graph(exec, [&] { d.attend(how); });
  const double replayed = graph.seconds(watch, 31) / bench::layers;
  std::printf("# %s, a layer: %.1f us by calls, %.1f us in a graph, %.1f us for its bytes, %.1f us dense\n", name, direct * 1e6,
              replayed * 1e6, floor * 1e6, all * 1e6);
  double before = 0;
  for (int i = 1; i <= graph.kernels_of_layer(); ++i) {
    const double until = graph.seconds_of_first(watch, 31, i) / bench::layers;
    const auto at = static_cast<std::size_t>(i - 1);
    std::printf("%s_%s_us %.2f\n", name, at < kernels.size() ? kernels[at] : "other", (until - before) * 1e6);
    before = until;
  }
  std::printf("%s_launches_of_attend %d\n", name, graph.kernels_of_layer());
  std::printf("%s_us_per_layer %.2f\n", name, direct * 1e6);
  std::printf("%s_vs_floor %.3f\n", name, direct / floor);
  std::printf("%s_graph_vs_floor %.3f\n", name, replayed / floor);
  std::printf("%s_vs_dense %.3f\n", name, all / replayed);
}

}  // namespace

int main(int count, char** arguments) {
  if (!bench::device_is_there()) return 0;
  using spec = ice_cache<bf16, bench::dim>;
  const std::int64_t tokens = count > 1 ? std::atoll(arguments[1]) : 131072;
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const device exec{.stream = stream};
  const double bandwidth = bench::copy_bandwidth(exec);
  constexpr std::int64_t page = spec::layout_type::shape.tokens, keep = 192, few = 32;
  const std::int64_t zone = edge(spec::zones, tokens, page) - spec::zones.sink, pages = zone / page;
  const double key_mean = 2 * bench::dim, row = bench::row_bytes_of_head, near = static_cast<double>(tokens + 1 - zone);
  {
    constexpr const char* kernels[] = {"residents", "codes", "means", "pages", "attend"};
    constexpr const char* of_short[] = {"residents", "means", "pages", "attend"};
    const std::int64_t looked_at = proposed_pages(pages, keep / page);
    const double codes = looked_at < pages ? static_cast<double>(pages) * bench::dim / 2 : 0;
    const double bytes = codes + static_cast<double>(looked_at) * (key_mean + 64) + keep * key_mean + (keep + near) * row;
    const std::span<const char* const> names = looked_at < pages ? std::span<const char* const>(kernels) : of_short;
    time_layer<spec>("device_ice", names, exec, tokens, {.keep = keep}, bench::kv_heads * bytes / bandwidth);
  }
  {
    constexpr const char* kernels[] = {"residents", "means", "pages", "code_means", "rerank", "page_means", "tiers", "attend"};
    const double key_code = bench::dim / 2.0 + bench::dim / 4.0 + 1, value_code = bench::dim / 2.0 + 2;
    const double found = static_cast<double>(ceil_div(pages, std::int64_t{10}) * page);
    const double bytes = static_cast<double>(pages) * (3 * key_mean + 64) + found * (key_mean + key_code + value_code) + (few + near) * row;
    time_layer<ice_cache_tiered<bf16, bench::dim>>("device_ice_tiered", kernels, exec, tokens, {.keep = few},
                                                   bench::kv_heads * bytes / bandwidth);
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
