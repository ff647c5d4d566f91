// Chunks: rows come back within the error of their step or plan, keys through their turns; what cannot be coded comes back to the bit.

#include <support/guarded.hpp>
#include <support/span_case.hpp>

#include <kvx/codec/host/chain.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

const host exec;

template <class E>
std::vector<E> as(const std::vector<float>& x) {
  std::vector<E> r;
  for (const float v : x) r.push_back(round_to<E>(v));
  return r;
}

template <class Codec, class E>
std::vector<std::byte> encoded(const Codec& codec, const span_case& s, const std::vector<E>& rows, std::int64_t tokens, int log2_step,
                               const span_turns& turns = {}) {
  std::vector<std::byte> out(static_cast<std::size_t>(chunk_bound<E>(tokens, s.rank)) + 999);  // room beyond the bound is not used
  std::int64_t bytes = 0;
  const status result = encode_chunk(exec, plain_products(), codec, s.model(), tensor_view<const E, 2>(rows.data(), tokens, s.rank), turns,
                                     log2_step, out, bytes);
  CHECK_MESSAGE(result.ok(), message(result));
  CHECK(bytes <= chunk_bound<E>(tokens, s.rank));
  out.resize(static_cast<std::size_t>(bytes));
  return out;
}

template <class E, class Codec>
status decoded(const Codec& codec, const span_case& s, std::span<const std::byte> bytes, std::int64_t tokens, std::vector<E>& rows,
               const span_turns& turns = {}) {
  opened_chunk<E> chunk;
  const status result = open_chunk<Codec, E>(exec, codec, s.model(), bytes, tokens, s.rank, chunk);
  if (!result.ok()) return result;
  rows.assign(static_cast<std::size_t>(tokens * s.rank), E{});
  restore_rows(exec, plain_products(), s.model(), chunk, turns, 0, tensor_view<E, 2>(rows.data(), tokens, s.rank));
  return result;
}

/// Mean squared error in the weighted features.
template <class E>
double error_of(const span_case& s, const std::vector<E>& a, const std::vector<E>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = (static_cast<double>(to_float(a[i])) - static_cast<double>(to_float(b[i]))) *
                       (s.weights.empty() ? 1 : s.weights[i % s.weights.size()]);
    sum += off * off;
  }
  return sum / static_cast<double>(a.size());
}

template <class E>
chunk_kind kind(const std::vector<E>& chunk) {
  return static_cast<chunk_kind>(chunk[0]);
}

}  // namespace

TEST_CASE_TEMPLATE("entropy-first: the error of a step, fewer bytes for larger steps, layers restored one by one", E, float, half, bf16) {
  const span_case s(3, 32, 16);
  for (const std::int64_t tokens : {1, 64, 100}) {
    const std::vector<E> rows = as<E>(s.rows(tokens, 5));
    double before = 1e300;
    for (const int log2_step : {-600, -256, 0, 256}) {
      const auto chunk = encoded(kvtc_entropy{}, s, rows, tokens, log2_step);
      CAPTURE(tokens);
      CAPTURE(log2_step);
      if (tokens == 1) continue;  // may be stored as rows
      REQUIRE(kind(chunk) == chunk_kind::step_rans);
      CHECK(static_cast<double>(chunk.size()) < before);
      before = static_cast<double>(chunk.size());
      std::vector<E> back;
      REQUIRE(decoded<E>(kvtc_entropy{}, s, chunk, tokens, back).ok());
      const double step = std::exp2(log2_step / 256.0);
      const double rounding = std::same_as<E, bf16> ? 30 * 0x1p-18 * 20 : 1e-4;
      CHECK(error_of(s, rows, back) < step * step / 4 + rounding);
      // Head by head.
      opened_chunk<E> opened;
      REQUIRE((open_chunk<kvtc_entropy, E>(exec, {}, s.model(), chunk, tokens, s.rank, opened).ok()));
      for (std::int64_t h = 0; h < s.heads; ++h) {
        std::vector<E> part(static_cast<std::size_t>(tokens * s.dim));
        restore_rows(exec, plain_products(), s.model(), opened, {}, h * s.dim, tensor_view<E, 2>(part.data(), tokens, s.dim));
        bool same = true;
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t d = 0; d < s.dim; ++d)
            same = same && part[static_cast<std::size_t>(t * s.dim + d)] == back[static_cast<std::size_t>(t * s.rank + h * s.dim + d)];
        }
        CHECK(same);
      }
    }
  }
}

