// Dense decode on a GPU against the bandwidth of a copy: 131,072 tokens, 4 layers of 8 KV heads, 32 query heads of 128 dims, bf16.
//
// Prints device_copy_gb_per_s and device_dense_decode_vs_copy: bytes of rows read a second over bytes that a copy moves a second.

#include "device_timing.cuh"

#include <cstdio>

int main() {
  using namespace kvx;
  if (!bench::device_is_there()) return 0;
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const device exec{.stream = stream};
  const double bandwidth = bench::copy_bandwidth(exec);
  std::printf("device_copy_gb_per_s %.1f\n", bandwidth * 1e-9);

  constexpr std::int64_t tokens = 131072;
  {
    bench::decoding<full<bf16, bench::dim>> d(exec, tokens, layer_kind::dense());
    bench::stopwatch watch;
    d.attend({});
    const double direct = watch.seconds(stream, 31, [&] { d.attend({}); });
    const bench::captured_launches graph(exec, [&] { d.attend({}); });
    const double replayed = graph.seconds(watch, 31);
    constexpr double bytes = static_cast<double>(bench::layers * bench::kv_heads * (tokens + 1) * bench::row_bytes_of_head);
    std::printf("# a layer: %.1f us by calls, %.1f us in a graph, %.1f us for its bytes\n", direct / bench::layers * 1e6,
                replayed / bench::layers * 1e6, bytes / bandwidth / bench::layers * 1e6);
    std::printf("device_dense_decode_vs_copy %.3f\n", bytes / direct / bandwidth);
    std::printf("device_dense_decode_graph_vs_copy %.3f\n", bytes / replayed / bandwidth);
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
