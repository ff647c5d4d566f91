// Mutated streams, chunks, frames and calibration files for KVX_FUZZ_SECONDS (default 3): a status or a result, never a crash, an exception
// or a read outside.

#include <support/guarded.hpp>
#include <support/instruction_sets.hpp>
#include <support/sample_calibration.hpp>
#include <support/sample_frame.hpp>
#include <support/span_case.hpp>

#include <kvx/codec/calibration_file.hpp>
#include <kvx/codec/host/chain.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr int targets = 4;

/// What each target gets of the time.
std::chrono::duration<double> share_of_time() {
  const char* seconds = std::getenv("KVX_FUZZ_SECONDS");
  return std::chrono::duration<double>((seconds == nullptr ? 3.0 : std::atof(seconds)) / targets);
}

/// Damages bytes, the first `header` of them more often than the others.
std::vector<std::byte> damaged(std::vector<std::byte> bytes, std::size_t header, std::mt19937& random) {
  static constexpr std::uint64_t values[] = {0,      1,      2,      31,       32,  33,         0x7f,       0xff,
                                             0x7fff, 0x8000, 0xffff, 1u << 31, ~0u, 1ull << 32, 1ull << 63, ~0ull};
  for (auto changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
    const std::size_t at = random() % (random() % 2 == 0 ? std::min(header, bytes.size()) : bytes.size());
    switch (random() % 5) {
      case 0: bytes[at] ^= std::byte{1} << random() % 8; break;
      case 1: bytes[at] = static_cast<std::byte>(random()); break;
      case 2: {
        const std::uint64_t value = values[random() % std::size(values)] + random() % 3 - 1;
        const std::size_t width = std::min<std::size_t>(std::size_t{1} << random() % 4, bytes.size());
        std::memcpy(bytes.data() + std::min(at, bytes.size() - width), &value, width);
        break;
      }
      case 3: bytes.resize(at); break;
      default: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), 1 + random() % 40, static_cast<std::byte>(random())); break;
    }
  }
  return bytes;
}

/// Runs f(bytes) on damaged bytes that end where an unreadable page begins, from a fixed seed on, until the time is over.
template <class F>
void fuzz(const char* name, const std::vector<std::vector<std::byte>>& corpus, std::size_t header, const F& f) {
  std::mt19937 random(1);
  const auto end = std::chrono::steady_clock::now() + share_of_time();
  std::size_t most = 0;
  for (const auto& c : corpus) most = std::max(most, c.size());
  const guarded memory(most + 400, true);
  long rounds = 0, sound = 0;
  while (std::chrono::steady_clock::now() < end) {
    const auto bytes = damaged(corpus[random() % corpus.size()], header, random);
    if (bytes.size() > most + 400) continue;
    std::byte* const first = memory.data() + most + 400 - bytes.size();
    if (!bytes.empty()) std::memcpy(first, bytes.data(), bytes.size());
    sound += f(std::span<std::byte>(first, bytes.size()));
    ++rounds;
  }
  MESSAGE(std::string(name), ": ", rounds, " rounds, ", sound, " still sound");
  CHECK(rounds > 0);
}

/// A chunk of a span.
template <class Codec>
std::vector<std::byte> chunk_of(const span_case& s, const Codec& codec, std::int64_t tokens, int log2_step) {
  const std::vector<float> rows = s.rows(tokens, 3);
  std::vector<bf16> stored;
  for (const float x : rows) stored.push_back(round_to<bf16>(x));
  std::vector<std::byte> out(static_cast<std::size_t>(chunk_bound<bf16>(tokens, s.rank)));
  std::int64_t bytes = 0;
  REQUIRE(encode_chunk(host{}, plain_products(), codec, s.model(), tensor_view<const bf16, 2>(stored.data(), tokens, s.rank), {}, log2_step,
                       out, bytes)
              .ok());
  out.resize(static_cast<std::size_t>(bytes));
  return out;
}

}  // namespace

