#pragma once
// A frame: the self-describing, checksummed bytes of a stored sequence. docs/formats.md draws them.

#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/checksum.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvx {

inline constexpr std::uint16_t frame_version = 1;

/// What a frame holds, as its first 160 bytes.
///
/// model, calibration   digests of what made the rows and of the calibration file; 0 where there is none
/// codec                the caller's number for its codec
/// tokens               of the sequence that was saved, from position first_token on
struct frame_header {
  std::array<char, 8> magic = {'k', 'v', 'x', 'f', 'r', 'a', 'm', 'e'};
  std::uint16_t version = frame_version;
  std::uint16_t byte_order = 0x0102;
  std::uint32_t header_bytes = 160;
  std::uint64_t frame_bytes = 0;
  digest model;
  digest calibration;
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t key_dim = 0;
  std::uint32_t value_dim = 0;
  std::uint32_t page_tokens = 0;
  std::uint32_t sink = 0;
  std::uint8_t element = 0;  ///< 0 float, 1 half, 2 bf16
  std::uint8_t codec = 0;
  std::uint16_t reserved = 0;
  std::uint32_t sections = 0;
  std::uint64_t tokens = 0;
  std::uint64_t first_token = 0;
  std::uint64_t reserved_too = 0;
  std::uint64_t table_checksum = 0;
  std::uint64_t header_checksum = 0;  ///< of the 152 bytes before
};
static_assert(sizeof(frame_header) == 160 && std::is_trivially_copyable_v<frame_header>);

/// What a section holds.
enum class section_kind : std::uint16_t { token_ids = 1, rows = 2, chunk = 3, column = 4, balance = 5, other = 6, page = 7, mean = 8 };

/// One entry of the table behind the header: which tokens, layers and heads, and where the bytes are.
///
/// part        0 all, 1 keys, 2 values; of a column its number; of a balance 1 diagonals, 2 queries
/// offset      a multiple of 8: the first after the table and after the section before; the bytes between are 0
struct frame_section {
  section_kind kind = section_kind::other;
  std::uint16_t part = 0;
  std::uint16_t first_layer = 0, layers = 0;
  std::uint16_t first_head = 0, heads = 0;
  std::uint32_t reserved = 0;
  std::uint32_t first_token = 0, tokens = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(frame_section) == 48 && std::is_trivially_copyable_v<frame_section>);

/// Limits of what a frame may say, checked before anything is allocated.
inline constexpr std::uint32_t most_sections = 1u << 20;
inline constexpr std::uint64_t most_frame_tokens = (1u << 31) - 1;
inline constexpr std::uint32_t most_frame_layers = 65535, most_frame_heads = 65535, most_frame_dim = 65535;

constexpr std::uint64_t frame_front_bytes(std::uint32_t sections) {
  return sizeof(frame_header) + std::uint64_t{sections} * sizeof(frame_section);
}

/// Builds a frame, section after section, in one piece of memory.
class frame_writer {
 public:
  /// errors      usage_error: numbers beyond the limits
  frame_writer(const frame_header& header, std::uint32_t sections, call_site where = call_site::here()) : header_(header) {
    require_range("frame: sections", sections, 0, most_sections, where);
    require_range("frame: layers", header.layers, 0, most_frame_layers, where);
    require_range("frame: KV heads", header.kv_heads, 0, most_frame_heads, where);
    require_range("frame: key dim", header.key_dim, 0, most_frame_dim, where);
    require_range("frame: value dim", header.value_dim, 0, most_frame_dim, where);
    require_range("frame: element", header.element, 0, 2, where);
    require(header.tokens <= most_frame_tokens, "frame: tokens are below 2^31", where);
    header_.sections = sections;
    bytes_.resize(frame_front_bytes(sections));
  }

  /// Room for payloads that are known before, so that the frame does not move as it grows.
  void reserve(std::uint64_t payload_bytes) {
    bytes_.reserve(bytes_.size() + static_cast<std::size_t>(payload_bytes + 8 * std::uint64_t{header_.sections}));
  }

