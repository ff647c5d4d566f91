// From the coefficients on, chunks of the device are the host's to the byte, and their coefficients to the bit; damaged ones are refused.

#include <kvx/codec/cuda/decode_coefficients.cuh>
#include <kvx/codec/cuda/encode_coefficients.cuh>
#include <kvx/codec/host/chain.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "device/chunks_on_device.cuh"

using namespace kvx;
using kvx::test::chunks_there;
using kvx::test::device_array;
using kvx::test::span_case;
using kvx::test::span_there;

namespace {

/// Coefficients of the law of a span.
std::vector<float> law_of(const span_case& s, std::int64_t components, std::int32_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (std::int64_t c = 0; c < components; ++c) {
    for (std::int32_t t = 0; t < tokens; ++t) x.push_back(static_cast<float>(s.scale(c)) * normal(random));
  }
  return x;
}

template <class Codec>
std::vector<chunk_result> encoded(span_there& there, chunks_there& chunks, const Codec& codec, int log2_step) {
  return chunks.results_of([&](const device_chunks& all, chunk_result* results) {
    const device_array<std::byte> scratch(static_cast<std::size_t>(encode_coefficients_scratch(codec, all)));
    encode_coefficients(there.exec, codec, all, log2_step, scratch.data(), results);
    there.stream.wait();
  });
}

template <class Codec>
std::vector<chunk_result> decoded(span_there& there, chunks_there& chunks, const Codec& codec) {
  return chunks.results_of([&](const device_chunks& all, chunk_result* results) { decode_coefficients(there.exec, codec, all, results); });
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); });
}

struct host_chunk {
  std::int32_t tokens = 0;
  std::vector<float> coefficients;
  std::vector<std::byte> bytes;
  status::code code = status::code::ok;
};

/// Chunks of many token counts and rooms, some with what no codec holds, coded by the host.
template <class Codec>
std::vector<host_chunk> host_chunks(const span_case& s, const Codec& codec, int log2_step, std::int64_t components) {
  std::vector<host_chunk> all;
  const auto add = [&](std::int32_t tokens, std::vector<float> x, std::size_t room) {
    host_chunk& c = all.emplace_back(host_chunk{tokens, std::move(x), std::vector<std::byte>(room), {}});
    std::int64_t bytes = 0;
    c.code =
        encode_coefficients(host{}, codec, s.model(), {c.coefficients.data(), components, tokens, tokens}, log2_step, c.bytes, bytes).kind;
    if (c.code == status::code::ok) c.bytes.resize(static_cast<std::size_t>(bytes));
  };
  for (const std::int32_t tokens : {0, 1, 7, 32, 45, 64}) {
    const std::vector<float> x = law_of(s, components, tokens, 3);
    add(tokens, x, 40000);
    const std::size_t whole = all.back().bytes.size();
    if (tokens != 45) continue;
    for (const std::size_t less : {std::size_t{1}, std::size_t{2}, std::size_t{3}, whole / 2, whole - 9, whole - 3})
      add(tokens, x, whole - less);
    add(tokens, x, whole);
  }
  if (components == 0) return all;
  const auto strange = [&](float x, std::size_t at) {
    std::vector<float> with = law_of(s, components, 33, 4);
    with[at % with.size()] = x;
    return with;
  };
  for (const float x : {quiet_nan, infinity, -infinity, 1e30f, -70000.0f, 40000.0f}) {
    add(33, strange(x, 5), 40000);
    add(33, strange(x, 1'000'003), 40000);
  }
  std::vector<float> zeros(static_cast<std::size_t>(components * 33));
  for (std::size_t i = 0; i < zeros.size(); ++i)
    zeros[i] = (i / 33 + i % 33) % 7 < 3 ? -0.0f : 0.0f;  // the sign of a range's end is that of the first
  add(33, zeros, 40000);
  add(33, std::vector<float>(zeros.size(), 3.25f), 40000);
  return all;
}

template <class Codec>
void check_codec(const span_case& s, const Codec& codec, int log2_step) {
  const std::int64_t components = kept_components(codec, s.model(), log2_step);
  const std::vector<host_chunk> all = host_chunks(s, codec, log2_step, components);
  span_there there(s);
  chunks_there to_code(there), to_decode(there);
  for (const host_chunk& c : all) {
    to_code.add(c.bytes, components, c.tokens, c.coefficients);
    to_decode.add(c.bytes, components, c.tokens, std::vector<float>(c.coefficients.size(), 77));
  }
  const auto results = encoded(there, to_code, codec, log2_step), back = decoded(there, to_decode, codec);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    CHECK(results[i].code == all[i].code);
    if (all[i].code != status::code::ok) continue;
    CHECK(results[i].bytes == static_cast<std::int64_t>(all[i].bytes.size()));
    CHECK(to_code.bytes(i, results[i].bytes) == all[i].bytes);
    std::vector<float> expected(all[i].coefficients.size());
    REQUIRE(decode_coefficients(host{}, codec, s.model(), all[i].bytes, {expected.data(), components, all[i].tokens, all[i].tokens}).ok());
    CHECK(back[i].code == status::code::ok);
    CHECK(back[i].kind == static_cast<chunk_kind>(all[i].bytes[0]));
    CHECK(same_bits(to_decode.coefficients(i), expected));
  }
}

