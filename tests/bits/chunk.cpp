// Prints chunks of every codec, made from given coefficients, and the coefficients that come back: the same lines from every compiler, flag
// and set.

#include <kvx/codec/frame.hpp>
#include <kvx/codec/host/chain.hpp>
#include <kvx/codec/level_alphabets.hpp>
#include <kvx/core/checksum.hpp>
#include <kvx/core/random.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

using namespace kvx;

namespace {

constexpr std::int64_t components = 150;

/// Sums of four 16-bit numbers: as good as normal, and the same everywhere.
float bell(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t x = random_bits(seed, i);
  std::int32_t sum = -131072;
  for (int j = 0; j < 4; ++j) sum += static_cast<std::int32_t>(x >> 16 * j & 0xffffu);
  return static_cast<float>(sum) * 0x1p-15f;
}

void print(const char* name, int number, std::span<const std::byte> bytes) {
  std::printf("%s %d: %zu bytes %016llx\n", name, number, bytes.size(), static_cast<unsigned long long>(checksum(bytes)));
}

/// One chunk, or exit.
template <class Codec>
void chunk(const char* name, const Codec& codec, const span_model& model, const std::vector<float>& coefficients, std::int32_t tokens,
           int log2_step) {
  const std::int64_t kept = kept_components(codec, model, log2_step);
  std::vector<std::byte> out(static_cast<std::size_t>(components * tokens * 4 + 8));
  std::int64_t bytes = 0;
  const status written = encode_coefficients(host{}, codec, model, {coefficients.data(), kept, tokens, tokens}, log2_step, out, bytes);
  out.resize(static_cast<std::size_t>(bytes));
  print(name, log2_step, out);
  std::vector<float> back(static_cast<std::size_t>(kept * tokens));
  const status read = decode_coefficients(host{}, codec, model, out, {back.data(), kept, tokens, tokens});
  print("coefficients", log2_step, std::as_bytes(std::span(back)));
  std::printf("%s; %s\n", message(written).c_str(), message(read).c_str());
}

}  // namespace

int main() {
  const scale_tables tables;
  for (const std::int32_t tokens : {1, 31, 64, 130}) {
    std::vector<float> coefficients;
    std::vector<component_scale> scales;
    for (std::int64_t c = 0; c < components; ++c) {
      const int log2_scale = static_cast<int>(900 - 11 * c);
      scales.push_back({static_cast<std::int16_t>(log2_scale), static_cast<std::uint8_t>(c % shape_count)});
      for (std::int32_t t = 0; t < tokens; ++t)
        coefficients.push_back(power_of_code(log2_scale) * bell(3, static_cast<std::uint64_t>(c * tokens + t)));
    }
    const bit_plan plan =
        plan_bits(components, 16 * components / 6, {{1, 16, 64}, {0, 2, 4, 8}}, measured_run_error{coefficients.data(), tokens, tokens});
    for (const bit_run& r : plan.runs) std::printf("%dx%d ", r.size, r.bits);
    std::vector<std::int16_t> levels(static_cast<std::size_t>(plan.components() * tokens));
    std::vector<run_range> ranges(static_cast<std::size_t>(plan.stored_runs() * tokens));
    const component_matrix<std::int16_t> view{levels.data(), plan.components(), tokens, tokens};
    std::printf("%s\n", message(quantise(host{}, plan, {coefficients.data(), components, tokens, tokens}, view, ranges)).c_str());
    level_counts counts(plan);
    counts.add(view);
    const level_alphabets alphabets(plan, counts.frequencies());
    span_model model;
    model.basis.features = model.basis.rank = components;
    model.scales = scales.data();
    model.tables = &tables;
    model.plan = &plan;
    model.levels = alphabets.model();
    for (const int log2_step : {-300, 0, 100, 513}) chunk("entropy", kvtc_entropy{}, model, coefficients, tokens, log2_step);
    chunk("fixed", kvtc_faithful<fixed_width>{}, model, coefficients, tokens, 0);
    chunk("fixed", kvtc_faithful<fixed_width>{.entropy = {packing::tokens}}, model, coefficients, tokens, 0);
    chunk("rans", kvtc_faithful<rans>{}, model, coefficients, tokens, 0);
  }
  frame_header header;
  header.tokens = 5;
  frame_writer writer(header, 1);
  writer.add({}, std::as_bytes(std::span("a section")));
  print("frame", 0, writer.finish());
  return 0;
}