  /// Appends a section; offset, bytes and checksum of `section` are filled in.
  ///
  /// errors      usage_error: more sections than were announced, or beyond the frame's tokens, layers or heads
  void add(frame_section section, std::span<const std::byte> payload, call_site where = call_site::here()) {
    require(table_.size() < header_.sections, "frame: more sections than announced", where);
    require(fits(header_, section), "frame: a section beyond the frame's tokens, layers or heads", where);
    bytes_.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes_.size()), 8)));
    section.reserved = 0;
    section.offset = bytes_.size();
    section.bytes = payload.size();
    section.checksum = checksum(payload);
    bytes_.insert(bytes_.end(), payload.begin(), payload.end());
    table_.push_back(section);
  }

  /// The frame; the writer is then empty.
  ///
  /// errors      usage_error: fewer sections than were announced
  std::vector<std::byte> finish(call_site where = call_site::here()) {
    require(table_.size() == header_.sections, "frame: fewer sections than announced", where);
    const std::size_t table_bytes = table_.size() * sizeof(frame_section);
    if (table_bytes > 0) std::memcpy(bytes_.data() + sizeof header_, table_.data(), table_bytes);
    header_.frame_bytes = bytes_.size();
    header_.table_checksum = checksum(std::span(bytes_).subspan(sizeof header_, table_bytes));
    header_.header_checksum = checksum(std::as_bytes(std::span(&header_, 1)).first(offsetof(frame_header, header_checksum)));
    std::memcpy(bytes_.data(), &header_, sizeof header_);
    return std::exchange(bytes_, {});
  }

  /// Whether a section lies within what the header says.
  static bool fits(const frame_header& h, const frame_section& s) {
    return s.kind >= section_kind::token_ids && s.kind <= section_kind::mean && std::uint64_t{s.first_token} + s.tokens <= h.tokens &&
           std::uint32_t{s.first_layer} + s.layers <= h.layers && std::uint32_t{s.first_head} + s.heads <= h.kv_heads;
  }

 private:
  frame_header header_;
  std::vector<frame_section> table_;
  std::vector<std::byte> bytes_;
};

/// Header and table of a frame, checked. Sections are checked when they are asked for.
struct frame_view {
  frame_header header;
  std::vector<frame_section> sections;
};

/// Reads a header alone, to learn how long the table is.
///
/// errors      truncated, unsupported (not a frame, another version, a machine of the other byte order), corrupt
inline status read_frame_header(std::span<const std::byte> front, std::uint64_t total, frame_header& header) {
  frame_header h;
  if (front.size() < sizeof h) return {status::code::truncated, "frame: header"};
  const frame_header expected;
  std::memcpy(&h, front.data(), sizeof h);
  if (h.magic != expected.magic) return {status::code::unsupported, "frame: no kvx frame"};
  if (h.byte_order != expected.byte_order) return {status::code::unsupported, "frame: byte order"};
  if (h.version != frame_version) return {status::code::unsupported, "frame: version"};
  if (h.header_checksum != checksum(front.first(offsetof(frame_header, header_checksum)))) return {status::code::corrupt, "frame: header"};
  // What follows cannot come from damage, but from a writer with other ideas.
  if (h.header_bytes != sizeof h || h.reserved != 0 || h.reserved_too != 0) return {status::code::unsupported, "frame: header"};
  if (h.sections > most_sections || h.tokens > most_frame_tokens || h.layers > most_frame_layers || h.kv_heads > most_frame_heads ||
      h.key_dim > most_frame_dim || h.value_dim > most_frame_dim || h.element > 2 || h.first_token > most_frame_tokens) {
    return {status::code::corrupt, "frame: a number beyond its limit"};
  }
  if (h.frame_bytes < frame_front_bytes(h.sections)) return {status::code::corrupt, "frame: its length"};
  if (total < h.frame_bytes) return {status::code::truncated, "frame: sections"};
  if (total > h.frame_bytes) return {status::code::corrupt, "frame: bytes after its end"};
  header = h;
  return {};
}