TEST_CASE("faithful: the plan's error and size; static alphabets are smaller than the fixed width") {
  const span_case s(8, 32, 4);
  const std::vector<float> rows = s.rows(256, 6);
  const auto fixed = encoded(kvtc_faithful<fixed_width>{}, s, rows, 256, 0);
  const auto by_tokens = encoded(kvtc_faithful<fixed_width>{.entropy = {packing::tokens}}, s, rows, 256, 0);
  const auto coded = encoded(kvtc_faithful<rans>{}, s, rows, 256, 0);
  CHECK(fixed.size() == 8 + static_cast<std::size_t>(packed_bytes(s.plan, 256)));
  CHECK(by_tokens.size() == fixed.size());
  CHECK(kind(coded) == chunk_kind::groups_rans);
  CHECK(coded.size() < fixed.size() * 97 / 100);
  std::vector<float> a, b, c;
  REQUIRE(decoded<float>(kvtc_faithful<fixed_width>{}, s, fixed, 256, a).ok());
  REQUIRE(decoded<float>(kvtc_faithful<fixed_width>{}, s, by_tokens, 256, b).ok());
  REQUIRE(decoded<float>(kvtc_faithful<rans>{}, s, coded, 256, c).ok());
  CHECK(a == b);
  CHECK(a == c);
  CHECK(error_of(s, rows, a) < 6);
  CHECK(error_of(s, rows, a) > 1e-6);
}

TEST_CASE("one token, and what cannot gain: rows to the bit, never longer than they are") {
  const span_case s(2, 16, 16);
  for (const std::int64_t tokens : {0, 1, 2}) {
    const std::vector<bf16> rows = as<bf16>(s.rows(tokens, 7));
    for (const int log2_step : {-5000, 0, 3000}) {
      const auto chunk = encoded(kvtc_entropy{}, s, rows, tokens, log2_step);
      CHECK(static_cast<std::int64_t>(chunk.size()) <= chunk_bound<bf16>(tokens, s.rank));
      std::vector<bf16> back;
      REQUIRE(decoded<bf16>(kvtc_entropy{}, s, chunk, tokens, back).ok());
      if (kind(chunk) == chunk_kind::rows) CHECK(back == rows);
    }
  }
  const std::vector<bf16> rows = as<bf16>(s.rows(3, 7));
  const auto chunk = encoded(raw{}, s, rows, 3, 0);
  std::vector<bf16> back;
  REQUIRE(decoded<bf16>(raw{}, s, chunk, 3, back).ok());
  CHECK(back == rows);
}

TEST_CASE_TEMPLATE("rows that are no numbers are kept as they are", E, float, half, bf16) {
  const span_case s(2, 32, 8);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> floats = s.rows(64, 8);
    floats[40 * 64 + 3] = bad;
    const std::vector<E> rows = as<E>(floats);
    const auto compare = [&](const auto& codec) {
      const auto chunk = encoded(codec, s, rows, 64, 0);
      CHECK(kind(chunk) == chunk_kind::rows);
      std::vector<E> back;
      REQUIRE(decoded<E>(codec, s, chunk, 64, back).ok());
      CHECK(std::memcmp(back.data(), rows.data(), rows.size() * sizeof(E)) == 0);
    };
    compare(kvtc_entropy{});
    compare(kvtc_faithful<fixed_width>{});
    compare(kvtc_faithful<rans>{});
  }
}

