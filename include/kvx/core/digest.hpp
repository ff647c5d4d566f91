#pragma once
// A hash of 256 bits over tagged fields: equal only for equal fields, in every process and on every machine.

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace kvx {

/// A SHA-256 value.
struct digest {
  std::array<std::uint8_t, 32> bytes = {};
  friend constexpr bool operator==(const digest&, const digest&) = default;
  friend constexpr auto operator<=>(const digest&, const digest&) = default;
};

/// 64 hexadecimal digits.
inline std::string to_hex(const digest& d) {
  std::string text;
  for (const std::uint8_t b : d.bytes) {
    for (const int nibble : {b >> 4, b & 15}) text += "0123456789abcdef"[nibble];
  }
  return text;
}

/// SHA-256 of bytes that come in any pieces.
///
/// cost        some 300 MB/s on one core; what it hashes here are ids and descriptions, not rows
/// source      FIPS 180-4
class sha256 {
 public:
  void add(std::span<const std::byte> bytes) {
    length_ += bytes.size();
    while (!bytes.empty()) {
      const std::size_t n = std::min(bytes.size(), sizeof block_ - filled_);
      std::memcpy(block_ + filled_, bytes.data(), n);
      bytes = bytes.subspan(n);
      filled_ += n;
      if (filled_ == sizeof block_) compress();
    }
  }

  digest finish() {
    const std::uint64_t bits = 8 * length_;
    block_[filled_++] = 0x80;
    if (filled_ > 56) {
      std::memset(block_ + filled_, 0, sizeof block_ - filled_);
      compress();
    }
    std::memset(block_ + filled_, 0, 56 - filled_);
    for (int i = 0; i < 8; ++i) block_[56 + i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
    compress();
    digest d;
    for (std::size_t i = 0; i < 32; ++i) d.bytes[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return d;
  }

 private:
  void compress() {
    static constexpr std::uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
        0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
        0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
        0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
        0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
        0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = static_cast<std::uint32_t>(block_[4 * i]) << 24 | static_cast<std::uint32_t>(block_[4 * i + 1]) << 16 |
             static_cast<std::uint32_t>(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] + (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t x = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
      const std::uint32_t y = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + x;
      d = c;
      c = b;
      b = a;
      a = x + y;
    }
    const std::uint32_t after[8] = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state_[i] += after[i];
    filled_ = 0;
  }

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::uint8_t block_[64] = {};
  std::size_t filled_ = 0;
  std::uint64_t length_ = 0;
};

/// The digest of named fields.
///
/// what        every field is hashed as the length of its name, its name, the length of its value, its value: no two lists of fields run
///             together to the same bytes
/// shapes      numbers are 8 bytes, little-endian, whatever their type
class field_digest {
 public:
  field_digest& add(std::string_view name, std::span<const std::byte> value) {
    length(name.size());
    hash_.add(std::as_bytes(std::span(name)));
    length(value.size());
    hash_.add(value);
    return *this;
  }
  field_digest& add(std::string_view name, std::string_view value) { return add(name, std::as_bytes(std::span(value))); }
  field_digest& add(std::string_view name, const char* value) { return add(name, std::string_view(value)); }
  field_digest& add(std::string_view name, const digest& value) { return add(name, std::as_bytes(std::span(value.bytes))); }
  template <std::integral I>
  field_digest& add(std::string_view name, I value) {
    const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    return add(name, std::as_bytes(std::span(&wide, 1)));
  }
  /// Token ids.
  field_digest& add(std::string_view name, std::span<const std::int32_t> values) { return add(name, std::as_bytes(values)); }

  digest finish() { return hash_.finish(); }

 private:
  void length(std::uint64_t n) { hash_.add(std::as_bytes(std::span(&n, 1))); }
  sha256 hash_;
};

}  // namespace kvx
