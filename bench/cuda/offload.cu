// A decode step whose rows lie in host memory beside dense decoding with all rows in the device's: 262,144 tokens, 4 layers of 8 KV heads,
// 32 query heads of 128 dims, bf16, 512 tokens kept of 5 %, an eighth of the rows near.
//
// usage: offload [<tokens>, a multiple of 4,096]
//
// Prints device_offload_vs_dense: time of the offloaded step over that of the dense one (below 1: faster). Queries of a step are those of
// the one before and some noise; device_offload_hit_rate says which part of the chosen far rows was found in slots.

#include "device_timing.cuh"

#include <cstdio>
#include <cstdlib>

namespace {

using namespace kvx;

constexpr float noise = .12f;  // beside queries between -1.5 and 1.5: about .6 of a choice is chosen again

/// Seconds of a layer's attention, each round with the next queries.
template <class Spec>
double seconds_of_layer(const device& exec, bench::decoding<Spec>& d, const attend_options& how) {
  bench::stopwatch watch;
  d.attend(how);
  const double drift = watch.seconds(exec.stream, 31, [&] { d.drift(noise); });
  return (watch.seconds(exec.stream, 31, [&] { d.drift(noise), d.attend(how); }) - drift) / bench::layers;
}

}  // namespace

int main(int count, char** arguments) {
  if (!bench::device_is_there()) return 0;
  const std::int64_t tokens = count > 1 ? std::atoll(arguments[1]) : 262144;
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const device exec{.stream = stream};
  double dense = 0, near = 0, far = 0;
  {
    bench::decoding<full<bf16, bench::dim>> d(exec, tokens, layer_kind::dense());
    dense = seconds_of_layer(exec, d, {});
  }
  const attend_options how{.keep = 512, .breadth = {.fraction = .05, .per_kept = 0}};
  {
    bench::decoding<paris_kv<bf16, bench::dim>> d(exec, tokens, layer_kind::retrieve());
    near = seconds_of_layer(exec, d, how);
  }
  {
    bench::decoding<paris_kv<bf16, bench::dim, bench::dim, placement::offload_uva>> d(exec, tokens, layer_kind::retrieve(),
                                                                                      tokens / 8 + 8192, 1024);
    const cache_stats before = d.stats();
    far = seconds_of_layer(exec, d, how);
    check("cudaStreamSynchronize", cudaStreamSynchronize(stream));
    const cache_stats stats = d.stats();
    std::printf("# %.2f GB of rows on the device, %.2f GB on the host, %.2f GB of columns\n", stats.row_bytes * 1e-9,
                stats.far_bytes * 1e-9, stats.column_bytes * 1e-9);
    std::printf("device_offload_hit_rate %.3f\n", stats.hit_rate());
    std::printf("device_offload_selected_far %lld\n", static_cast<long long>(stats.selected_far - before.selected_far));
  }
  std::printf("device_dense_us_per_layer %.2f\ndevice_resident_us_per_layer %.2f\ndevice_offload_us_per_layer %.2f\n", dense * 1e6,
              near * 1e6, far * 1e6);
  std::printf("device_offload_vs_dense %.3f\n", far / dense);
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
