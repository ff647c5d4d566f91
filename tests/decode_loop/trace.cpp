// Trace files: rows come back up to the element's rounding; cut, damaged or absurd files are refused with the place named.

#include "gguf_writer.hpp"

#include <trace.hpp>

#include <kvx/core/check.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

using namespace decode_loop;

namespace {

constexpr trace_shape small{.half = true,
                            .first_layer = 3,
                            .layers = 2,
                            .kv_heads = 2,
                            .query_heads = 4,
                            .key_dim = 4,
                            .value_dim = 3,
                            .first_position = 7,
                            .tokens = 5,
                            .queries = 2,
                            .rope_base = 1e5,
                            .pairs = rope_pairs::half_split,
                            .k0 = true};

struct rows_of_layer {
  std::vector<float> q, k, v, k0;
};

std::vector<rows_of_layer> random_rows(const trace_shape& s) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::size_t count) {
    std::vector<float> values(count);
    for (float& x : values) x = normal(random);
    return values;
  };
  std::vector<rows_of_layer> layers;
  for (std::uint32_t l = 0; l < s.layers; ++l) {
    layers.push_back({fill(s.tokens * s.query_heads * s.key_dim), fill(s.tokens * s.kv_heads * s.key_dim),
                      fill(s.tokens * s.kv_heads * s.value_dim), fill(s.tokens * s.kv_heads * s.key_dim)});
  }
  return layers;
}

/// Writes a trace in chunks of two tokens and returns the file's bytes.
std::string written(const trace_shape& s, const std::vector<rows_of_layer>& layers) {
  const auto path = (std::filesystem::temp_directory_path() / ("kvx_trace_test_" + std::to_string(std::random_device()()))).string();
  trace_writer out(path, s);
  std::vector<token_id> ids;
  for (std::uint64_t t = 0; t < s.tokens; ++t) ids.push_back(static_cast<token_id>(100 + t));
  out.write_ids(ids);
  for (std::uint64_t t = 0; t < s.tokens; t += 2) {
    const std::uint64_t n = std::min<std::uint64_t>(2, s.tokens - t);
    const auto part = [&](const std::vector<float>& all, std::size_t width) { return std::span(all).subspan(t * width, n * width); };
    for (std::uint32_t l = 0; l < s.layers; ++l) {
      const rows_of_layer& rows = layers[l];
      out.append(s.first_layer + l, {part(rows.q, s.query_heads * s.key_dim),
                                     part(rows.k, s.kv_heads * s.key_dim),
                                     part(rows.v, s.kv_heads * s.value_dim),
                                     part(rows.k0, s.kv_heads * s.key_dim),
                                     {}});
    }
    out.append(s.first_layer + s.layers, {});                           // a layer that the trace does not hold
  }
  out.finish();
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::filesystem::remove(path);
  return bytes;
}

trace_reader reader(const std::string& bytes) { return {std::make_unique<std::istringstream>(bytes), "t"}; }

/// Reads everything; the error, or "accepted".
std::string refusal(const std::string& bytes) {
  try {
    auto trace = reader(bytes);
    trace.ids();
    for (std::uint32_t l = 0; l < trace.shape().layers; ++l) {
      for (const auto part : {trace_part::k, trace_part::v, trace_part::q}) trace.read(trace.shape().first_layer + l, part);
      if (trace.shape().k0) trace.read(trace.shape().first_layer + l, trace_part::k0);
    }
  } catch (const file_error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a trace comes back, whole in float and rounded in half") {
  for (const bool half : {true, false}) {
    for (const bool k0 : {true, false}) {
      trace_shape s = small;
      s.half = half;
      s.k0 = k0;
      const auto layers = random_rows(s);
      auto trace = reader(written(s, layers));
      CHECK(trace.shape().first_position == 7);
      CHECK(trace.shape().rope_base == 1e5);
      CHECK(trace.shape().pairs == rope_pairs::half_split);
      CHECK(trace.ids() == std::vector<token_id>{100, 101, 102, 103, 104});
      for (std::uint32_t l = 0; l < s.layers; ++l) {
        const auto same = [&](const std::vector<float>& got, std::span<const float> expected) {
          REQUIRE(got.size() == expected.size());
          for (std::size_t i = 0; i < got.size(); ++i)
            CHECK(got[i] == (half ? kvx::to_float(kvx::round_to<kvx::half>(expected[i])) : expected[i]));
        };
        same(trace.read(3 + l, trace_part::k), layers[l].k);
        same(trace.read(3 + l, trace_part::v), layers[l].v);
        same(trace.read(3 + l, trace_part::q), std::span(layers[l].q).last(2 * 4 * 4));
        if (k0) same(trace.read(3 + l, trace_part::k0), layers[l].k0);
        if (!k0) CHECK_THROWS_WITH_AS(trace.read(3 + l, trace_part::k0), doctest::Contains("not in this trace"), file_error);
      }
      CHECK_THROWS_AS(trace.read(2, trace_part::k), file_error);
      CHECK_THROWS_AS(trace.read(5, trace_part::k), file_error);
    }
  }
}

TEST_CASE("a trace cut anywhere, or longer than its shape, is refused") {
  const auto whole = written(small, random_rows(small));
  CHECK(refusal(whole) == "accepted");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(refusal(whole.substr(0, length)).starts_with("t: "));
  }
  CHECK(refusal(whole + "x") == "t: has " + std::to_string(whole.size() + 1) + " bytes, its shape needs " + std::to_string(whole.size()));
}

