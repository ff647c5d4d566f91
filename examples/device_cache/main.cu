// Decoding on a CUDA device with random weights: every token attended to, retrieval with the same rows, and the same with most rows in host
// memory. Time and memory of each.
//
// usage: device_cache [tokens of the prompt]

#include <kvx/kvx.cuh>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int layers = 4, kv_heads = 2, query_heads = 8, dim = 128, hidden = query_heads * dim, steps = 32;
constexpr int chunk = 1024;  // tokens of the prompt that are appended at once

/// x (count) <- numbers between -1 and 1, times `size`.
__global__ void fill(float* x, long count, unsigned seed, float size) {
  for (long i = blockIdx.x * 256L + threadIdx.x; i < count; i += gridDim.x * 256L)
    x[i] = size * (static_cast<float>(kvx::random_bits(seed, static_cast<unsigned long>(i)) >> 40) * 0x1p-23f - 1);
}

/// y (rows) <- w (rows, hidden) x / |x|, a block a row; `add`: y += the same.
__global__ void multiply(float* y, const float* w, const float* x, bool add) {
  __shared__ kvx::block_scratch<float, 128> scratch;
  float product = 0, square = 0;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += 128) {
    product += w[static_cast<long>(blockIdx.x) * hidden + i] * x[i];
    square += x[i] * x[i];
  }
  const auto add_up = [](float a, float b) { return a + b; };
  product = kvx::block_reduce<128>(product, add_up, scratch);
  square = kvx::block_reduce<128>(square, add_up, scratch);
  if (threadIdx.x == 0) y[blockIdx.x] = (add ? y[blockIdx.x] : 0) + product * rsqrtf(square + 1e-6f);
}

/// Floats in device memory, filled with random numbers.
struct array {
  kvx::device_block block;
  float* data;
  array(const kvx::device& exec, long count, unsigned seed, float size)
      : block(allocate(exec, count * 4)), data(reinterpret_cast<float*>(block.data())) {
    kvx::launch(exec, {dim3(256), 256}, fill, data, count, seed, size);
  }
};

template <class Spec>
void decode(const char* name, const kvx::device& exec, long prompt, long near_tokens = 0) {
  kvx::cache cache{exec,
                   Spec{},
                   {.layers = layers,
                    .kv_heads = kv_heads,
                    .query_heads = query_heads,
                    .max_tokens = prompt + steps,
                    .max_step_tokens = chunk < prompt ? chunk : prompt,
                    .near_tokens = near_tokens}};
  const kvx::sequence text = cache.open(exec);
  {
    const array k(exec, chunk * kv_heads * dim, 1, 2), v(exec, chunk * kv_heads * dim, 2, 1), q(exec, chunk * hidden, 3, 2);
    for (long done = 0; done < prompt; done += chunk) {
      const long n = prompt - done < chunk ? prompt - done : chunk;
      kvx::step step = cache.begin(exec, {{text, n}});
      for (int l = 0; l < layers; ++l) {
        kvx::launch(exec, {dim3(256), 256}, fill, k.data, n * kv_heads * dim, static_cast<unsigned>(done + l), 2.0f);
        cache.append(exec, step, l, k.data, v.data);
        cache.observe(exec, step, l, q.data);
      }
      cache.commit(exec, step);
    }
  }
  std::vector<array> query, key, value, output;  // weights
  for (unsigned l = 0; l < layers; ++l) {
    query.emplace_back(exec, hidden * hidden, 100 + l, .3f);
    key.emplace_back(exec, kv_heads * dim * hidden, 200 + l, .3f);
    value.emplace_back(exec, kv_heads * dim * hidden, 300 + l, .3f);
    output.emplace_back(exec, hidden * hidden, 400 + l, .3f);
  }
  const array x(exec, hidden, 5, 1), q(exec, hidden, 0, 0), k(exec, kv_heads * dim, 0, 0), v(exec, kv_heads * dim, 0, 0),
      out(exec, hidden, 0, 0);
  const auto one_token = [&] {
    kvx::step step = cache.begin(exec, {{text, 1}});
    for (std::size_t l = 0; l < layers; ++l) {
      kvx::launch(exec, {dim3(hidden), 128}, multiply, q.data, query[l].data, x.data, false);
      kvx::launch(exec, {dim3(kv_heads * dim), 128}, multiply, k.data, key[l].data, x.data, false);
      kvx::launch(exec, {dim3(kv_heads * dim), 128}, multiply, v.data, value[l].data, x.data, false);
      cache.append(exec, step, static_cast<int>(l), k.data, v.data);
      cache.attend(exec, step, static_cast<int>(l), q.data, out.data, {.keep = 256});
      kvx::launch(exec, {dim3(hidden), 128}, multiply, x.data, output[l].data, out.data, true);
    }
    cache.commit(exec, step);
  };
  one_token();  // scratch is there from now on
  cudaEvent_t begin, end;
  kvx::check("cudaEventCreate", cudaEventCreate(&begin));
  kvx::check("cudaEventCreate", cudaEventCreate(&end));
  kvx::check("cudaEventRecord", cudaEventRecord(begin, exec.stream));
  for (int i = 1; i < steps; ++i) one_token();
  kvx::check("cudaEventRecord", cudaEventRecord(end, exec.stream));
  kvx::check("cudaEventSynchronize", cudaEventSynchronize(end));
  float ms = 0;
  kvx::check("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin, end));
  float first = 0;
  kvx::check("cudaMemcpy", cudaMemcpy(&first, x.data, sizeof(first), cudaMemcpyDeviceToHost));
  const kvx::cache_stats stats = cache.stats();
  std::printf("%-10s %6.3f ms a token   on the device %8.1f MB of rows  %6.1f MB of columns   x[0] = %g\n", name, ms / (steps - 1),
              (stats.row_bytes + stats.slot_bytes) * 1e-6, stats.column_bytes * 1e-6, first);
  if (stats.far_bytes > 0)
    std::printf("%-10s %8.1f MB of rows on the host, %.2f of their chosen ones found in slots\n", "", stats.far_bytes * 1e-6,
                stats.hit_rate());
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
}

}  // namespace

int main(int count, char** arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device here\n");
    return 0;
  }
  cudaStream_t stream;
  kvx::check("cudaStreamCreate", cudaStreamCreate(&stream));
  const kvx::device exec{.stream = stream};
  const long prompt = count > 1 ? std::atol(arguments[1]) : 65536;
  std::printf("%ld tokens, %d layers, %d KV heads of %d, %d query heads, bf16\n", prompt, layers, kv_heads, dim, query_heads);
  decode<kvx::full<kvx::bf16, dim>>("full", exec, prompt);
  decode<kvx::paris_kv<kvx::bf16, dim>>("retrieved", exec, prompt);
  using offloaded = kvx::paris_kv<kvx::bf16, dim, dim, kvx::placement::offload_uva>;
  const long near = prompt / 8 + 2 * chunk;  // what a chunk of the prompt needs, and more
  decode<offloaded>("offloaded", exec, prompt, near < prompt ? near : prompt);
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
