#include "trace.hpp"

#include "byte_reader.hpp"

#include <kvx/core/check.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace decode_loop {
namespace {

constexpr std::string_view magic = "kvxtrace";
constexpr std::uint32_t version = 1;
constexpr std::uint64_t header_bytes = 88;
constexpr std::uint64_t checksum_start = 0xcbf29ce484222325;

/// FNV-1a, continued from `state`.
std::uint64_t checksum(std::span<const char> bytes, std::uint64_t state = checksum_start) {
  for (const char byte : bytes) state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return state;
}

std::array<char, header_bytes> header_of(const trace_shape& s) {
  std::array<char, header_bytes> header{};
  std::size_t at = 0;
  const auto put = [&](const auto& value) {
    std::memcpy(header.data() + at, &value, sizeof(value));
    at += sizeof(value);
  };
  std::copy(magic.begin(), magic.end(), header.begin());
  at = magic.size();
  put(version);
  put(std::uint32_t{s.half ? 1U : 0U});
  for (const auto number : {s.first_layer, s.layers, s.kv_heads, s.query_heads, s.key_dim, s.value_dim}) put(number);
  for (const auto number : {s.first_position, s.tokens, s.queries}) put(number);
  put(s.rope_base);
  put(std::uint32_t{s.pairs == rope_pairs::half_split ? 1U : 0U});
  put(std::uint32_t{s.k0 ? 1U : 0U});
  put(checksum(std::span(header).first(at)));
  return header;
}

/// The shape of a header, or file_error. Sizes are bounded here so that no later product overflows before it is checked.
trace_shape shape_of(byte_reader in) {
  if (std::memcmp(in.take(magic.size(), "magic").data(), magic.data(), magic.size()) != 0) in.fail("magic", "not a kvx trace");
  if (const auto found = in.number<std::uint32_t>("version"); found != version) in.fail("version", std::to_string(found) + ", read is 1");
  const auto one_of_two = [&](std::string_view field) {
    const auto value = in.number<std::uint32_t>(field);
    if (value > 1) in.fail(field, std::to_string(value) + ", allowed are 0 and 1");
    return value == 1;
  };
  const auto small = [&](std::string_view field, std::uint32_t low, std::uint32_t high) {
    const auto value = in.number<std::uint32_t>(field);
    if (value < low || value > high) {
      in.fail(field, std::to_string(value) + ", allowed are " + std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  };
  const auto large = [&](std::string_view field, std::uint64_t high) {
    const auto value = in.number<std::uint64_t>(field);
    if (value > high) in.fail(field, std::to_string(value) + ", allowed are 0 to " + std::to_string(high));
    return value;
  };
  trace_shape s;
  s.half = one_of_two("element");
  s.first_layer = small("first layer", 0, 4096);
  s.layers = small("layers", 1, 4096);
  s.kv_heads = small("KV heads", 1, 4096);
  s.query_heads = small("query heads", 1, 1 << 18);
  s.key_dim = small("key dim", 1, 4096);
  s.value_dim = small("value dim", 1, 4096);
  s.first_position = large("first position", std::uint64_t{1} << 40);
  s.tokens = large("tokens", std::uint64_t{1} << 32);
  s.queries = large("queries", s.tokens);
  s.rope_base = in.number<double>("RoPE base");
  if (!(s.rope_base >= 1 && std::isfinite(s.rope_base))) in.fail("RoPE base", "must be finite and at least 1");
  s.pairs = one_of_two("RoPE pairs") ? rope_pairs::half_split : rope_pairs::interleaved;
  s.k0 = one_of_two("k0 held");
  if (s.query_heads % s.kv_heads != 0) in.fail("query heads", "not a multiple of the KV heads");
  const auto covered = in.bytes().first(in.offset());
  if (in.number<std::uint64_t>("checksum") != checksum({reinterpret_cast<const char*>(covered.data()), covered.size()})) {
    in.fail("header", "its checksum differs");
  }
  return s;
}

/// Bytes of a block, without its checksum: the ids for index 0, then k, v, k0, q of each layer.
std::uint64_t block_bytes(const trace_shape& s, std::size_t index, const std::string& place) {
  if (index == 0) return checked_product(s.tokens, sizeof(token_id), place);
  const auto part = static_cast<trace_part>((index - 1) % 4);
  if (part == trace_part::k0 && !s.k0) return 0;
  const std::uint64_t heads = part == trace_part::q ? s.query_heads : s.kv_heads;
  const std::uint64_t dim = part == trace_part::v ? s.value_dim : s.key_dim;
  const std::uint64_t row = heads * dim * (s.half ? 2 : 4);             // below 2^33 by the limits of shape_of
  return checked_product(part == trace_part::q ? s.queries : s.tokens, row, place);
}

constexpr std::uint64_t checksum_bytes = sizeof(std::uint64_t);

}  // namespace

trace_writer::trace_writer(const std::string& path, const trace_shape& shape)
    : path_(path), shape_(shape), out_(path, std::ios::binary | std::ios::trunc), tokens_seen_(shape.layers) {
  if (!out_) throw file_error(path + ": cannot be written");
  const auto header = header_of(shape);
  out_.write(header.data(), static_cast<std::streamsize>(header.size()));
  std::uint64_t offset = header_bytes;
  for (std::size_t i = 0; i < 1 + 4 * std::size_t{shape.layers}; ++i) {
    blocks_.push_back({offset, block_bytes(shape, i, path), 0, checksum_start});
    offset += blocks_.back().bytes + checksum_bytes;
  }
}

void trace_writer::write_ids(std::span<const token_id> ids) {
  kvx::require(ids.size() == shape_.tokens, "trace: ids for another number of tokens", kvx::call_site::here());
  const std::span<const char> bytes(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
  out_.seekp(static_cast<std::streamoff>(blocks_[0].offset));
  out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  blocks_[0].written = bytes.size();
  blocks_[0].checksum = checksum(bytes);
}

void trace_writer::append(std::size_t layer, const layer_rows& rows) {
  if (layer < shape_.first_layer || layer >= shape_.first_layer + shape_.layers) return;
  const std::size_t held = layer - shape_.first_layer;
  block* const parts = blocks_.data() + 1 + 4 * held;
  const std::uint64_t tokens = rows.k.size() / (std::uint64_t{shape_.kv_heads} * shape_.key_dim);
  put(parts[0], rows.k);
  put(parts[1], rows.v);
  if (shape_.k0) put(parts[2], rows.k0);

  const std::uint64_t from = shape_.tokens - shape_.queries;            // first token whose queries are kept
  const std::uint64_t seen = tokens_seen_[held];
  const std::uint64_t skipped = std::min(tokens, from > seen ? from - seen : 0);
  put(parts[3], rows.q.subspan(skipped * shape_.query_heads * shape_.key_dim));
  tokens_seen_[held] += tokens;
}

void trace_writer::put(block& to, std::span<const float> values) {
  std::vector<char> bytes(values.size() * (shape_.half ? 2 : 4));
  if (shape_.half) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto element = kvx::round_to<kvx::half>(values[i]);
      std::memcpy(bytes.data() + 2 * i, &element.bits, 2);
    }
  } else if (!values.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  kvx::require(bytes.size() <= to.bytes - to.written, "trace: more rows than its shape says", kvx::call_site::here());
  out_.seekp(static_cast<std::streamoff>(to.offset + to.written));
  out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  to.written += bytes.size();
  to.checksum = checksum(bytes, to.checksum);
}

void trace_writer::finish() {
  for (const block& b : blocks_) {
    kvx::require(b.written == b.bytes, "trace: fewer rows than its shape says", kvx::call_site::here());
    out_.seekp(static_cast<std::streamoff>(b.offset + b.bytes));
    out_.write(reinterpret_cast<const char*>(&b.checksum), checksum_bytes);
  }
  out_.flush();
  if (!out_) throw file_error(path_ + ": writing failed");
}

trace_reader::trace_reader(const std::string& path) : trace_reader(std::make_unique<std::ifstream>(path, std::ios::binary), path) {}

trace_reader::trace_reader(std::unique_ptr<std::istream> in, std::string name) : in_(std::move(in)), name_(std::move(name)) {
  std::array<char, header_bytes> header{};
  in_->read(header.data(), header_bytes);
  if (in_->gcount() == 0) throw file_error(name_ + ": no such file, or it is empty");
  const auto count = static_cast<std::size_t>(in_->gcount());
  shape_ = shape_of(byte_reader(std::as_bytes(std::span(header).first(count)), name_));

  std::uint64_t expected = header_bytes;
  for (std::size_t i = 0; i < 1 + 4 * std::size_t{shape_.layers}; ++i) {
    if (__builtin_add_overflow(expected, block_bytes(shape_, i, name_) + checksum_bytes, &expected)) {
      throw file_error(name_ + ": the shape needs more than 2^64 bytes");
    }
  }
  in_->seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(in_->tellg());
  if (size != expected) {
    throw file_error(name_ + ": has " + std::to_string(size) + " bytes, its shape needs " + std::to_string(expected));
  }
}

std::vector<char> trace_reader::read_block(std::size_t index, const std::string& place) {
  std::uint64_t offset = header_bytes;
  for (std::size_t i = 0; i < index; ++i) offset += block_bytes(shape_, i, name_) + checksum_bytes;
  std::vector<char> bytes(block_bytes(shape_, index, name_));           // no larger than the file: the constructor compared
  std::uint64_t stored = 0;
  in_->clear();
  in_->seekg(static_cast<std::streamoff>(offset));
  in_->read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  in_->read(reinterpret_cast<char*>(&stored), checksum_bytes);
  if (!*in_) throw file_error(name_ + ": offset " + std::to_string(offset) + ": " + place + ": cannot be read");
  if (stored != checksum(bytes)) throw file_error(name_ + ": offset " + std::to_string(offset) + ": " + place + ": its checksum differs");
  return bytes;
}

std::vector<token_id> trace_reader::ids() {
  const auto bytes = read_block(0, "token ids");
  std::vector<token_id> ids(bytes.size() / sizeof(token_id));
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

std::vector<float> trace_reader::read(std::size_t layer, trace_part part) {
  constexpr const char* names[] = {"k", "v", "k before RoPE", "q"};
  const std::string place = "layer " + std::to_string(layer) + ", " + names[static_cast<std::size_t>(part)];
  if (layer < shape_.first_layer || layer - shape_.first_layer >= shape_.layers || (part == trace_part::k0 && !shape_.k0)) {
    throw file_error(name_ + ": " + place + ": not in this trace");
  }
  const auto bytes = read_block(1 + 4 * (layer - shape_.first_layer) + static_cast<std::size_t>(part), place);
  std::vector<float> values(bytes.size() / (shape_.half ? 2 : 4));
  if (!shape_.half) {
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    kvx::half element;
    std::memcpy(&element.bits, bytes.data() + 2 * i, 2);
    values[i] = kvx::to_float(element);
  }
  return values;
}

}  // namespace decode_loop
