// rANS streams: what goes in comes out, under every instruction set, at the size that the alphabets predict; nothing is read outside them.

#include <support/guarded.hpp>
#include <support/instruction_sets.hpp>
#include <support/rans.hpp>

#include <kvx/codec/host/rans.hpp>
#include <kvx/codec/scale_tables.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

const host exec;

const scale_tables& tables() {
  static const scale_tables t;
  return t;
}

/// Components with alphabets, and values for them.
struct stream_case {
  std::vector<symbol_lookup> lookups;
  std::vector<std::uint16_t> table_of;
  std::int32_t tokens;
  std::vector<std::int16_t> values;

  stream_case(std::int64_t components, std::int32_t n) : table_of(static_cast<std::size_t>(components)), tokens(n) {
    values.assign(static_cast<std::size_t>(components * pitch()), 0);
  }
  std::int64_t pitch() const { return symbol_pitch(tokens); }
  std::int64_t components() const { return static_cast<std::int64_t>(table_of.size()); }
  symbol_model model() const { return {lookups.empty() ? tables().lookups() : lookups.data(), table_of.data(), components()}; }
  component_matrix<const std::int16_t> view() const { return {values.data(), components(), tokens, pitch()}; }
  std::int16_t& at(std::int64_t c, std::int32_t t) { return values[static_cast<std::size_t>(c * pitch() + t)]; }

  std::vector<std::byte> encoded() const {
    std::vector<std::byte> out(static_cast<std::size_t>(rans_bound(model(), tokens)));
    std::int64_t bytes = 0;
    const status s = rans_encode(exec, model(), view(), out, bytes);
    CHECK_MESSAGE(s.ok(), message(s));
    out.resize(static_cast<std::size_t>(bytes));
    return out;
  }
};

/// Coefficients of the scales that the alphabets expect, from a power law.
stream_case coefficients(std::int64_t components, std::int32_t tokens, double first_scale, unsigned seed) {
  stream_case s(components, tokens);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (std::int64_t c = 0; c < components; ++c) {
    const double scale = first_scale * std::pow(static_cast<double>(c + 1), -.75);
    s.table_of[static_cast<std::size_t>(c)] = table_of_scale({code_of_power(static_cast<float>(scale)), 0, 0}, 0);
    for (std::int32_t t = 0; t < tokens; ++t) {
      const double x = scale * normal(random);
      const int n = static_cast<int>(std::fabs(x) + 77 / 256.0);
      s.at(c, t) = static_cast<std::int16_t>(x < 0 ? -n : n);
    }
  }
  return s;
}

/// Decodes from memory whose ends nobody may read across; true where the values are those of the case.
bool decodes_to(const stream_case& s, std::span<const std::byte> stream, instruction_set set, bool at_end) {
  const guarded memory(std::max<std::size_t>(stream.size(), 1), at_end);
  std::byte* const first = memory.data() + (at_end && stream.empty() ? 1 : 0);
  if (!stream.empty()) std::memcpy(first, stream.data(), stream.size());
  std::vector<std::int16_t> out(s.values.size(), 77);
  const status result =
      rans_decode_with(simd::rans_kernel_of(set), s.model(), {first, stream.size()}, {out.data(), s.components(), s.tokens, s.pitch()});
  CHECK_MESSAGE(result.ok(), message(result));
  bool same = result.ok();
  for (std::int64_t c = 0; c < s.components(); ++c) {
    const auto* const a = out.data() + c * s.pitch();
    same = same && std::equal(a, a + s.tokens, s.values.data() + c * s.pitch());
  }
  return same;
}

void check_round_trip(const stream_case& s) {
  const std::vector<std::byte> stream = s.encoded();
  CHECK(static_cast<std::int64_t>(stream.size()) <= rans_bound(s.model(), s.tokens));
  const auto plain = plain_rans_decode(s.model(), s.tokens, stream);
  REQUIRE(plain.has_value());
  bool same = true;
  for (std::int64_t c = 0; c < s.components(); ++c) {
    same = same && std::equal(plain->begin() + c * s.tokens, plain->begin() + (c + 1) * s.tokens, s.values.data() + c * s.pitch());
  }
  CHECK(same);
  for (const auto set : instruction_sets()) {
    CAPTURE(name_of(set));
    CHECK(decodes_to(s, stream, set, true));
    CHECK(decodes_to(s, stream, set, false));
  }
}

const std::vector<std::int32_t> token_counts = {0, 1, 2, 7, 8, 9, 31, 32, 33, 48, 63, 64, 65, 100, 256};

}  // namespace