TEST_CASE("rANS streams: every instruction set agrees on damage") {
  const span_case s(2, 16, 8);
  constexpr std::int64_t components = 20;
  constexpr std::int32_t tokens = 70;
  std::vector<std::uint16_t> table_of;
  std::vector<std::int16_t> values(components * 96), out(values.size()), other(values.size());
  std::mt19937 random(2);
  for (std::int64_t c = 0; c < components; ++c) {
    table_of.push_back(static_cast<std::uint16_t>(c * 6));
    for (std::int32_t t = 0; t < tokens; ++t)
      values[static_cast<std::size_t>(c * 96 + t)] = static_cast<std::int16_t>(static_cast<std::int16_t>(random()) >> random() % 16);
  }
  for (auto& v : values) v = std::max<std::int16_t>(v, -32767);
  const symbol_model model{span_case::tables().lookups(), table_of.data(), components};
  std::vector<std::byte> stream(static_cast<std::size_t>(rans_bound(model, tokens)));
  std::int64_t bytes = 0;
  REQUIRE(rans_encode(host{}, model, {values.data(), components, tokens, 96}, stream, bytes).ok());
  stream.resize(static_cast<std::size_t>(bytes));
  fuzz("streams", {stream}, 160, [&](std::span<std::byte> x) {
    bool first = true, sound = false, same = true;
    for (const auto set : instruction_sets()) {
      auto& to = first ? out : other;
      const bool ok = rans_decode_with(simd::rans_kernel_of(set), model, x, {to.data(), components, tokens, 96}).ok();
      if (first) sound = ok;
      same = same && ok == sound;
      for (std::int64_t c = 0; c < components && !first && ok; ++c)
        same = same && std::equal(out.begin() + c * 96, out.begin() + c * 96 + tokens, other.begin() + c * 96);
      first = false;
    }
    if (!same) FAIL("instruction sets differ");
    return sound;
  });
}

TEST_CASE("chunks of every codec") {
  const span_case s(2, 16, 8);
  constexpr std::int64_t tokens = 40;
  std::vector<std::vector<std::byte>> corpus;
  for (const int log2_step : {-700, 0, 400}) corpus.push_back(chunk_of(s, kvtc_entropy{}, tokens, log2_step));
  corpus.push_back(chunk_of(s, kvtc_faithful<fixed_width>{}, tokens, 0));
  corpus.push_back(chunk_of(s, kvtc_faithful<rans>{}, tokens, 0));
  corpus.push_back(chunk_of(s, raw{}, tokens, 0));
  std::vector<bf16> rows(static_cast<std::size_t>(tokens * s.rank));
  fuzz("chunks", corpus, 24, [&](std::span<std::byte> x) {
    bool sound = false;
    const auto open = [&](const auto& codec) {
      opened_chunk<bf16> chunk;
      if (!open_chunk(host{.threads = 1}, codec, s.model(), x, tokens, s.rank, chunk).ok()) return;
      sound = true;
      restore_rows(host{.threads = 1}, plain_products(), s.model(), chunk, {}, 0, tensor_view<bf16, 2>(rows.data(), tokens, s.rank));
    };
    open(kvtc_entropy{});
    open(kvtc_faithful<fixed_width>{});
    open(kvtc_faithful<rans>{});
    open(raw{});
    return sound;
  });
}

TEST_CASE("frames: as they are, and with checksums that agree with the damage") {
  int round = 0;
  fuzz("frames", {sample_frame()}, 160 + 4 * 48, [&](std::span<std::byte> x) {
    if (++round % 2 == 0) mend_frame(x);
    frame_view view;
    const bool sound = open_frame(x, x.size(), view).ok();
    for (const frame_section& section : view.sections) {
      std::span<const std::byte> payload;
      (void)read_section(x, section, payload);
    }
    (void)check_frame(x, view);
    return sound;
  });
}

TEST_CASE("calibration files: what is read is sound and writes the same file; what is refused changes nothing") {
  int round = 0;
  const auto corpus = {write_calibration(sample_calibration(false)), write_calibration(sample_calibration(true))};
  fuzz("calibration files", corpus, sizeof(calibration_file_header) + 200, [&](std::span<std::byte> x) {
    if (++round % 2 == 0) mend_calibration(x);
    calibration c;
    if (!read_calibration(x, c).ok()) {
      if (!(c == calibration{})) FAIL("refused, and changed");
      return false;
    }
    const auto again = write_calibration(c);
    if (!check_calibration(c).ok() || !std::equal(again.begin(), again.end(), x.begin(), x.end())) FAIL("read, and not what was written");
    return true;
  });
}
