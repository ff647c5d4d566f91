// rANS streams on the device are the host's to the byte, both ways, whatever the values; damaged ones are refused without a look outside.

#include <kvx/codec/cuda/rans.cuh>
#include <kvx/codec/host/rans.hpp>
#include <kvx/codec/scale_tables.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "device/device_array.cuh"
#include "support/rans.hpp"

using namespace kvx;
using kvx::test::device_array;

namespace {

const scale_tables& tables() {
  static const scale_tables t;
  return t;
}

/// Components with alphabets of their own, or those of scales, and values for them.
struct stream_values {
  std::vector<symbol_lookup> lookups;
  std::vector<std::uint16_t> table_of;
  std::int32_t tokens = 0;
  std::vector<std::int16_t> values;  // (components, tokens)

  std::int64_t components() const { return static_cast<std::int64_t>(table_of.size()); }
  symbol_model model() const { return {lookups.empty() ? tables().lookups() : lookups.data(), table_of.data(), components()}; }
  component_matrix<const std::int16_t> view() const { return {values.data(), components(), tokens, tokens}; }

  /// The host's stream, in so many bytes at most.
  status::code host_stream(std::int64_t room, std::vector<std::byte>& out) const {
    out.assign(static_cast<std::size_t>(room), std::byte{0});
    std::int64_t bytes = 0;
    const status s = rans_encode(host{}, model(), view(), out, bytes);
    out.resize(static_cast<std::size_t>(bytes));
    return s.kind;
  }
  std::vector<std::byte> stream() const {
    std::vector<std::byte> out;
    CHECK(host_stream(rans_bound(model(), tokens), out) == status::code::ok);
    return out;
  }
};

/// Values that suit their alphabets (0), one symbol (1), the ends of the range (2), anything (3), tails of all lengths (4).
stream_values values_of(std::int64_t components, std::int32_t tokens, int first_table, int kind, unsigned seed) {
  stream_values s;
  s.tokens = tokens;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t c = 0; c < components; ++c) {
    const auto table = static_cast<std::uint16_t>((first_table + 3 * c) % (scale_count * shape_count));
    s.table_of.push_back(table);
    const float scale = power_of_code((table % scale_count + smallest_scale) * 32);
    for (std::int32_t t = 0; t < tokens; ++t) {
      const auto any = static_cast<std::int32_t>(random() % 65535) - 32767;
      const auto usual = std::clamp(static_cast<std::int32_t>(scale * normal(random)), -32767, 32767);
      const std::int32_t kinds[] = {usual, 0, t % 2 == 0 ? 32767 : -32767, any, any >> random() % 16};
      s.values.push_back(static_cast<std::int16_t>(kinds[kind]));
    }
  }
  return s;
}

/// Alphabets of counted levels of so many bits, without an escape.
stream_values levels_of(int bits, std::int32_t tokens, unsigned seed) {
  stream_values s;
  s.tokens = tokens;
  std::mt19937 random(seed);
  for (std::uint16_t c = 0; c < 5; ++c) {
    std::uint64_t counts[alphabet_size] = {};
    const int raw = bits == 8 ? 4 : 0;
    for (std::int32_t t = 0; t < tokens; ++t) {
      s.values.push_back(static_cast<std::int16_t>(random() % (1u << bits) & random()));
      ++counts[s.values.back() >> raw];
    }
    s.lookups.push_back(make_lookup(normalised(counts), {0, 255, static_cast<std::uint8_t>(raw)}));
    s.table_of.push_back(c);
  }
  return s;
}

/// Arrays of many streams in device memory, each its own allocation: a read or write beyond its end is seen.
struct streams_on_device {
  test::test_stream stream;
  device_array<symbol_lookup> scales{std::span(tables().lookups(), static_cast<std::size_t>(scale_count* shape_count))};
  std::vector<device_array<symbol_lookup>> lookups;
  std::vector<device_array<std::uint16_t>> table_of;
  std::vector<device_array<std::int16_t>> values;
  std::vector<device_array<std::byte>> bytes;

  device exec() const { return {.stream = stream.get()}; }
  symbol_model model(const stream_values& s) {
    table_of.emplace_back(s.table_of);
    if (!s.lookups.empty()) lookups.emplace_back(s.lookups);
    return {s.lookups.empty() ? scales.data() : lookups.back().data(), table_of.back().data(), s.components()};
  }

  /// What decoding says of each stream; values[i] hold what it gave.
  std::vector<rans_result> decode(const std::vector<stream_values>& of, const std::vector<std::vector<std::byte>>& streams) {
    std::vector<rans_decoding> jobs;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const stream_values& s = of[of.size() == 1 ? 0 : i];
      if (of.size() > 1 || i == 0)
        jobs.push_back({model(s), nullptr, 0, {}});
      else
        jobs.push_back(jobs.front());
      values.emplace_back(s.values.size());
      bytes.emplace_back(streams[i]);
      jobs.back().bytes = bytes.back().data();
      jobs.back().size = static_cast<std::int64_t>(streams[i].size());
      jobs.back().values = {values.back().data(), s.components(), s.tokens, s.tokens};
    }
    const device_array<rans_decoding> jobs_there(jobs);
    const device_array<rans_result> results(jobs.size());
    rans_decode(exec(), jobs_there.data(), static_cast<std::int64_t>(jobs.size()), results.data());
    stream.wait();
    return results.read();
  }

  /// bytes[i] hold what encoding into rooms[i] bytes gave.
  std::vector<rans_result> encode(const std::vector<stream_values>& of, const std::vector<std::int64_t>& rooms) {
    std::vector<rans_encoding> jobs;
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const stream_values& s = of[of.size() == 1 ? 0 : i];
      values.emplace_back(s.values);
      bytes.emplace_back(static_cast<std::size_t>(rooms[i]));
      jobs.push_back({model(s), {values.back().data(), s.components(), s.tokens, s.tokens}, bytes.back().data(), rooms[i]});
    }
    const device_array<rans_encoding> jobs_there(jobs);
    const device_array<rans_result> results(jobs.size());
    rans_encode(exec(), jobs_there.data(), static_cast<std::int64_t>(jobs.size()), results.data());
    stream.wait();
    return results.read();
  }
};

