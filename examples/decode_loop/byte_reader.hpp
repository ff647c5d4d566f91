#pragma once
// A cursor over untrusted little-endian bytes: every read is checked, and every refusal names the file, the field and the offset.

#include "file_error.hpp"

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace decode_loop {

static_assert(std::endian::native == std::endian::little, "the formats read here are little-endian and are read in place");

/// a * b, or file_error with `what` where 64 bits cannot hold it.
inline std::uint64_t checked_product(std::uint64_t a, std::uint64_t b, const std::string& what) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw file_error(what + ": " + std::to_string(a) + " x " + std::to_string(b) + " overflows");
  return product;
}

/// Reads forward through `bytes`; a refused read throws and leaves the cursor where it was.
class byte_reader {
 public:
  byte_reader(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  std::uint64_t offset() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  /// The next `count` bytes, in place.
  std::span<const std::byte> take(std::uint64_t count, std::string_view field) {
    if (count > left()) fail(field, "needs " + std::to_string(count) + " bytes, the file has " + std::to_string(left()) + " left");
    const auto piece = bytes_.subspan(at_, count);
    at_ += count;
    return piece;
  }

  template <class T>
    requires std::integral<T> || std::floating_point<T>
  T number(std::string_view field) {
    T value;
    std::memcpy(&value, take(sizeof(T), field).data(), sizeof(T));
    return value;
  }

  /// Throws "<file>: offset <n>: <field>: <what>".
  [[noreturn]] void fail(std::string_view field, const std::string& what) const {
    throw file_error(name_ + ": offset " + std::to_string(at_) + ": " + printable(field) + ": " + what);
  }

  /// Text from a file made fit for one line of an error: control bytes and all beyond 80 bytes are left out.
  static std::string printable(std::string_view text) {
    std::string line;
    for (const char c : text.substr(0, 80)) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    return text.size() > 80 ? line + "..." : line;
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
  std::string name_;
};

}  // namespace decode_loop