/// Every answer to damaged bytes is the host's, and so are the coefficients where there are any.
template <class Codec>
void check_damage(const span_case& s, const Codec& codec, int log2_step, std::int32_t tokens) {
  const std::int64_t components = kept_components(codec, s.model(), log2_step);
  const std::vector<float> x = law_of(s, components, tokens, 5);
  std::vector<std::byte> whole(40000);
  std::int64_t bytes = 0;
  REQUIRE(encode_coefficients(host{}, codec, s.model(), {x.data(), components, tokens, tokens}, log2_step, whole, bytes).ok());
  whole.resize(static_cast<std::size_t>(bytes));
  std::vector<std::vector<std::byte>> damaged;
  for (std::size_t n = 0; n < whole.size(); n += n < 24 ? 1 : 37)
    damaged.emplace_back(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
  damaged.push_back(whole);
  damaged.back().push_back(std::byte{0});
  for (std::size_t i = 0; i < whole.size(); i += i < 40 || i + 3 > whole.size() ? 1 : 11) {
    damaged.push_back(whole);
    damaged.back()[i] ^= std::byte{1} << (i < 2 ? i : 7 - i % 8);
  }
  for (int kind = 0; kind < 256; kind += kind < 8 ? 1 : 50) {
    damaged.push_back(whole);
    damaged.back()[0] = static_cast<std::byte>(kind);
  }
  for (std::size_t i = 8; i + 1 < whole.size(); i += i < 200 ? 3 : 97) {  // ranges without end, among others
    damaged.push_back(whole);
    damaged.back()[i] = damaged.back()[i + 1] = std::byte{0x7f};
  }
  for (int bit = 0; bit < 8; ++bit) {
    damaged.push_back(whole);
    damaged.back().back() ^= std::byte{1} << bit;
  }
  span_there there(s);
  chunks_there to_decode(there);
  for (const auto& d : damaged) to_decode.add(d, components, tokens, std::vector<float>(x.size(), 77));
  const auto results = decoded(there, to_decode, codec);
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    CAPTURE(i);
    std::vector<float> expected(x.size());
    const status said = decode_coefficients(host{}, codec, s.model(), damaged[i], {expected.data(), components, tokens, tokens});
    CHECK(results[i].code == said.kind);
    if (said.ok()) CHECK(same_bits(to_decode.coefficients(i), expected));
  }
}

/// Runs that are not stored between those that are, whose bits do not fill a byte.
span_case with_gaps(const span_case& s) {
  span_case gaps = s;
  gaps.plan.runs = {{1, 8}, {3, 0}, {16, 4}, {1, 2}, {16, 0}, {1, 4}};
  const level_counts counts(gaps.plan);
  gaps.frequencies = counts.frequencies();
  gaps.alphabets = level_alphabets(gaps.plan, gaps.frequencies);
  return gaps;
}

}  // namespace

TEST_CASE("one step and rANS: the host's bytes and coefficients, of every token count, room and kind of number") {
  const span_case s(3, 16, 4);
  for (const int log2_step : {-900, -200, 300, 2000}) check_codec(s, kvtc_entropy{}, log2_step);
}

TEST_CASE("a plan with rANS or at a fixed width: the host's bytes and coefficients") {
  const span_case s(4, 32, 4);
  check_codec(s, kvtc_faithful<rans>{}, 0);
  check_codec(s, kvtc_faithful<fixed_width>{.entropy = {packing::components}}, 0);
  check_codec(s, kvtc_faithful<fixed_width>{.entropy = {packing::tokens}}, 0);
  const span_case gaps = with_gaps(s);
  check_codec(gaps, kvtc_faithful<rans>{}, 0);
  check_codec(gaps, kvtc_faithful<fixed_width>{.entropy = {packing::components}}, 0);
  check_codec(gaps, kvtc_faithful<fixed_width>{.entropy = {packing::tokens}}, 0);
}

TEST_CASE("truncated and damaged chunks: the host's answer") {
  const span_case s(3, 16, 4);
  check_damage(s, kvtc_entropy{}, -300, 33);
  check_damage(s, kvtc_faithful<rans>{}, 0, 33);
  const span_case gaps = with_gaps(s);
  check_damage(gaps, kvtc_faithful<fixed_width>{.entropy = {packing::components}}, 0, 33);
  check_damage(gaps, kvtc_faithful<fixed_width>{.entropy = {packing::tokens}}, 0, 33);
}

TEST_CASE("more room than components, and less") {
  const span_case s(3, 16, 4);
  const std::int64_t components = kept_components(kvtc_entropy{}, s.model(), 200);
  const std::vector<float> x = law_of(s, components, 40, 5);
  std::vector<std::byte> chunk(40000);
  std::int64_t bytes = 0;
  REQUIRE(encode_coefficients(host{}, kvtc_entropy{}, s.model(), {x.data(), components, 40, 40}, 200, chunk, bytes).ok());
  chunk.resize(static_cast<std::size_t>(bytes));
  span_there there(s);
  chunks_there chunks(there);
  chunks.add(chunk, components + 3, 40, std::vector<float>(static_cast<std::size_t>((components + 3) * 40), 77));
  chunks.add(chunk, components - 1, 40, std::vector<float>(static_cast<std::size_t>((components - 1) * 40), 77));
  const auto results = decoded(there, chunks, kvtc_entropy{});
  CHECK(results[0].code == status::code::ok);
  CHECK(results[1].code == status::code::no_space);
  const auto rest = chunks.coefficients(0);
  CHECK(std::all_of(rest.begin() + components * 40, rest.end(), [](float v) { return v == 0; }));
  CHECK_THROWS_AS(encode_coefficients(there.exec, kvtc_entropy{}, {}, 40000, nullptr, nullptr), usage_error);
  CHECK_THROWS_AS(decode_coefficients(there.exec, kvtc_entropy{}, {.count = -1}, nullptr), usage_error);
}
