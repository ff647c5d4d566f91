// Every tensor type against its definition, written down a second time in double.

#include "gguf_writer.hpp"

#include <dequantise.hpp>
#include <gguf.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <random>

using namespace decode_loop::test;

namespace {

/// A finite half by its definition.
double half_value(unsigned bits) {
  const double sign = bits & 0x8000U ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 10 & 31U);
  const double fraction = static_cast<double>(bits & 0x3ffU);
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

/// Value i of a block of 32, from the block's bytes.
double block_value(std::uint32_t type, const std::vector<unsigned>& block, unsigned i) {
  const double scale = half_value(block[0] | block[1] << 8);
  if (type == 8) return scale * (block[2 + i] < 128 ? static_cast<double>(block[2 + i]) : static_cast<double>(block[2 + i]) - 256);
  const unsigned start = type == 2 ? 2 : 4;
  const unsigned code = block[start + i % 16] >> (i < 16 ? 0 : 4) & 15U;
  if (type == 2) return scale * (static_cast<double>(code) - 8);
  return scale * code + half_value(block[2] | block[3] << 8);
}

}  // namespace

TEST_CASE("blocks of Q4_0, Q4_1 and Q8_0") {
  std::mt19937 random(5);
  for (const auto& stored : {std::pair{2U, 18U}, {3U, 20U}, {8U, 34U}}) {
    const unsigned type = stored.first, bytes = stored.second;
    CAPTURE(type);
    std::vector<std::byte> file;
    std::vector<std::vector<unsigned>> blocks;
    for (int b = 0; b < 200; ++b) {
      std::vector<unsigned> block;
      for (unsigned i = 0; i < bytes; ++i) block.push_back(random() & 255U);
      block[1] &= 0xbfU;                                                // finite scales and offsets
      if (type == 3) block[3] &= 0xbfU;
      for (const unsigned byte : block) file.push_back(static_cast<std::byte>(byte));
      blocks.push_back(block);
    }
    const decode_loop::gguf reader(gguf_writer().tensor("w", {320, 20}, type, file).finish(), "test.gguf");
    const auto values = reader.floats("w", {320, 20});
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double expected = block_value(type, blocks[i / 32], static_cast<unsigned>(i % 32));
      const double slack = std::abs(half_value(blocks[i / 32][0] | blocks[i / 32][1] << 8)) * 16 * 0x1p-24;  // one rounding of the product
      REQUIRE(std::abs(static_cast<double>(values[i]) - expected) <= std::abs(expected) * 0x1p-24 + (type == 3 ? slack : 0));
    }
  }
}

TEST_CASE("F32, F16 and BF16, every bit pattern of the short ones") {
  byte_writer words;
  for (unsigned bits = 0; bits < 65536; ++bits) words.number(static_cast<std::uint16_t>(bits));
  const decode_loop::gguf reader(gguf_writer()
                                     .tensor("half", {256, 256}, 1, words.bytes())
                                     .tensor("bf16", {256, 256}, 30, words.bytes())
                                     .floats("float", {2}, {-0.0F, 1e-40F})
                                     .finish(),
                                 "test.gguf");
  const auto half = reader.floats("half", {256, 256});
  const auto bf16 = reader.floats("bf16", {256, 256});
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const bool special = (bits & 0x7c00U) == 0x7c00U;
    REQUIRE((special ? !std::isfinite(half[bits]) : static_cast<double>(half[bits]) == half_value(bits)));
    const std::uint32_t wide = bits << 16;
    REQUIRE(std::memcmp(&bf16[bits], &wide, 4) == 0);
  }
  CHECK(std::signbit(reader.floats("float", {2, 1})[0]));
  CHECK(reader.floats("float", {2, 1})[1] == 1e-40F);
}
