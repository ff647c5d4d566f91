// What a decode step of ParisKV asks of global memory: 65,536 tokens, one KV head, four query heads of 128 dims, bf16, on the simulator.
//
// Prints lines "name value", and fails where a value is beyond its bar:
//   global_bytes_vs_floor_<kernel>   bytes that the kernel's warps request over bytes that must move, at most 1.25
//   launches_per_layer               kernels of append and attend of a retrieving layer, at most 6
//   bytes_per_key_scan               bytes of columns that the scan requests for each key of the zone's pages, at most 21
//   bytes_per_key_codes              bytes of columns that reranking requests for each candidate, at most 102
//
// What must move: rows, codes, queries and outputs as the method needs them, once; of what kernels hand each other, of page tables and
// descriptors, every byte that is read, once, and every byte that is written, once.

#include "traffic.hpp"

#include <kvx/kvx.cuh>

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace kvx;
using composition = paris_kv<bf16, 128>;
using cache_type = cache<device, composition>;

constexpr std::int64_t tokens = 65536, piece = 4096, bytes_of_row = 512;
constexpr int group = 4, dim = 128;

/// An array of bf16 in device memory.
struct array {
  bf16* data = nullptr;
  std::vector<bf16> host;

  explicit array(std::int64_t n) : host(static_cast<std::size_t>(n)) {
    check("cudaMalloc", cudaMalloc(reinterpret_cast<void**>(&data), host.size() * 2));
  }
  array(const array&) = delete;
  ~array() { (void)cudaFree(data); }

  void fill(std::uint64_t seed) {
    for (std::size_t i = 0; i < host.size(); ++i) {
      const std::uint64_t x = random_bits(seed, i);
      float sum = -2;
      for (int part = 0; part < 4; ++part) sum += static_cast<float>(x >> 16 * part & 0xffffu) * 0x1p-16f;
      host[i] = round_to<bf16>(1.7f * sum);
    }
    check("cudaMemcpy", cudaMemcpy(data, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
  }
};

/// Bytes that must move in rows, columns, queries and outputs, by kernel.
std::map<std::string, std::map<std::string, double>> model(std::int64_t zone, std::int64_t residents, std::int64_t candidates,
                                                           std::int64_t kept) {
  constexpr double samples = 2048, key = 16 + 1 + 4;  // signs, norm, a 64th of a page mean
  constexpr double queries = 2.0 * group * dim;
  return {{"append_rows", {{"rows", bytes_of_row}, {"tensors", bytes_of_row}}},
          {"prepare_units", {{"rows", residents * bytes_of_row}, {"columns", samples * key}, {"tensors", queries}}},
          {"scan_sign_sums", {{"columns", static_cast<double>(zone) * key}}},
          {"select_candidates", {}},
          {"rerank_codes", {{"columns", static_cast<double>(candidates) * (16 + 48 + 32)}}},  // signs, magnitudes, weights
          {"attend_rows", {{"rows", kept * bytes_of_row}, {"tensors", 2 * queries}}}};
}

int failures = 0;
void print(const std::string& what, double value, double bar) {
  std::printf("%s %.3f\n", what.c_str(), value);
  if (value <= bar) return;
  std::printf("# beyond its bar of %g\n", bar);
  ++failures;
}

}  // namespace

int main() {
  const device exec{};
  cache_type c(exec, {},
               {.layers = 1,
                .kv_heads = 1,
                .query_heads = group,
                .max_tokens = tokens + 1024,
                .kinds = {layer_kind::retrieve()},
                .max_step_tokens = piece});
  const sequence s = c.open(exec);
  array k(piece * dim), v(piece * dim), q(piece * group * dim), out(group * dim);
  q.fill(3);
  for (std::int64_t n = 0; n < tokens; n += piece) {
    k.fill(static_cast<std::uint64_t>(1000 + n));
    v.fill(static_cast<std::uint64_t>(2000 + n));
    step step = c.begin(exec, {{s, piece}});
    c.append(exec, step, 0, static_cast<const bf16*>(k.data), static_cast<const bf16*>(v.data));
    c.observe(exec, step, 0, static_cast<const bf16*>(q.data));
    c.commit(exec, step);
  }
  c.settle(exec);
  const std::int64_t pages = tokens / 64 + 16;
  traffic::name(c.view(0).key.data, pages * 64 * bytes_of_row, "rows");
  for (int i = 0; i < sketch_column_count; ++i) {
    const column_array column = c.column(0, i);
    if (column.data != nullptr) traffic::name(column.data, pages * column.pitch, "columns");
  }
  for (const array* a : {&k, &v, &q, &out}) traffic::name(a->data, static_cast<std::int64_t>(a->host.size()) * 2, "tensors");

  const attend_options how;
  step step = c.begin(exec, {{s, 1}});
  const std::uint64_t before = simt::stats().launches;
  traffic::start();
  c.append(exec, step, 0, static_cast<const bf16*>(k.data), static_cast<const bf16*>(v.data));
  c.attend(exec, step, 0, static_cast<const bf16*>(q.data), out.data, how);
  check("cudaDeviceSynchronize", cudaStreamSynchronize(exec.stream));
  traffic::table counted = traffic::stop();
  const std::uint64_t launches = simt::stats().launches - before;
  c.commit(exec, step);

  const std::int64_t end = edge(composition::zones, tokens, 64), zone = end - composition::zones.sink;
  const std::int64_t candidates = candidate_count(how.breadth, {}, zone, how.keep);
  const auto floors = model(zone, tokens + 1 - zone, candidates, how.keep);
  for (auto& [kernel, ranges] : counted) {
    const auto known = floors.find(kernel);
    if (known == floors.end()) {
      std::printf("# %s: nothing says what it must move\n", kernel.c_str());
      ++failures;
      continue;
    }
    double requested = 0, floor = 0;
    for (const auto& [range, b] : ranges) {
      const auto stated = known->second.find(range);
      const double least = range.empty() ? static_cast<double>(b.distinct()) : stated == known->second.end() ? 0 : stated->second;
      std::printf("# %-18s %-8s requests %9llu bytes, touches %9llu, must move %9.0f\n", kernel.c_str(),
                  range.empty() ? "between" : range.c_str(), static_cast<unsigned long long>(b.requested),
                  static_cast<unsigned long long>(b.distinct()), least);
      requested += static_cast<double>(b.requested);
      floor += least;
    }
    print("global_bytes_vs_floor_" + kernel, requested / floor, 1.25);
  }
  if (counted.size() != floors.size()) {
    std::printf("# %zu kernels ran, %zu were expected\n", counted.size(), floors.size());
    ++failures;
  }
  print("launches_per_layer", static_cast<double>(launches), 6);
  print("bytes_per_key_scan",
        static_cast<double>(counted["scan_sign_sums"]["columns"].requested_reads) / static_cast<double>(round_up(zone, 64)), 21);
  print("bytes_per_key_codes", static_cast<double>(counted["rerank_codes"]["columns"].requested_reads) / static_cast<double>(candidates),
        102);
  return failures == 0 ? 0 : 1;
}