TEST_CASE("a constant channel, a bias thirty times the rest, all rows equal") {
  span_case s(2, 32, 8, false);
  for (std::size_t f = 0; f < s.mean.size(); f += 5) s.mean[f] = f % 2 == 0 ? 600 : -905;
  std::vector<float> rows = s.rows(64, 9);
  for (std::size_t i = 10; i < rows.size(); i += 64) rows[i] = s.mean[10];
  const auto check = [&](const std::vector<float>& in, double most) {
    for (const int log2_step : {-256, 0}) {
      const auto chunk = encoded(kvtc_entropy{}, s, in, 64, log2_step);
      CHECK(kind(chunk) == chunk_kind::step_rans);
      std::vector<float> back;
      REQUIRE(decoded<float>(kvtc_entropy{}, s, chunk, 64, back).ok());
      CHECK(error_of(s, in, back) < most);
    }
  };
  check(rows, .3);
  for (std::size_t i = 64; i < rows.size(); ++i) rows[i] = rows[i % 64];
  check(rows, .6);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = s.mean[i % 64];
  check(rows, .01);
}

TEST_CASE("keys are turned back before the transform and forwards after it; layers that do not turn stay") {
  const span_case s(4, 32, 8);
  const std::int64_t tokens = 40;
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(1000 + 7 * t);
  const rope_turns turning({.pairs = {rope_pairs::order::halves, 32}}, positions);
  rope loud{.pairs = {rope_pairs::order::interleaved, 16}, .scaled = rope::scaling::yarn, .factor = 8};
  const rope_turns partly(loud, positions);
  const rope_turns* of[4] = {&turning, nullptr, &partly, &turning};
  const span_turns turns{32, of};
  const std::vector<float> plain = s.rows(tokens, 3);
  std::vector<float> keys = plain;
  turn_rows(exec, turns, tensor_view<float, 2>(keys.data(), tokens, s.rank), 0, true);
  CHECK(keys != plain);
  const auto with = encoded(kvtc_entropy{}, s, keys, tokens, -256, turns), without = encoded(kvtc_entropy{}, s, plain, tokens, -256);
  CHECK(with.size() < without.size() * 101 / 100);
  std::vector<float> a, b;
  REQUIRE(decoded<float>(kvtc_entropy{}, s, with, tokens, a, turns).ok());
  REQUIRE(decoded<float>(kvtc_entropy{}, s, without, tokens, b).ok());
  CHECK(error_of(s, a, keys) < .1);
  turn_rows(exec, turns, tensor_view<float, 2>(b.data(), tokens, s.rank), 0, true);
  CHECK(error_of(s, a, b) < .02);
  // The third head alone.
  opened_chunk<float> opened;
  REQUIRE((open_chunk<kvtc_entropy, float>(exec, {}, s.model(), with, tokens, s.rank, opened).ok()));
  std::vector<float> part(static_cast<std::size_t>(tokens * 32));
  restore_rows(exec, plain_products(), s.model(), opened, turns, 64, tensor_view<float, 2>(part.data(), tokens, 32));
  bool same = true;
  for (std::int64_t t = 0; t < tokens; ++t)
    same = same && std::equal(part.begin() + t * 32, part.begin() + (t + 1) * 32, a.begin() + t * s.rank + 64);
  CHECK(same);
}

