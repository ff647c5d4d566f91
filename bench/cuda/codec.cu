// Decoding 8,192 tokens of a model of 32 layers, 8 KV heads and 128 dims, K and V, from chunks of 256 tokens and three blocks of layers.
//
// Prints gigabytes a second of the bf16 rows that come out: of the entropy coding alone, of everything from bytes to pages, and of
// encoding; and the part of the time from bytes to pages that the matrix products take by themselves.

#include "stopwatch.cuh"

#include <kvx/codec/cuda/chain.cuh>
#include <kvx/codec/host/chain.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

namespace {

using namespace kvx;

constexpr std::int64_t model_layers = 32, heads = 8, dim = 128, spans = 3, tokens = 8192, page_tokens = 64;
constexpr int log2_step = -384;
constexpr double model_bytes = 2.0 * 2 * model_layers * heads * dim * tokens;

std::int64_t layers_of(std::int64_t span) { return model_layers * (span + 1) / spans - model_layers * span / spans; }

/// What calibration knows of a span whose i-th component has the standard deviation 20 (i + 1)^-0.75; the basis is noise of its size.
struct span_law {
  std::vector<float> mean;
  std::vector<half> basis;
  std::vector<component_scale> scales;

  explicit span_law(std::int64_t features) : mean(static_cast<std::size_t>(features)) {
    const std::int64_t rank = features / 4;
    std::mt19937 random(1);
    const float size = 2 / std::sqrt(static_cast<float>(features)) * 0x1p-16f;
    for (std::int64_t i = 0; i < rank * features; ++i)
      basis.push_back(round_to<half>(size * (static_cast<float>(random() >> 16) - 0x1p15f)));
    for (std::int64_t c = 0; c < rank; ++c) scales.push_back({code_of_power(static_cast<float>(scale(c))), 0, 0});
  }
  static double scale(std::int64_t c) { return 20 * std::pow(static_cast<double>(c + 1), -.75); }
  span_model model(const scale_tables& tables) const {
    span_model m;
    m.basis = {static_cast<std::int64_t>(mean.size()), static_cast<std::int64_t>(scales.size()), mean.data(), nullptr, basis.data()};
    m.scales = scales.data();
    m.tables = &tables;
    return m;
  }
};

/// K or V of a span: its model, the bytes of its chunks, pages for its rows.
struct coded_part {
  span_on_device model;
  chunk_run run;
  std::int64_t chunk_bytes = 0, room = 0;
  device_block bytes, memory, rows, arrays, list, results;
  device_chunks chunks;

  coded_part(const device& exec, const span_law& law, const scale_tables& tables, const device_scale_tables& there, std::int64_t layers,
             std::int64_t chunk_tokens)
      : model(exec, law.model(tables), there) {
    const span_model m = law.model(tables);
    run = {tokens, chunk_tokens, kept_components(kvtc_entropy{}, m, log2_step)};
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> x;
    for (std::int64_t c = 0; c < run.components; ++c) {
      for (std::int64_t t = 0; t < chunk_tokens; ++t) x.push_back(static_cast<float>(span_law::scale(c)) * normal(random));
    }
    std::vector<std::byte> chunk(static_cast<std::size_t>(chunk_bound<bf16>(chunk_tokens, m.basis.features)));
    const auto n = static_cast<std::int32_t>(chunk_tokens);
    if (!encode_coefficients(host{}, kvtc_entropy{}, m, {x.data(), run.components, n, n}, log2_step, chunk, chunk_bytes).ok()) std::abort();
    room = round_up(chunk_bytes, 8);
    bytes = allocate(exec, run.chunks() * room);
    for (std::int64_t i = 0; i < run.chunks(); ++i) copy_in_and_wait(exec, bytes.data() + i * room, chunk.data(), chunk_bytes);
    memory = allocate(exec, decode_run_memory(run, model.view(), heads * dim, nullptr).bytes);
    rows = allocate(exec, layers * tokens * heads * dim * 2);
    std::vector<row_array<bf16>> of;
    auto* const first = reinterpret_cast<bf16*>(rows.data());
    for (std::int64_t l = 0; l < layers; ++l)
      of.push_back({first + l * tokens * heads * dim, page_tokens * heads * dim, page_tokens * dim, dim});
    arrays = allocate(exec, layers * static_cast<std::int64_t>(sizeof of[0]));
    copy_in_and_wait(exec, arrays.data(), of.data(), arrays.size());
    list = allocate(exec, run.chunks() * static_cast<std::int64_t>(sizeof(device_chunk)));
    results = allocate(exec, run.chunks() * static_cast<std::int64_t>(sizeof(chunk_result)));
  }