TEST_CASE("what goes in comes out: coefficients of every number of tokens and components") {
  for (const std::int32_t tokens : token_counts) {
    for (const std::int64_t components : {0, 1, 2, 5, 40}) {
      CAPTURE(tokens);
      CAPTURE(components);
      check_round_trip(coefficients(components, tokens, 1.5, 7));
      check_round_trip(coefficients(components, tokens, 300, 8));
    }
  }
}

TEST_CASE("what goes in comes out: one symbol, escapes only, the whole range, under every alphabet") {
  std::mt19937 random(3);
  for (int table = 0; table < scale_count * shape_count; table += 7) {
    for (const int kind : {0, 1, 2, 3}) {
      stream_case s(3, 70);
      for (auto& t : s.table_of) t = static_cast<std::uint16_t>(table);
      for (std::int64_t c = 0; c < 3; ++c) {
        for (std::int32_t t = 0; t < s.tokens; ++t) {
          const auto any = static_cast<std::int32_t>(random() % 65535) - 32767;
          s.at(c, t) = static_cast<std::int16_t>(kind == 0   ? 0
                                                 : kind == 1 ? (t % 2 == 0 ? 32767 : -32767)
                                                 : kind == 2 ? any
                                                             : any >> random() % 16);
        }
      }
      CAPTURE(table);
      CAPTURE(kind);
      check_round_trip(s);
    }
  }
}

TEST_CASE("alphabets of counts, without an escape: widths of two to eight bits") {
  std::mt19937 random(4);
  for (const int bits : {2, 4, 8}) {
    stream_case s(6, 130);
    for (std::int64_t c = 0; c < 6; ++c) {
      std::uint64_t counts[alphabet_size] = {};
      const int raw = bits == 8 ? 4 : 0;
      for (std::int32_t t = 0; t < s.tokens; ++t) {
        const auto x = static_cast<std::int32_t>(random() % (1u << bits) & random());
        s.at(c, t) = static_cast<std::int16_t>(x);
        ++counts[x >> raw];
      }
      s.lookups.push_back(make_lookup(normalised(counts), {0, 255, static_cast<std::uint8_t>(raw)}));
      s.table_of[static_cast<std::size_t>(c)] = static_cast<std::uint16_t>(c);
    }
    check_round_trip(s);
    s.at(2, 5) = static_cast<std::int16_t>(1 << bits);
    std::vector<std::byte> out(static_cast<std::size_t>(rans_bound(s.model(), s.tokens)));
    std::int64_t bytes = 0;
    CHECK(rans_encode(exec, s.model(), s.view(), out, bytes) == status::code::unfit);
  }
}

TEST_CASE("one symbol that is all there is: no word, whichever symbol, whatever the number of tokens") {
  for (const std::int32_t tokens : {1, 31, 32, 70}) {
    stream_case s(alphabet_size, tokens);
    for (int symbol = 0; symbol < alphabet_size; ++symbol) {
      std::uint64_t counts[alphabet_size] = {};
      counts[symbol] = 5;
      s.lookups.push_back(make_lookup(normalised(counts), {-7, 255, 0}));
      s.table_of[static_cast<std::size_t>(symbol)] = static_cast<std::uint16_t>(symbol);
      for (std::int32_t t = 0; t < tokens; ++t) s.at(symbol, t) = static_cast<std::int16_t>(symbol - 7);
    }
    check_round_trip(s);
    CHECK(s.encoded().size() == static_cast<std::size_t>(rans_header_bytes + 4 * std::min(tokens, rans_lanes)));
  }
}

TEST_CASE("a stream is as long as its alphabets say, within one in a hundred") {
  for (const double scale : {.5, 2.0, 20.0, 500.0}) {
    const stream_case s = coefficients(400, 256, scale, 11);
    const double bits = cross_entropy(s.model(), s.view());
    const auto written = 8.0 * static_cast<double>(s.encoded().size());
    CAPTURE(scale);
    CAPTURE(bits);
    CHECK(written <= 1.01 * bits + 8 * (rans_header_bytes + 4 * rans_lanes));
    CHECK(written >= .999 * bits);
  }
}

TEST_CASE("too little room is said, and nothing is written beyond it") {
  const stream_case s = coefficients(12, 40, 30, 5);
  const std::vector<std::byte> stream = s.encoded();
  std::int64_t bytes = 0;
  for (std::size_t room = 0; room < stream.size(); ++room) {
    const guarded memory(std::max<std::size_t>(room, 1), true);
    CHECK(rans_encode(exec, s.model(), s.view(), {memory.data(), room}, bytes) == status::code::no_space);
  }
  const guarded memory(stream.size(), true);
  CHECK(rans_encode(exec, s.model(), s.view(), {memory.data(), stream.size()}, bytes).ok());
  CHECK(std::memcmp(memory.data(), stream.data(), stream.size()) == 0);
}