/// Reads header and table.
///
/// what        everything that the front says is checked before it is used: magic, version, byte order, checksums, limits, and that the
///             sections follow each other without gap or overlap to the end of the frame
/// shapes      front at least frame_front_bytes of the frame, or all of it; total the length of the frame where it lies
/// errors      as read_frame_header; `view` is as it was
inline status open_frame(std::span<const std::byte> front, std::uint64_t total, frame_view& view) {
  frame_view v;
  const status read = read_frame_header(front, total, v.header);
  if (!read.ok()) return read;
  const frame_header& h = v.header;
  const std::uint64_t front_bytes = frame_front_bytes(h.sections);
  if (front.size() < front_bytes) return {status::code::truncated, "frame: table"};
  const std::span<const std::byte> table = front.subspan(sizeof h, static_cast<std::size_t>(front_bytes - sizeof h));
  if (h.table_checksum != checksum(table)) return {status::code::corrupt, "frame: table"};
  v.sections.resize(h.sections);
  if (!table.empty()) std::memcpy(v.sections.data(), table.data(), table.size());
  std::uint64_t end = front_bytes;
  for (const frame_section& s : v.sections) {
    if (!frame_writer::fits(h, s) || s.reserved != 0) return {status::code::corrupt, "frame: a section beyond the frame"};
    if (s.offset != (end + 7) / 8 * 8 || s.offset > h.frame_bytes || s.bytes > h.frame_bytes - s.offset)
      return {status::code::corrupt, "frame: the place of a section"};
    end = s.offset + s.bytes;
  }
  if (end != h.frame_bytes) return {status::code::corrupt, "frame: its length"};
  view = std::move(v);
  return {};
}

/// Whether the bytes of a section are those that were written.
inline status check_section(const frame_section& s, std::span<const std::byte> payload) {
  if (payload.size() != s.bytes) return {status::code::truncated, "frame: a section"};
  if (checksum(payload) != s.checksum) return {status::code::corrupt, "frame: a section"};
  return {};
}

/// The bytes of a section of a frame in memory, checked.
inline status read_section(std::span<const std::byte> frame, const frame_section& s, std::span<const std::byte>& payload) {
  if (s.offset > frame.size() || s.bytes > frame.size() - s.offset) return {status::code::truncated, "frame: a section"};
  payload = frame.subspan(static_cast<std::size_t>(s.offset), static_cast<std::size_t>(s.bytes));
  return check_section(s, payload);
}

/// Opens a frame in memory and checks every byte of it.
inline status check_frame(std::span<const std::byte> frame, frame_view& view) {
  frame_view v;
  const status opened = open_frame(frame, frame.size(), v);
  if (!opened.ok()) return opened;
  std::uint64_t end = frame_front_bytes(v.header.sections);
  for (const frame_section& s : v.sections) {
    for (; end < s.offset; ++end) {
      if (frame[static_cast<std::size_t>(end)] != std::byte{0}) return {status::code::corrupt, "frame: between sections"};
    }
    std::span<const std::byte> payload;
    const status read = read_section(frame, s, payload);
    if (!read.ok()) return read;
    end = s.offset + s.bytes;
  }
  view = std::move(v);
  return {};
}

/// Whether a frame is of this model, layout and calibration; the message names the first field that differs.
inline status expect(const frame_header& found, const frame_header& wanted) {
  const auto differs = [](const char* field) { return status{status::code::mismatch, field}; };
  if (found.model != wanted.model) return differs("frame: model");
  if (found.layers != wanted.layers) return differs("frame: layers");
  if (found.kv_heads != wanted.kv_heads) return differs("frame: KV heads");
  if (found.key_dim != wanted.key_dim) return differs("frame: key dim");
  if (found.value_dim != wanted.value_dim) return differs("frame: value dim");
  if (found.element != wanted.element) return differs("frame: element");
  if (found.page_tokens != wanted.page_tokens) return differs("frame: tokens of a page");
  if (found.sink != wanted.sink) return differs("frame: sink");
  if (found.codec != wanted.codec) return differs("frame: codec");
  if (found.calibration != wanted.calibration) return differs("frame: calibration");
  return {};
}

}  // namespace kvx
