// Attention of a decode step over semantic pages on a GPU against the bytes that it must read, and against dense attention: 131,072 tokens,
// 4 layers of 8 KV heads, 32 query heads of 128 dims, bf16, 12 pages of 16 tokens.
//
// usage: pages [<tokens>, a multiple of 4,096]
//
// Prints device_ice_vs_floor: time of a layer over that of its bytes at the bandwidth of a copy. The bytes: means and lists of all pages,
// keys of the pages found, rows of these, of the sink, and recent. Keys of pages that are looked at and not found count nothing.
// device_ice_vs_dense: time of the dense kernel over that of a layer.

#include "device_timing.cuh"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  using namespace kvx;
  if (!bench::device_is_there()) return 0;
  using spec = ice_cache<bf16, bench::dim>;
  const std::int64_t tokens = count > 1 ? std::atoll(arguments[1]) : 131072;
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const device exec{.stream = stream};
  const double bandwidth = bench::copy_bandwidth(exec);
  constexpr std::int64_t page = spec::layout_type::shape.tokens, keep = 192;
  const attend_options how{.keep = keep}, dense{.path = attend_options::route::dense};
  const std::int64_t zone = edge(spec::zones, tokens, page) - spec::zones.sink;
  const double means = static_cast<double>(zone / page) * (2 * bench::dim + 64), keys = keep * 2.0 * bench::dim;
  const double rows = static_cast<double>((keep + tokens + 1 - zone) * bench::row_bytes_of_head);
  const double floor = bench::kv_heads * (means + keys + rows) / bandwidth;
  {
    bench::decoding<spec> d(exec, tokens, layer_kind::retrieve());
    bench::stopwatch watch;
    d.attend(how);
    const double direct = watch.seconds(stream, 31, [&] { d.attend(how); }) / bench::layers;
    const double all = watch.seconds(stream, 31, [&] { d.attend(dense); }) / bench::layers;
    const bench::captured_launches graph(exec, [&] { d.attend(how); });
    const double replayed = graph.seconds(watch, 31) / bench::layers;
    std::printf("# a layer: %.1f us by calls, %.1f us in a graph, %.1f us for its bytes, %.1f us dense\n", direct * 1e6, replayed * 1e6,
                floor * 1e6, all * 1e6);
    constexpr const char* kernels[] = {"residents", "means", "pages", "attend"};
    double before = 0;
    for (int i = 1; i <= graph.kernels_of_layer(); ++i) {
      const double until = graph.seconds_of_first(watch, 31, i) / bench::layers;
      std::printf("device_ice_%s_us %.2f\n", i <= 4 ? kernels[i - 1] : "other", (until - before) * 1e6);
      before = until;
    }
    std::printf("device_ice_launches_of_attend %d\n", graph.kernels_of_layer());
    std::printf("device_ice_us_per_layer %.2f\n", direct * 1e6);
    std::printf("device_ice_vs_floor %.3f\n", direct / floor);
    std::printf("device_ice_graph_vs_floor %.3f\n", replayed / floor);
    std::printf("device_ice_vs_dense %.3f\n", all / replayed);
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
