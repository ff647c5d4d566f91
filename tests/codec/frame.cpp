// Frames: what went in comes out; every truncation and every flipped bit is an error; hostile numbers are refused before they are used.

#include <support/guarded.hpp>

#include <kvx/codec/frame.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

frame_header described() {
  frame_header h;
  h.model = field_digest().add("model", "tiny").finish();
  h.calibration = field_digest().add("file", 3).finish();
  h.layers = 4;
  h.kv_heads = 2;
  h.key_dim = 64;
  h.value_dim = 48;
  h.page_tokens = 64;
  h.sink = 4;
  h.element = 2;
  h.codec = 1;
  h.tokens = 300;
  h.first_token = 17;
  return h;
}

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> x(n);
  for (auto& b : x) b = static_cast<std::byte>(random());
  return x;
}

const std::vector<std::size_t> sizes = {0, 1, 8, 13, 200};

std::vector<std::byte> written() {
  frame_writer writer(described(), static_cast<std::uint32_t>(sizes.size()));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    frame_section s;
    s.kind = static_cast<section_kind>(i + 1);
    s.part = static_cast<std::uint16_t>(i % 3);
    s.first_layer = static_cast<std::uint16_t>(i % 3);
    s.layers = 1;
    s.heads = 2;
    s.first_token = static_cast<std::uint32_t>(60 * i);
    s.tokens = 60;
    writer.add(s, random_bytes(sizes[i], static_cast<unsigned>(i)));
  }
  return writer.finish();
}

/// The frame with another header or table, and checksums that agree with it.
std::vector<std::byte> forged(const std::function<void(frame_header&, std::vector<frame_section>&)>& change) {
  std::vector<std::byte> frame = written();
  frame_header h;
  std::memcpy(&h, frame.data(), sizeof h);
  std::vector<frame_section> table(h.sections);
  std::memcpy(table.data(), frame.data() + sizeof h, table.size() * sizeof table[0]);
  change(h, table);
  h.table_checksum = checksum(std::as_bytes(std::span(table)));
  h.header_checksum = checksum(std::as_bytes(std::span(&h, 1)).first(sizeof h - 8));
  std::memcpy(frame.data(), &h, sizeof h);
  std::memcpy(frame.data() + sizeof h, table.data(), table.size() * sizeof table[0]);
  return frame;
}

status checked(std::span<const std::byte> bytes) {
  const guarded memory(std::max<std::size_t>(bytes.size(), 1), true);
  std::byte* const first = memory.data() + (bytes.empty() ? 1 : 0);
  if (!bytes.empty()) std::memcpy(first, bytes.data(), bytes.size());
  frame_view view;
  const status s = check_frame({first, bytes.size()}, view);
  CHECK(view.sections.empty() == !s.ok());
  return s;
}

}  // namespace

TEST_CASE("what went in comes out, from the whole or from the front alone") {
  const std::vector<std::byte> frame = written();
  frame_view view;
  REQUIRE(check_frame(frame, view).ok());
  CHECK(view.header.tokens == 300);
  CHECK(view.header.first_token == 17);
  CHECK(expect(view.header, described()).ok());
  REQUIRE(view.sections.size() == sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::span<const std::byte> payload;
    REQUIRE(read_section(frame, view.sections[i], payload).ok());
    const auto expected = random_bytes(sizes[i], static_cast<unsigned>(i));
    CHECK(std::equal(payload.begin(), payload.end(), expected.begin(), expected.end()));
    CHECK(view.sections[i].first_token == 60 * i);
    CHECK(view.sections[i].offset % 8 == 0);
  }
  const std::size_t front = frame_front_bytes(view.header.sections);
  CHECK(open_frame(std::span(frame).first(front), frame.size(), view).ok());
  CHECK(open_frame(std::span(frame).first(front - 1), frame.size(), view) == status::code::truncated);
  CHECK(check_frame(frame_writer(described(), 0).finish(), view).ok());
}

TEST_CASE("every truncation is an error, and so is a byte more") {
  std::vector<std::byte> frame = written();
  for (std::size_t n = 0; n < frame.size(); ++n) CHECK_FALSE(checked(std::span(frame).first(n)).ok());
  frame.push_back(std::byte{0});
  CHECK_FALSE(checked(frame).ok());
}

TEST_CASE("every flipped bit is an error") {
  std::vector<std::byte> frame = written();
  for (std::size_t i = 0; i < 8 * frame.size(); ++i) {
    frame[i / 8] ^= std::byte{1} << i % 8;
    CHECK_FALSE(checked(frame).ok());
    frame[i / 8] ^= std::byte{1} << i % 8;
  }
}

TEST_CASE("every byte overwritten at random is an error") {
  const std::vector<std::byte> frame = written();
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> damaged = frame;
    for (auto n = 1 + random() % 4; n > 0; --n) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    if (damaged == frame) continue;
    CHECK_FALSE(checked(damaged).ok());
  }
}