TEST_CASE("any flipped bit is found, and its block named") {
  const auto whole = written(small, random_rows(small));
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    const auto message = refusal(damaged);
    REQUIRE(message != "accepted");
    if (bit / 8 >= 88) REQUIRE(message.find("its checksum differs") != message.npos);
  }
  auto damaged = whole;
  damaged[88 + 5 * 4 + 8] ^= 1;                                         // the first key of layer 3
  CHECK(refusal(damaged) == "t: offset 116: layer 3, k: its checksum differs");
}

TEST_CASE("shapes beyond their limits are refused by field, whatever the checksum says") {
  const auto header = [](auto change) {
    trace_shape s = small;
    s.layers = 1;
    change(s);
    test::byte_writer out;
    for (const char c : std::string("kvxtrace")) out.number(c);
    out.number<std::uint32_t>(1);
    out.number<std::uint32_t>(s.half);
    for (const auto n : {s.first_layer, s.layers, s.kv_heads, s.query_heads, s.key_dim, s.value_dim}) out.number(n);
    for (const auto n : {s.first_position, s.tokens, s.queries}) out.number(n);
    out.number(s.rope_base);
    out.number<std::uint32_t>(1);
    out.number<std::uint32_t>(1);
    std::uint64_t sum = 0xcbf29ce484222325;
    for (const auto byte : out.bytes()) sum = (sum ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
    out.number(sum);
    return refusal({reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size()});
  };
  const auto names = [](const std::string& message, std::string_view field) {
    CHECK_MESSAGE(message.find(field) != message.npos, message);
  };
  names(header([](trace_shape&) {}), "its shape needs");
  names(header([](trace_shape& s) { s.layers = 0; }), "layers");
  names(header([](trace_shape& s) { s.layers = ~0U; }), "layers");
  names(header([](trace_shape& s) { s.kv_heads = 0; }), "KV heads");
  names(header([](trace_shape& s) { s.query_heads = 3; }), "not a multiple");
  names(header([](trace_shape& s) { s.key_dim = 1U << 31; }), "key dim");
  names(header([](trace_shape& s) { s.value_dim = 0; }), "value dim");
  names(header([](trace_shape& s) { s.tokens = ~0ULL; }), "tokens");
  names(header([](trace_shape& s) { s.queries = 6; }), "queries");
  names(header([](trace_shape& s) { s.rope_base = std::nan(""); }), "RoPE base");
  names(header([](trace_shape& s) {
          s.tokens = 1ULL << 32;
          s.layers = 4096;
          s.kv_heads = s.query_heads = s.key_dim = 4096;
        }),
        "more than 2^64 bytes");
}

TEST_CASE("a writer refuses rows beyond its shape, and too few") {
  const auto path = (std::filesystem::temp_directory_path() / ("kvx_trace_test_" + std::to_string(std::random_device()()))).string();
  {
    trace_writer out(path, small);
    CHECK_THROWS_AS(out.finish(), kvx::usage_error);
    const std::vector<float> many(1000);
    CHECK_THROWS_AS(out.append(3, {{}, many, {}, {}, {}}), kvx::usage_error);
    CHECK_THROWS_AS(out.write_ids(std::vector<token_id>(4)), kvx::usage_error);
  }
  std::filesystem::remove(path);
  CHECK_THROWS_AS(trace_writer("/no/such/folder/trace", small), file_error);
  CHECK_THROWS_AS(trace_reader("/no/such/trace"), file_error);
}