  std::vector<device_chunk> listed() const {
    const decode_run_memory m(run, model.view(), heads * dim, memory.data());
    return list_of(run, model, m.coefficients, nullptr,
                   [&](std::int64_t i) { return std::span<std::byte>(bytes.data() + i * room, static_cast<std::size_t>(chunk_bytes)); });
  }
  span_rows<bf16> places() const {
    return {reinterpret_cast<const row_array<bf16>*>(arrays.data()), 0, heads, dim, nullptr, page_tokens, 0};
  }
};

void measure(const device& exec, std::int64_t chunk_tokens) {
  const scale_tables tables;
  const scale_tables_on_device tables_there(exec, tables);
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(t);
  const rope_turns turns(rope{.pairs = {rope_pairs::order::halves, static_cast<int>(dim)}, .base = 500000}, positions);
  const turns_on_device turns_there(exec, turns);
  const std::vector<device_turns> of_heads(static_cast<std::size_t>(model_layers * heads), turns_there.view());
  const device_block heads_there = allocate(exec, static_cast<std::int64_t>(of_heads.size() * sizeof(device_turns)));
  copy_in_and_wait(exec, heads_there.data(), of_heads.data(), heads_there.size());

  std::vector<coded_part> parts;  // K and V of every span
  for (std::int64_t s = 0; s < spans; ++s) {
    const span_law law(layers_of(s) * heads * dim);
    for (int part = 0; part < 2; ++part) parts.emplace_back(exec, law, tables, tables_there.view(), layers_of(s), chunk_tokens);
  }
  std::vector<device_chunk> all;
  std::int64_t coded = 0, most = 0;
  for (const coded_part& p : parts) {
    const auto list = p.listed();
    all.insert(all.end(), list.begin(), list.end());
    coded += p.run.chunks() * p.chunk_bytes;
    most = std::max(most, p.run.components);
  }
  const auto count = static_cast<std::int64_t>(all.size());
  const device_block list = allocate(exec, count * static_cast<std::int64_t>(sizeof(device_chunk)));
  const device_block results = allocate(exec, count * static_cast<std::int64_t>(sizeof(chunk_result)));
  copy_in_and_wait(exec, list.data(), all.data(), list.size());
  const auto* const chunks = reinterpret_cast<const device_chunk*>(list.data());
  auto* const told = reinterpret_cast<chunk_result*>(results.data());

  bench::stopwatch watch;
  const auto open = [&] { open_chunk<bf16>(exec, kvtc_entropy{}, {chunks, count, chunk_tokens, most, 0}, told); };
  const auto restore = [&](const half_product& product) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const coded_part& p = parts[i];
      prepare_restore(exec, p.model, p.run, heads * dim, p.memory.data());
      const device_span_turns turned{i % 2 == 0 ? reinterpret_cast<const device_turns*>(heads_there.data()) : nullptr};
      for (std::int64_t l = 0; l < layers_of(static_cast<std::int64_t>(i) / 2); ++l) {
        restore_rows<bf16>(exec, product, p.model, p.run, p.places(), turned, {l * heads, heads, 0, tokens}, heads * dim, chunks + first,
                           told + first, p.memory.data());
      }
      first += p.run.chunks();
    }
  };
  const auto products = [&] {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const coded_part& p = parts[i];
      const decode_run_memory m(p.run, p.model.view(), heads * dim, p.memory.data());
      for (std::int64_t l = 0; l < layers_of(static_cast<std::int64_t>(i) / 2); ++l) {
        const half_product product = tiled_products();
        product.run(product.context, exec, {half_product::direction::restore, tokens, heads * dim, p.run.components}, m.x,
                    p.model.view().basis.basis + l * heads * dim, p.model.view().basis_pitch, m.products, heads * dim);
      }
    }
  };
  const double opened = watch.seconds(exec.stream, 15, open);
  const double whole = watch.seconds(exec.stream, 15, [&] {
    open();
    restore(tiled_products());
  });
  const double multiplied = watch.seconds(exec.stream, 15, products);
  const coded_part& one = parts.front();
  const device_block memory = allocate(exec, encode_run_memory(kvtc_entropy{}, one.run, one.model.view(), nullptr).bytes);
  const encode_run_memory m(kvtc_entropy{}, one.run, one.model.view(), memory.data());
  const std::int64_t room = round_up(chunk_bound<bf16>(chunk_tokens, one.model.view().basis.features), 8);
  const device_block written = allocate(exec, one.run.chunks() * room);
  const auto to_write = list_of(one.run, one.model, m.coefficients, m.factors, [&](std::int64_t i) {
    return std::span<std::byte>(written.data() + i * room, static_cast<std::size_t>(room));
  });
  copy_in_and_wait(exec, one.list.data(), to_write.data(), one.list.size());
  span_rows<const bf16> from{nullptr, 0, heads, dim, nullptr, page_tokens, 0};
  from.layers = reinterpret_cast<const row_array<const bf16>*>(one.arrays.data());
  const double encoded = watch.seconds(exec.stream, 15, [&] {
    encode_chunk<kvtc_entropy, bf16>(
        exec, tiled_products(), {}, one.model, one.run, from, {reinterpret_cast<const device_turns*>(heads_there.data())}, log2_step,
        reinterpret_cast<const device_chunk*>(one.list.data()), memory.data(), reinterpret_cast<chunk_result*>(one.results.data()));
  });
  std::vector<chunk_result> read(all.size());
  check("cudaMemcpy", cudaMemcpy(read.data(), told, read.size() * sizeof(chunk_result), cudaMemcpyDeviceToHost));
  const bool sound = std::all_of(read.begin(), read.end(), [](const chunk_result& r) { return r.code == status::code::ok; });
  std::printf("# chunks of %d tokens, %d components of %d: %.1f times smaller; open %.2f ms, restore %.2f ms, products alone %.2f ms%s\n",
              static_cast<int>(chunk_tokens), static_cast<int>(most), static_cast<int>(one.model.view().basis.features),
              model_bytes / static_cast<double>(coded), opened * 1e3, whole * 1e3, multiplied * 1e3, sound ? "" : "; NOT DECODED");
  std::printf("device_codec%d_open_gb_per_s %.1f\n", static_cast<int>(chunk_tokens), model_bytes / opened * 1e-9);
  std::printf("device_codec%d_restore_gb_per_s %.1f\n", static_cast<int>(chunk_tokens), model_bytes / whole * 1e-9);
  std::printf("device_codec%d_products_of_restore %.3f\n", static_cast<int>(chunk_tokens), multiplied / whole);
  std::printf("device_codec%d_encode_gb_per_s %.1f\n", static_cast<int>(chunk_tokens),
              2.0 * static_cast<double>(layers_of(0) * heads * dim * tokens) / encoded * 1e-9);
}

}  // namespace

int main() {
  if (!bench::device_is_there()) return 0;
  cudaStream_t stream = nullptr;
  check("cudaStreamCreate", cudaStreamCreate(&stream));
  const device exec{.stream = stream};
  for (const std::int64_t chunk_tokens : {64, 256}) measure(exec, chunk_tokens);
  return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
