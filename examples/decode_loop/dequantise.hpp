#pragma once
// The tensor types that are read, and their blocks turned into floats.

#include <cstddef>
#include <cstdint>
#include <span>

namespace decode_loop {

/// How a tensor type is stored. `name` is null for a type that is not read.
struct tensor_type {
  const char* name = nullptr;
  std::uint64_t block = 1;                                              // values that share a block
  std::uint64_t bytes = 0;                                              // of one block
};

/// The type of ggml's number: F32 0, F16 1, Q4_0 2, Q4_1 3, Q8_0 8, BF16 30.
constexpr tensor_type tensor_type_of(std::uint32_t ggml_number) {
  switch (ggml_number) {
    case 0: return {"F32", 1, 4};
    case 1: return {"F16", 1, 2};
    case 2: return {"Q4_0", 32, 18};
    case 3: return {"Q4_1", 32, 20};
    case 8: return {"Q8_0", 32, 34};
    case 30: return {"BF16", 1, 2};
    default: return {};
  }
}

/// Blocks to floats.
///
/// what        F32, F16, BF16: the value. Q8_0: half d, 32 signed bytes; d x. Q4_0: half d, 16 bytes of two nibbles; d (x - 8).
///             Q4_1: half d, half m, 16 bytes; d x + m. Byte i of a 4-bit block holds values i (low nibble) and i + 16
/// shapes      in: out.size() / block x bytes of a block, out.size() a multiple of the block
/// exactness   as ggml: products and sums in float, one rounding each
/// source      ggml-quants.c of the ggml project
void dequantise(std::uint32_t ggml_number, std::span<const std::byte> in, std::span<float> out);

}  // namespace decode_loop