TEST_CASE("every truncation and every flipped bit: an error, or values that the plain decoder reads too") {
  for (const double scale : {1.0, 200.0}) {
    const stream_case s = coefficients(9, 45, scale, 6);
    const std::vector<std::byte> stream = s.encoded();
    std::vector<std::int16_t> out(s.values.size());
    const component_matrix<std::int16_t> view{out.data(), s.components(), s.tokens, s.pitch()};
    const auto agree = [&](std::span<const std::byte> bytes) {
      const guarded memory(std::max<std::size_t>(bytes.size(), 1), true);
      std::byte* const first = memory.data() + (bytes.empty() ? 1 : 0);
      if (!bytes.empty()) std::memcpy(first, bytes.data(), bytes.size());
      const auto plain = plain_rans_decode(s.model(), s.tokens, bytes);
      bool same = true;
      for (const auto set : instruction_sets()) {
        const status result = rans_decode_with(simd::rans_kernel_of(set), s.model(), {first, bytes.size()}, view);
        same = same && result.ok() == plain.has_value();
        for (std::int64_t c = 0; plain && c < s.components(); ++c)
          same = same && std::equal(plain->begin() + c * s.tokens, plain->begin() + (c + 1) * s.tokens, out.data() + c * s.pitch());
      }
      return std::pair(same, plain.has_value());
    };
    for (std::size_t n = 0; n < stream.size(); ++n) {
      const auto [same, sound] = agree(std::span(stream).first(n));
      CHECK(same);
      CHECK_FALSE(sound);
    }
    for (std::size_t i = 0; i < stream.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::vector<std::byte> damaged = stream;
        damaged[i] ^= std::byte{1} << bit;
        CHECK(agree(damaged).first);
      }
    }
  }
}

TEST_CASE("an escape that tells a value beyond 16 bits is an error") {
  for (const int table : {0, scale_count - 1}) {
    stream_case s(1, 40);
    s.table_of[0] = static_cast<std::uint16_t>(table);
    s.at(0, 33) = 32767;
    std::vector<std::byte> stream = s.encoded();
    const std::size_t escape = stream.size() - (table == 0 ? 3 : 1);
    if (table == 0) {  // 255 and 65534: the largest distance upwards; one more is the largest downwards
      REQUIRE(stream[escape] == std::byte{255});
      stream[escape + 1] = stream[escape + 2] = std::byte{255};
    } else {
      stream[escape] = std::byte{254};
    }
    std::vector<std::int16_t> out(s.values.size());
    CHECK_FALSE(plain_rans_decode(s.model(), s.tokens, stream).has_value());
    for (const auto set : instruction_sets())
      CHECK(rans_decode_with(simd::rans_kernel_of(set), s.model(), stream, {out.data(), 1, 40, 64}) == status::code::corrupt);
  }
}

TEST_CASE("random bytes: the same answer from every instruction set and the plain decoder") {
  std::mt19937 random(9);
  stream_case s = coefficients(20, 77, 40, 6);
  const std::vector<std::byte> stream = s.encoded();
  std::vector<std::int16_t> out(s.values.size());
  int sound = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> bytes = stream;
    const std::size_t from = round % 2 == 0 ? rans_header_bytes : rans_header_bytes + 4 * rans_lanes;
    if (round % 3 == 0) {  // other counts, so that bytes change sides between words and escapes
      std::uint32_t counts[2];
      std::memcpy(counts, bytes.data(), sizeof counts);
      const auto moved = static_cast<std::uint32_t>(random() % (counts[0] + 1));
      counts[0] -= moved;
      counts[1] += 2 * moved;
      std::memcpy(bytes.data(), counts, sizeof counts);
    }
    for (std::size_t i = from + random() % (bytes.size() - from); i < bytes.size(); i += 1 + random() % 64)
      bytes[i] = static_cast<std::byte>(random());
    const auto plain = plain_rans_decode(s.model(), s.tokens, bytes);
    sound += plain.has_value();
    for (const auto set : instruction_sets()) {
      const status result =
          rans_decode_with(simd::rans_kernel_of(set), s.model(), bytes, {out.data(), s.components(), s.tokens, s.pitch()});
      CHECK(result.ok() == plain.has_value());
    }
  }
  MESSAGE(sound, " of 3000 were sound streams");
}

TEST_CASE("misuse") {
  stream_case s(2, 40);
  std::vector<std::byte> out(1000);
  std::int64_t bytes = 0;
  std::vector<std::int16_t> values(200);
  CHECK_THROWS_AS((void)rans_encode(exec, s.model(), {values.data(), 3, 40, 64}, out, bytes), usage_error);
  CHECK_THROWS_AS((void)rans_decode(exec, s.model(), out, {values.data(), 2, 40, 40}), usage_error);
}
