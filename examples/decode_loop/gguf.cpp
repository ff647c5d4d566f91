#include "gguf.hpp"

#include "byte_reader.hpp"
#include "dequantise.hpp"

#include <bit>
#include <cmath>

namespace decode_loop {
namespace {

// GGUF's numbers of value types.
constexpr std::uint32_t type_string = 8;
constexpr std::uint32_t type_array = 9;
constexpr std::uint64_t longest_name = 65535;                           // of a key or tensor, bytes: the specification's limit
constexpr std::uint64_t largest_alignment = 1 << 16;
constexpr int deepest_array = 4;

/// Bytes of a value of fixed size, 0 for strings, arrays and unknown types.
constexpr std::uint64_t size_of_type(std::uint32_t type) {
  constexpr std::uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(sizes) ? sizes[type] : 0;
}

std::string_view read_text(byte_reader& in, std::string_view field) {
  const auto length = in.number<std::uint64_t>(field);
  const auto bytes = in.take(length, field);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view read_name(byte_reader& in, std::string_view field) {
  const auto name = read_text(in, field);
  if (name.empty() || name.size() > longest_name) in.fail(field, "has " + std::to_string(name.size()) + " bytes, allowed are 1 to 65535");
  return name;
}

/// Steps over a value and says where it lies.
gguf_value read_value(byte_reader& in, std::uint32_t type, std::string_view key, int depth) {
  if (type == type_array) {
    if (depth == deepest_array) in.fail(key, "arrays nested more than 4 deep");
    const auto element = in.number<std::uint32_t>(key);
    const auto count = in.number<std::uint64_t>(key);
    const gguf_value value{.type = element, .is_array = true, .count = count, .offset = in.offset()};
    if (const auto size = size_of_type(element); size != 0) {
      in.take(checked_product(count, size, in.name() + ": " + byte_reader::printable(key)), key);
    } else {
      if (count > in.left() / 8) in.fail(key, std::to_string(count) + " elements cannot fit into " + std::to_string(in.left()) + " bytes");
      for (std::uint64_t i = 0; i < count; ++i) read_value(in, element, key, depth + 1);
    }
    return value;
  }
  const gguf_value value{.type = type, .offset = in.offset()};
  if (type == type_string) {
    read_text(in, key);
  } else if (const auto size = size_of_type(type); size != 0) {
    in.take(size, key);
  } else {
    in.fail(key, "unknown value type " + std::to_string(type));
  }
  return value;
}

/// Reads a tensor's entry; its bytes are found once the start of the data is known.
std::pair<gguf_tensor, std::uint64_t> read_tensor(byte_reader& in, std::string_view name) {
  gguf_tensor tensor;
  const auto ranks = in.number<std::uint32_t>(name);
  if (ranks == 0 || ranks > tensor.dims.size()) in.fail(name, std::to_string(ranks) + " dimensions, allowed are 1 to 4");
  for (std::uint32_t d = 0; d < ranks; ++d) {
    tensor.dims[d] = in.number<std::uint64_t>(name);
    if (tensor.dims[d] == 0) in.fail(name, "a dimension of 0");
  }
  tensor.type = in.number<std::uint32_t>(name);
  return {tensor, in.number<std::uint64_t>(name)};
}

/// Bytes that a tensor of these dims occupies; 0 for a type that is not read.
std::uint64_t bytes_of(const gguf_tensor& tensor, const std::string& place) {
  const auto type = tensor_type_of(tensor.type);
  if (type.name == nullptr) return 0;
  if (tensor.dims[0] % type.block != 0) {
    throw file_error(place + ": rows of " + std::to_string(tensor.dims[0]) + " values in " + type.name + " blocks of " +
                     std::to_string(type.block));
  }
  std::uint64_t bytes = checked_product(tensor.dims[0] / type.block, type.bytes, place);
  for (std::size_t d = 1; d < tensor.dims.size(); ++d) bytes = checked_product(bytes, tensor.dims[d], place);
  return bytes;
}

}  // namespace

gguf::gguf(std::vector<std::byte> bytes, std::string name) : bytes_(std::move(bytes)), name_(std::move(name)) {
  byte_reader in(bytes_, name_);
  if (in.number<std::uint32_t>("magic") != 0x46554747) throw file_error(name_ + ": offset 0: magic: not a GGUF file");
  const auto version = in.number<std::uint32_t>("version");
  if (version != 2 && version != 3) {
    const bool swapped = version == 0x02000000 || version == 0x03000000;
    in.fail("version", swapped ? "a big-endian file, only little-endian ones are read" : std::to_string(version) + ", read are 2 and 3");
  }
  const auto tensor_count = in.number<std::uint64_t>("tensor count");
  const auto value_count = in.number<std::uint64_t>("value count");
  if (tensor_count > in.left() / 32) in.fail("tensor count", std::to_string(tensor_count) + " cannot fit into the file");
  if (value_count > in.left() / 13) in.fail("value count", std::to_string(value_count) + " cannot fit into the file");

  for (std::uint64_t i = 0; i < value_count; ++i) {
    const auto key = read_name(in, "key " + std::to_string(i));
    const auto type = in.number<std::uint32_t>(key);
    if (!values_.emplace(key, read_value(in, type, key, 0)).second) in.fail(key, "the key occurs twice");
  }

  std::vector<std::pair<std::string_view, std::uint64_t>> starts;       // of each tensor, from the start of the data
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    const auto tensor_name = read_name(in, "tensor " + std::to_string(i));
    const auto [tensor, start] = read_tensor(in, tensor_name);
    if (!tensors_.emplace(tensor_name, tensor).second) in.fail(tensor_name, "the tensor occurs twice");
    starts.emplace_back(tensor_name, start);
  }