std::vector<stream_values> many_streams() {
  std::vector<stream_values> all;
  unsigned seed = 1;
  for (const std::int32_t tokens : {0, 1, 7, 31, 32, 33, 64, 100}) {
    for (const std::int64_t components : {0, 1, 5}) all.push_back(values_of(components, tokens, 20 + 5 * tokens, 0, ++seed));
  }
  for (int table = 0; table < scale_count * shape_count; table += 61) {
    for (int kind = 1; kind < 5; ++kind) all.push_back(values_of(3, 70, table, kind, ++seed));
  }
  for (const int bits : {2, 4, 8}) all.push_back(levels_of(bits, 70, ++seed));
  all.push_back(values_of(40, 96, 70, 0, 99));
  return all;
}

}  // namespace

TEST_CASE(
    "the host's bytes from the same values, the same values from the host's bytes: suited, one symbol, the whole range, levels, none") {
  const auto all = many_streams();
  std::vector<std::vector<std::byte>> streams;
  std::vector<std::int64_t> rooms;
  for (std::size_t i = 0; i < all.size(); ++i) {
    streams.push_back(all[i].stream());
    rooms.push_back(i % 3 == 0 ? rans_bound(all[i].model(), all[i].tokens) + static_cast<std::int64_t>(i % 5)
                               : static_cast<std::int64_t>(streams.back().size()) + static_cast<std::int64_t>(i % 3) - 1);
  }
  streams_on_device decoder, encoder;
  const auto decoded = decoder.decode(all, streams), encoded = encoder.encode(all, rooms);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    CHECK(decoded[i].code == status::code::ok);
    CHECK(decoder.values[i].read() == all[i].values);
    CHECK(encoded[i].code == status::code::ok);
    CHECK(encoded[i].bytes == static_cast<std::int64_t>(streams[i].size()));
    const auto written = encoder.bytes[i].read();
    CHECK(std::equal(streams[i].begin(), streams[i].end(), written.begin()));
  }
}

TEST_CASE("too little room, values without a symbol: what the host says, and nothing beyond the room") {
  std::vector<stream_values> all;
  std::vector<std::int64_t> rooms;
  const stream_values s = values_of(4, 45, 30, 4, 5), levels = levels_of(4, 70, 6);
  const auto whole = static_cast<std::int64_t>(s.stream().size());
  for (std::int64_t room = 0; room <= whole + 1; room += room + 20 < whole && room > 12 ? 7 : 1) {
    all.push_back(s);
    rooms.push_back(room);
  }
  stream_values strange = levels;
  strange.values[77] = 16;
  for (const stream_values& of : {levels, strange}) {
    all.push_back(of);
    rooms.push_back(4000);
  }
  streams_on_device encoder;
  const auto results = encoder.encode(all, rooms);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(rooms[i]);
    std::vector<std::byte> expected;
    CHECK(results[i].code == all[i].host_stream(rooms[i], expected));
    CHECK(results[i].bytes == static_cast<std::int64_t>(expected.size()));
  }
}

TEST_CASE("truncated and damaged streams: what the plain decoder says, and its values") {
  for (const int table : {30, 90}) {
    const stream_values s = values_of(4, 40, table, table == 30 ? 4 : 0, 8);
    const std::vector<std::byte> stream = s.stream();
    std::vector<std::vector<std::byte>> damaged;
    std::uint32_t counts[2];
    std::memcpy(counts, stream.data(), sizeof counts);
    for (std::size_t n = 0; n < stream.size(); n += n < 20 ? 1 : 5)
      damaged.emplace_back(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(n));
    for (std::size_t i = 0; i < stream.size(); ++i) {
      damaged.push_back(stream);
      damaged.back()[i] ^= std::byte{1} << i % 8;
    }
    for (std::uint32_t less = 1; less < 8 && counts[1] >= less;
         ++less) {  // fewer escapes than are asked for, also within one of three bytes
      const std::uint32_t fewer[2] = {counts[0], counts[1] - less};
      damaged.emplace_back(stream.begin(), stream.end() - less);
      std::memcpy(damaged.back().data(), fewer, sizeof fewer);
    }
    std::mt19937 random(9);
    for (int round = 0; round < 60; ++round) {  // bytes change sides between words and escapes, and hold anything
      damaged.push_back(stream);
      const auto moved = static_cast<std::uint32_t>(random() % (counts[0] + 1));
      const std::uint32_t others[2] = {counts[0] - moved, counts[1] + 2 * moved};
      std::memcpy(damaged.back().data(), others, sizeof others);
      for (std::size_t i = 8 + random() % (stream.size() - 8); i < stream.size(); i += 1 + random() % 64)
        damaged.back()[i] = static_cast<std::byte>(random());
    }
    streams_on_device decoder;
    const auto results = decoder.decode({s}, damaged);
    for (std::size_t i = 0; i < damaged.size(); ++i) {
      CAPTURE(i);
      const auto plain = test::plain_rans_decode(s.model(), s.tokens, damaged[i]);
      CHECK((results[i].code == status::code::ok) == plain.has_value());
      if (plain) CHECK(decoder.values[i].read() == *plain);
    }
  }
}
