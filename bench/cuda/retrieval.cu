// Attention of a ParisKV decode step on a GPU against the bytes that it must read: 1,048,576 tokens, 4 layers of 8 KV heads, 32 query heads
// of 128 dims, bf16, 512 tokens kept of 5 %; and the same in tiers, 32 tokens kept.
//
// usage: retrieval [<tokens>, a multiple of 4,096]
//
// Prints device_retrieval_vs_floor: time of a layer over that of its bytes at the bandwidth of a copy. The bytes: signs, norms and page
// means of the zone, codes of the candidates, rows that are kept, in the sink, and recent. device_tiered_…: and the codes of the
// candidates' values, and the mean values of the pages.

#include "device_timing.cuh"

#include <cstdio>
#include <cstdlib>
#include <span>

namespace {

using namespace kvx;

/// Times a composition's attention, and prints lines that begin with `name`.
///
/// kernels     names of a layer's launches, in their order
template <class Spec>
void time_attention(const char* name, std::span<const char* const> kernels, const device& exec, std::int64_t tokens, std::int64_t keep,
                    double bandwidth) {
  bench::decoding<Spec> d(exec, tokens, layer_kind::retrieve());
  const attend_options how{.keep = keep, .breadth = {.fraction = .05, .per_kept = 0}};
  const std::int64_t zone = edge(Spec::zones, tokens, Spec::layout_type::shape.tokens) - Spec::zones.sink;
  const auto candidates = static_cast<double>(candidate_count(how.breadth, {}, zone, how.keep));
  const double scan = static_cast<double>(zone) * (16 + 1 + 4);  // signs, norm, a 64th of a page mean
  const double codes = candidates * (16 + 48 + 32);  // signs, magnitudes, weights
  const double rows = static_cast<double>((keep + tokens + 1 - zone) * bench::row_bytes_of_head);
  const double values = any(Spec::others) ? candidates * (64 + 2) + static_cast<double>(zone) * 4 : 0;  // codes, scales, a 64th of a mean
  const double floor = bench::kv_heads * (scan + codes + rows + values) / bandwidth;

  bench::stopwatch watch;
  d.attend(how);
  const double direct = watch.seconds(exec.stream, 31, [&] { d.attend(how); }) / bench::layers;
  const bench::captured_launches graph(exec, [&] { d.attend(how); });
  const double replayed = graph.seconds(watch, 31) / bench::layers;
  std::printf(
      "# a layer: %.1f us by calls, %.1f us in a graph, %.1f us for its bytes (scan %.1f MB, codes %.1f MB, rows %.1f MB, values %.1f "
      "MB)\n",
      direct * 1e6, replayed * 1e6, floor * 1e6, bench::kv_heads * scan * 1e-6, bench::kv_heads * codes * 1e-6,
      bench::kv_heads * rows * 1e-6, bench::kv_heads * values * 1e-6);
  const char* const prefix = any(Spec::others) ? "device_tiered_" : "device_";
  double before = 0;
  for (int i = 1; i <= graph.kernels_of_layer(); ++i) {
    const double until = graph.seconds_of_first(watch, 31, i) / bench::layers;
    const auto at = static_cast<std::size_t>(i - 1);
    std::printf("%s%s_us %.2f\n", prefix, at < kernels.size() ? kernels[at] : "other", (until - before) * 1e6);
    before = until;
  }
  std::printf("%slaunches_of_attend %d\n", prefix, graph.kernels_of_layer());
  std::printf("%s_us_per_layer %.2f\n", name, direct * 1e6);
  std::printf("%s_vs_floor %.3f\n", name, direct / floor);
  std::printf("%s_graph_vs_floor %.3f\n", name, replayed / floor);
}

}  // namespace

int main(int count, char** arguments) {
  if (!bench::device_is_there()) return 0;
  const std::int64_t tokens = count > 1 ? std::atoll(arguments[1]) : 1048576;
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const device exec{.stream = stream};
  const double bandwidth = bench::copy_bandwidth(exec);
  constexpr const char* hard[] = {"prepare", "scan", "select", "rerank", "attend"};
  constexpr const char* tiered[] = {"prepare", "scan", "select", "rerank", "tiers", "attend"};
  time_attention<paris_kv<bf16, bench::dim>>("device_retrieval", hard, exec, tokens, 512, bandwidth);
  time_attention<paris_kv_tiered<bf16, bench::dim>>("device_tiered", tiered, exec, tokens, 32, bandwidth);
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