  std::uint64_t alignment = 32;
  if (has("general.alignment")) alignment = static_cast<std::uint64_t>(integer("general.alignment", 1, largest_alignment));
  if (!std::has_single_bit(alignment)) fail("general.alignment", std::to_string(alignment) + " is no power of two");
  in.take((alignment - in.offset() % alignment) % alignment, "padding before the tensors");
  const auto data = in.bytes().subspan(in.offset());

  for (const auto& [tensor_name, start] : starts) {
    auto& tensor = tensors_.find(tensor_name)->second;
    const auto needed = bytes_of(tensor, name_ + ": tensor " + byte_reader::printable(tensor_name));
    if (start % alignment != 0) fail(tensor_name, "starts at " + std::to_string(start) + ", not aligned to " + std::to_string(alignment));
    if (start > data.size() || needed > data.size() - start) {
      fail(tensor_name,
           "bytes " + std::to_string(start) + " + " + std::to_string(needed) + " lie beyond the data's " + std::to_string(data.size()));
    }
    tensor.bytes = data.subspan(start, needed);
  }
}

const gguf_tensor* gguf::tensor(std::string_view tensor_name) const {
  const auto found = tensors_.find(tensor_name);
  return found == tensors_.end() ? nullptr : &found->second;
}

double gguf::number(std::string_view key) const {
  const gguf_value& value = need(key);
  byte_reader in{std::span{bytes_}.subspan(value.offset), name_};
  if (!value.is_array) {
    switch (value.type) {
      case 0: return in.number<std::uint8_t>(key);
      case 1: return in.number<std::int8_t>(key);
      case 2: return in.number<std::uint16_t>(key);
      case 3: return in.number<std::int16_t>(key);
      case 4: return in.number<std::uint32_t>(key);
      case 5: return in.number<std::int32_t>(key);
      case 6: return static_cast<double>(in.number<float>(key));
      case 10: return static_cast<double>(in.number<std::uint64_t>(key));
      case 11: return static_cast<double>(in.number<std::int64_t>(key));
      case 12: return in.number<double>(key);
      default: break;
    }
  }
  fail(key, "is not a number");
}

std::int64_t gguf::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const double value = number(key);
  if (!(value >= static_cast<double>(low) && value <= static_cast<double>(high)) || value != std::floor(value)) {
    fail(key, std::to_string(value) + ", allowed are integers from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return static_cast<std::int64_t>(value);
}

std::string gguf::text(std::string_view key) const {
  const gguf_value& value = need(key);
  if (value.is_array || value.type != type_string) fail(key, "is not a text");
  byte_reader in{std::span{bytes_}.subspan(value.offset), name_};
  return std::string(read_text(in, key));
}

std::vector<std::string_view> gguf::texts(std::string_view key) const {
  const gguf_value& value = need(key);
  if (!value.is_array || value.type != type_string) fail(key, "is not an array of texts");
  byte_reader in{std::span{bytes_}.subspan(value.offset), name_};
  std::vector<std::string_view> all(value.count);                       // bounded: every text has 8 bytes in the file
  for (auto& text : all) text = read_text(in, key);
  return all;
}

std::vector<float> gguf::floats(std::string_view tensor_name, std::array<std::uint64_t, 2> dims) const {
  const gguf_tensor* found = tensor(tensor_name);
  if (found == nullptr) fail(tensor_name, "the tensor is missing");
  if (tensor_type_of(found->type).name == nullptr) {
    fail(tensor_name, "tensor type " + std::to_string(found->type) + " is not read (F32, F16, BF16, Q8_0, Q4_0, Q4_1 are)");
  }
  if (found->dims != std::array<std::uint64_t, 4>{dims[0], dims[1], 1, 1}) {
    std::string shape;
    for (const auto d : found->dims) shape += (shape.empty() ? "" : " x ") + std::to_string(d);
    fail(tensor_name, "has shape " + shape + ", expected " + std::to_string(dims[0]) + " x " + std::to_string(dims[1]));
  }
  std::vector<float> values(dims[0] * dims[1]);                         // bounded: its blocks lie in the file
  dequantise(found->type, found->bytes, values);
  return values;
}

const gguf_value* gguf::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const gguf_value& gguf::need(std::string_view key) const {
  const gguf_value* value = find(key);
  if (value == nullptr) fail(key, "the key is missing");
  return *value;
}

void gguf::fail(std::string_view place, const std::string& what) const {
  throw file_error(name_ + ": " + byte_reader::printable(place) + ": " + what);
}

}  // namespace decode_loop
