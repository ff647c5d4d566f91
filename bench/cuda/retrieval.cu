// Attention of a ParisKV decode step on a GPU against the bytes that it must read: 1,048,576 tokens, 4 layers of 8 KV heads, 32 query heads
// of 128 dims, bf16, 512 tokens kept of 5 %.
//
// usage: retrieval [<tokens>, a multiple of 4,096]
//
// Prints device_retrieval_vs_floor: time of a layer over that of its bytes at the bandwidth of a copy. The bytes: signs, norms and page
// means of the zone, codes of the candidates, rows that are kept, in the sink, and recent.

#include "device_timing.cuh"

#include <array>
#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  using namespace kvx;
  using composition = paris_kv<bf16, bench::dim>;
  if (!bench::device_is_there()) return 0;
  const std::int64_t tokens = count > 1 ? std::atoll(arguments[1]) : 1048576;
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const device exec{.stream = stream};
  const double bandwidth = bench::copy_bandwidth(exec);
  {
    bench::decoding<composition> d(exec, tokens, layer_kind::retrieve());
    const attend_options how{.keep = 512, .breadth = {.fraction = .05, .per_kept = 0}};
    const std::int64_t zone = edge(composition::zones, tokens, composition::layout_type::shape.tokens) - composition::zones.sink;
    const std::int64_t candidates = candidate_count(how.breadth, {}, zone, how.keep);
    const double scan = static_cast<double>(zone) * (16 + 1 + 4);  // signs, norm, a 64th of a page mean
    const double codes = static_cast<double>(candidates) * (16 + 48 + 32);  // signs, magnitudes, weights
    const double rows = static_cast<double>((how.keep + tokens + 1 - zone) * bench::row_bytes_of_head);
    const double floor = bench::kv_heads * (scan + codes + rows) / bandwidth;

    bench::stopwatch watch;
    d.attend(how);
    const double direct = watch.seconds(stream, 31, [&] { d.attend(how); }) / bench::layers;
    const bench::captured_launches graph(exec, [&] { d.attend(how); });
    const double replayed = graph.seconds(watch, 31) / bench::layers;
    std::printf("# a layer: %.1f us by calls, %.1f us in a graph, %.1f us for its bytes (scan %.1f MB, codes %.1f MB, rows %.1f MB)\n",
                direct * 1e6, replayed * 1e6, floor * 1e6, bench::kv_heads * scan * 1e-6, bench::kv_heads * codes * 1e-6,
                bench::kv_heads * rows * 1e-6);
    constexpr std::array names{"prepare", "scan", "select", "rerank", "attend"};
    double before = 0;
    for (int i = 1; i <= graph.kernels_of_layer(); ++i) {
      const double until = graph.seconds_of_first(watch, 31, i) / bench::layers;
      std::printf("device_%s_us %.2f\n", static_cast<std::size_t>(i) <= names.size() ? names[static_cast<std::size_t>(i - 1)] : "other",
                  (until - before) * 1e6);
      before = until;
    }
    std::printf("device_launches_of_attend %d\n", graph.kernels_of_layer());
    std::printf("device_retrieval_us_per_layer %.2f\n", direct * 1e6);
    std::printf("device_retrieval_vs_floor %.3f\n", direct / floor);
    std::printf("device_retrieval_graph_vs_floor %.3f\n", replayed / floor);
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