TEST_CASE("numbers that a writer with valid checksums has no right to") {
  using limits = std::numeric_limits<std::uint64_t>;
  const auto refused = [](const auto& change) {  // by the front alone, whose checksums agree
    const std::vector<std::byte> frame = forged(change);
    frame_view view;
    CHECK_FALSE(open_frame(frame, frame.size(), view).ok());
    CHECK_FALSE(checked(frame).ok());
  };
  CHECK(checked(forged([](frame_header&, std::vector<frame_section>&) {})).ok());
  refused([](frame_header& h, auto&) { h.sections = 0xffffffff; });
  refused([](frame_header& h, auto&) { h.sections += 1; });
  refused([](frame_header& h, auto&) { h.sections -= 1; });
  refused([](frame_header& h, auto&) { h.frame_bytes = limits::max(); });
  refused([](frame_header& h, auto&) { h.frame_bytes = 0; });
  refused([](frame_header& h, auto&) { h.tokens = limits::max(); });
  refused([](frame_header& h, auto&) { h.layers = 70000; });
  refused([](frame_header& h, auto&) { h.kv_heads = 1; });
  refused([](frame_header& h, auto&) { h.key_dim = 1u << 31; });
  refused([](frame_header& h, auto&) { h.element = 3; });
  refused([](frame_header& h, auto&) { h.header_bytes = 152; });
  refused([](frame_header& h, auto&) { h.version = 2; });
  refused([](frame_header& h, auto&) { h.byte_order = 0x0201; });
  refused([](frame_header&, auto& t) { t[4].offset += 8; });
  refused([](frame_header&, auto& t) { t[4].bytes = limits::max(); });
  refused([](frame_header&, auto& t) { t[3].bytes = limits::max() - t[3].offset + 1; });
  refused([](frame_header&, auto& t) { t[3].offset = 0; });
  refused([](frame_header&, auto& t) { t[2].first_token = 0xffffffff; });
  refused([](frame_header&, auto& t) { t[2].tokens = 0xffffffff; });
  refused([](frame_header&, auto& t) { t[2].first_layer = 65535; });
  refused([](frame_header&, auto& t) { t[2].heads = 3; });
  refused([](frame_header&, auto& t) { t[2].kind = static_cast<section_kind>(0); });
  refused([](frame_header&, auto& t) { t[2].kind = static_cast<section_kind>(static_cast<int>(section_kind::mean) + 1); });
  refused([](frame_header&, auto& t) { std::swap(t[1].offset, t[2].offset); });
  refused([](frame_header&, auto& t) { t[4].bytes -= 8; });
  refused([](frame_header& h, auto& t) {  // a length that wraps around to the first section
    t[3].bytes = std::uint64_t{0} - t[3].offset + t[0].offset;
    t[4].offset = t[0].offset;
    t[4].bytes = h.frame_bytes - t[0].offset;
  });
  frame_header many = described(), read;
  many.sections = most_sections + 1;
  many.frame_bytes = frame_front_bytes(many.sections);
  many.header_checksum = checksum(std::as_bytes(std::span(&many, 1)).first(sizeof many - 8));
  CHECK(read_frame_header(std::as_bytes(std::span(&many, 1)), many.frame_bytes, read) == status::code::corrupt);
}

TEST_CASE("a frame of another model, layout or calibration says which field differs") {
  const auto field = [](const auto& change) {
    frame_header other = described();
    change(other);
    const status s = expect(other, described());
    CHECK(s == status::code::mismatch);
    return message(s);
  };
  CHECK(field([](frame_header& h) { h.model = {}; }) == "mismatch: frame: model");
  CHECK(field([](frame_header& h) { h.layers = 5; }) == "mismatch: frame: layers");
  CHECK(field([](frame_header& h) { h.kv_heads = 5; }) == "mismatch: frame: KV heads");
  CHECK(field([](frame_header& h) { h.key_dim = 5; }) == "mismatch: frame: key dim");
  CHECK(field([](frame_header& h) { h.value_dim = 5; }) == "mismatch: frame: value dim");
  CHECK(field([](frame_header& h) { h.element = 0; }) == "mismatch: frame: element");
  CHECK(field([](frame_header& h) { h.page_tokens = 5; }) == "mismatch: frame: tokens of a page");
  CHECK(field([](frame_header& h) { h.sink = 5; }) == "mismatch: frame: sink");
  CHECK(field([](frame_header& h) { h.codec = 5; }) == "mismatch: frame: codec");
  CHECK(field([](frame_header& h) { h.calibration = {}; }) == "mismatch: frame: calibration");
  frame_header longer = described();
  longer.tokens = 5;
  CHECK(expect(longer, described()).ok());
}

TEST_CASE("a frame of another time or machine") {
  std::vector<std::byte> frame = written();
  frame_view view;
  std::vector<std::byte> other = frame;
  other[8] = std::byte{2};
  CHECK(message(check_frame(other, view)) == "unsupported: frame: version");
  other = frame;
  std::swap(other[10], other[11]);
  CHECK(message(check_frame(other, view)) == "unsupported: frame: byte order");
  other = frame;
  other[0] = std::byte{0};
  CHECK(message(check_frame(other, view)) == "unsupported: frame: no kvx frame");
}

TEST_CASE("misuse") {
  frame_header h = described();
  h.element = 7;
  CHECK_THROWS_AS(frame_writer(h, 1), usage_error);
  frame_writer writer(described(), 1);
  CHECK_THROWS_AS((void)writer.finish(), usage_error);
  frame_section beyond;
  beyond.first_token = 299;
  beyond.tokens = 2;
  CHECK_THROWS_AS(writer.add(beyond, {}), usage_error);
  writer.add({}, {});
  CHECK_THROWS_AS(writer.add({}, {}), usage_error);
}
