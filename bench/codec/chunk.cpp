// Decoding and encoding chunks against the matrix products inside them, all cores: 4,096 tokens of 30 layers of 3 heads of 64, at 35 times.
//
// usage: chunk [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// decode_vs_gemm: Eigen's products of the shapes alone over the whole decode: entropy decoding, basis to floats, product, mean and weights,
// turns of keys, conversion. encode_vs_decode: time. checksums_vs_decode: the checksums of the chunks over their decode.

#include "../support/timing.hpp"

#include <kvx/codec/host/chain.hpp>
#include <kvx/core/checksum.hpp>
#include <kvx/core/random.hpp>
#include <kvx/transform/eigen_product.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr std::int64_t chunk_tokens = 256, chunks = 16, dim = 64, features = 10 * 3 * dim, matrices = 6;  // K and V of three spans
constexpr double ratio = 35;

void demand(const status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "chunk: %s\n", message(s).c_str());
  std::exit(1);
}

/// As good as normal: the sum of four 16-bit numbers.
float bell(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t x = random_bits(seed, i);
  std::int32_t sum = -131072;
  for (int j = 0; j < 4; ++j) sum += static_cast<std::int32_t>(x >> 16 * j & 0xffffu);
  return static_cast<float>(sum) * 0x1.bb67aep-16f;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  const host exec;
  host one = exec;
  one.threads = 1;
  const scale_tables tables;
  std::vector<float> mean(features, .5f), weights(features, 1.5f);
  std::vector<half> basis(static_cast<std::size_t>(features * features));
  for (std::size_t i = 0; i < basis.size(); ++i) basis[i] = round_to<half>(bell(1, i) / std::sqrt(static_cast<float>(features)));
  std::vector<component_scale> scales;
  std::vector<float> coefficients(static_cast<std::size_t>(features * chunk_tokens));
  for (std::int64_t c = 0; c < features; ++c) {
    const float scale = 20 * std::pow(static_cast<float>(c + 1), -.75f);
    scales.push_back({code_of_power(scale), 0, 0});
    for (std::int64_t t = 0; t < chunk_tokens; ++t) {
      const auto i = static_cast<std::size_t>(c * chunk_tokens + t);
      coefficients[i] = scale * bell(2, i);
    }
  }
  span_model model;
  model.basis = {features, features, mean.data(), weights.data(), basis.data()};
  model.scales = scales.data();
  model.tables = &tables;

  // The step of this ratio.
  constexpr std::int64_t row_bytes = chunk_tokens * features * 2;
  std::vector<std::byte> chunk(row_bytes);
  std::int64_t bytes = 0, components = 0;
  int step = -512;
  do {
    step += 8;
    components = coded_components(scales.data(), features, step);
    demand(
        encode_coefficients(one, kvtc_entropy{}, model, {coefficients.data(), components, chunk_tokens, chunk_tokens}, step, chunk, bytes));
  } while (static_cast<double>(row_bytes) / static_cast<double>(bytes) < ratio);
  chunk.resize(static_cast<std::size_t>(bytes));

  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < chunk_tokens; ++t) positions.push_back(t);
  const rope_turns turning({.pairs = {rope_pairs::order::interleaved, dim}}, positions);
  const std::vector<const rope_turns*> of(features / dim, &turning);
  const span_turns keys{dim, of.data()}, values{};
  constexpr std::int64_t tasks = chunks * matrices;
  const matrix_product product = eigen_products();
  std::vector<bf16> rows(static_cast<std::size_t>(tasks * chunk_tokens * features));
  std::vector<float> floats(static_cast<std::size_t>(tasks * chunk_tokens * features)),
      basis_floats(static_cast<std::size_t>(components * features));
  for (std::size_t i = 0; i < basis_floats.size(); ++i) basis_floats[i] = to_float(basis[i]);
  const auto rows_of = [&](std::int64_t task) {
    return tensor_view<bf16, 2>(rows.data() + task * chunk_tokens * features, chunk_tokens, features);
  };

  const auto decode = [&] {
    for_each_task(exec, tasks, [&](std::int64_t task) {
      opened_chunk<bf16> opened;
      demand(open_chunk(one, kvtc_entropy{}, model, chunk, chunk_tokens, features, opened));
      restore_rows(one, product, model, opened, task % 2 == 0 ? keys : values, 0, rows_of(task));
    });
  };
  const auto encode = [&] {
    for_each_task(exec, tasks, [&](std::int64_t task) {
      std::vector<std::byte> out(static_cast<std::size_t>(chunk_bound<bf16>(chunk_tokens, features)));
      std::int64_t written = 0;
      demand(
          encode_chunk(one, product, kvtc_entropy{}, model, read_only(rows_of(task)), task % 2 == 0 ? keys : values, step, out, written));
    });
  };
  const auto products = [&] {
    for_each_task(exec, tasks, [&](std::int64_t task) {
      product.run(product.context, {true, false, chunk_tokens, features, components}, coefficients.data(), chunk_tokens,
                  basis_floats.data(), features, floats.data() + task * chunk_tokens * features, features);
    });
  };
  std::vector<std::uint64_t> sums(tasks);
  const auto checksums = [&] {
    for_each_task(exec, tasks, [&](std::int64_t task) { sums[static_cast<std::size_t>(task)] = checksum(chunk); });
  };
  const auto times = bench::alternate({decode, encode, products, checksums}, 7);
  std::printf("# %lld of %lld components, %.1f times smaller; decode %.0f ms, encode %.0f, products %.0f; %d threads\n",
              static_cast<long long>(components), static_cast<long long>(features),
              static_cast<double>(row_bytes) / static_cast<double>(bytes), 1e3 * times[0], 1e3 * times[1], 1e3 * times[2],
              worker_count(exec));
  const auto print = [&](std::string_view name, double value) {
    if (name.find(filter) != std::string_view::npos) std::printf("%s %.3f\n", name.data(), value);
  };
  print("decode_vs_gemm", times[2] / times[0]);
  print("encode_vs_decode", times[1] / times[0]);
  print("checksums_vs_decode", times[3] / times[0]);
}
