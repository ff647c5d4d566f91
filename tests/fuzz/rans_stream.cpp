// libFuzzer: rANS streams. Every instruction set and the plain decoder give the same values, or all refuse.

#include <support/fuzz_mutator.hpp>
#include <support/instruction_sets.hpp>
#include <support/rans.hpp>

#include <kvx/codec/host/rans.hpp>
#include <kvx/codec/scale_tables.hpp>

#include <algorithm>
#include <cstdlib>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr std::int64_t components = 24, pitch = 96;
constexpr std::int32_t tokens = 70;

/// Alphabets of every kind, with and without raw bits.
struct stream_case {
  scale_tables tables;
  std::vector<std::uint16_t> table_of;
  std::vector<std::byte> stream;

  stream_case() {
    std::vector<std::int16_t> values(components * pitch);
    for (std::int64_t c = 0; c < components; ++c) {
      table_of.push_back(static_cast<std::uint16_t>(c * (scale_count * shape_count - 1) / (components - 1)));
      for (std::int32_t t = 0; t < tokens; ++t) {
        const std::int64_t value = t % 9 == 4 ? (t % 2 == 0 ? 20000 : -300) : (c * t) % 7 - 3;  // some escape, by one byte or three
        values[static_cast<std::size_t>(c * pitch + t)] = static_cast<std::int16_t>(value);
      }
    }
    stream.resize(static_cast<std::size_t>(rans_bound(model(), tokens)));
    std::int64_t bytes = 0;
    if (!rans_encode(host{.threads = 1}, model(), {values.data(), components, tokens, pitch}, stream, bytes).ok()) std::abort();
    stream.resize(static_cast<std::size_t>(bytes));
  }
  symbol_model model() const { return {tables.lookups(), table_of.data(), components}; }

  static const stream_case& get() {
    static const stream_case c;
    return c;
  }
};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  // A stream has no checksum; counts that fit its length take its place.
  const auto mend = [](std::span<std::byte> x) {
    std::uint32_t counts[2];
    constexpr std::size_t front = sizeof counts + 4 * rans_lanes;
    if (x.size() < front) return;
    std::memcpy(counts, x.data(), sizeof counts);
    const std::size_t left = x.size() - front;
    counts[0] = static_cast<std::uint32_t>(counts[0] % (left / 2 + 1));
    counts[1] = static_cast<std::uint32_t>(left - 2 * std::size_t{counts[0]});
    std::memcpy(x.data(), counts, sizeof counts);
    if (counts[1] > 0 && left % 4 == 0) x.back() = std::byte{255};  // an escape that the end cuts off
  };
  return mutate(data, size, most, seed, stream_case::get().stream, rans_header_bytes, mend);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto stream = std::as_bytes(std::span(data, size));
  const symbol_model model = stream_case::get().model();
  const auto plain = plain_rans_decode(model, tokens, stream);
  std::vector<std::int16_t> out(components * pitch);
  for (const auto set : instruction_sets()) {
    const bool ok = rans_decode_with(simd::rans_kernel_of(set), model, stream, {out.data(), components, tokens, pitch}).ok();
    if (ok != plain.has_value()) std::abort();
    for (std::int64_t c = 0; ok && c < components; ++c) {
      if (!std::equal(plain->begin() + c * tokens, plain->begin() + (c + 1) * tokens, out.begin() + c * pitch)) std::abort();
    }
  }
  return 0;
}