TEST_CASE("every truncation is an error; every flipped bit one, or rows that are numbers; nothing outside is read") {
  const span_case s(2, 16, 8);
  const std::int64_t tokens = 24;
  const std::vector<bf16> rows = as<bf16>(s.rows(tokens, 4));
  const auto check = [&](const auto& codec, const std::vector<std::byte>& chunk) {
    std::vector<bf16> back;
    for (std::size_t n = 0; n < chunk.size(); ++n) {
      const guarded memory(std::max<std::size_t>(n, 1), true);
      std::memcpy(memory.data(), chunk.data(), n);
      CHECK_FALSE(decoded<bf16>(codec, s, {memory.data() + (n == 0 ? 1 : 0), n}, tokens, back).ok());
    }
    int sound = 0;
    for (std::size_t i = 0; i < 8 * chunk.size(); ++i) {
      const guarded memory(chunk.size(), true);
      std::memcpy(memory.data(), chunk.data(), chunk.size());
      memory.data()[i / 8] ^= std::byte{1} << i % 8;
      sound += decoded<bf16>(codec, s, {memory.data(), chunk.size()}, tokens, back).ok();
    }
    MESSAGE(8 * chunk.size(), " flips, ", sound, " of them other sound chunks");
  };
  check(kvtc_entropy{}, encoded(kvtc_entropy{}, s, rows, tokens, 0));
  check(kvtc_faithful<fixed_width>{}, encoded(kvtc_faithful<fixed_width>{}, s, rows, tokens, 0));
  check(kvtc_faithful<rans>{}, encoded(kvtc_faithful<rans>{}, s, rows, tokens, 0));
  check(raw{}, encoded(raw{}, s, rows, tokens, 0));
}

TEST_CASE("chunks of another kind, and misuse") {
  const span_case s(2, 16, 8);
  const std::vector<bf16> rows = as<bf16>(s.rows(64, 4));
  const auto ours = encoded(kvtc_entropy{}, s, rows, 64, 0), theirs = encoded(kvtc_faithful<fixed_width>{}, s, rows, 64, 0);
  std::vector<bf16> back;
  CHECK(decoded<bf16>(kvtc_faithful<rans>{}, s, ours, 64, back) == status::code::corrupt);
  CHECK(decoded<bf16>(kvtc_entropy{}, s, theirs, 64, back) == status::code::corrupt);
  CHECK(decoded<bf16>(raw{}, s, ours, 64, back) == status::code::corrupt);
  CHECK_FALSE(decoded<bf16>(kvtc_entropy{}, s, ours, 63, back).ok());
  std::vector<std::byte> out(10);
  std::int64_t bytes = 0;
  const tensor_view<const bf16, 2> view(rows.data(), 64, s.rank);
  CHECK(encode_chunk(exec, plain_products(), kvtc_entropy{}, s.model(), view, {}, 0, out, bytes) == status::code::no_space);
  span_model none = s.model();
  none.tables = nullptr;
  CHECK_THROWS_AS((void)encode_chunk(exec, plain_products(), kvtc_entropy{}, none, view, {}, 0, out, bytes), usage_error);
  CHECK_THROWS_AS((void)encode_chunk(exec, plain_products(), kvtc_entropy{}, s.model(), tensor_view<const bf16, 2>(rows.data(), 64, 16), {},
                                     0, out, bytes),
                  usage_error);
}

TEST_CASE("the dead zone: edges, signs, and what no symbol holds") {
  for (const float bad : {quiet_nan, infinity, -infinity, 32767.75f, -40000.0f, 3e38f}) CHECK(quantised(bad, 1, 77) == beyond_symbols);
  for (int n = 0; n < 300; ++n) {
    const float edge = static_cast<float>(n) + 1 - 77 / 256.0f;
    CHECK(quantised(edge, 1, 77) == n + 1);
    CHECK(quantised(-edge, 1, 77) == -n - 1);
    CHECK(quantised(std::nextafter(edge, 0.0f) * 4, .25f, 77) == n);
    const std::uint16_t* const levels = span_case::tables().level(scale_count - 1);
    const float value = dequantised(n, levels, 77, 2.0f / scale_tables::level_units);
    CHECK(value == dequantised(-n, levels, 77, -2.0f / scale_tables::level_units));
    CHECK(std::fabs(value / 2 - (n == 0 ? 0 : static_cast<float>(n) + .5f - 77 / 256.0f)) < .002f);
  }
}
