#include "dequantise.hpp"

#include <kvx/core/element.hpp>

#include <cstring>

namespace decode_loop {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float half_at(const std::byte* at) { return kvx::to_float(kvx::half{load<std::uint16_t>(at)}); }

void unpack_q8_0(const std::byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(std::to_integer<std::int8_t>(in[2 + i]));
}

void unpack_q4(const std::byte* nibbles, float scale, int zero, float offset, float* out) {
  for (int i = 0; i < 16; ++i) {
    const int pair = std::to_integer<int>(nibbles[i]);
    out[i] = scale * static_cast<float>((pair & 15) - zero) + offset;
    out[i + 16] = scale * static_cast<float>((pair >> 4) - zero) + offset;
  }
}

}  // namespace

void dequantise(std::uint32_t ggml_number, std::span<const std::byte> in, std::span<float> out) {
  const auto [name, block, bytes] = tensor_type_of(ggml_number);
  const std::byte* from = in.data();
  float* to = out.data();
  for (std::size_t left = out.size() / block; left > 0; --left, from += bytes, to += block) {
    switch (ggml_number) {
      case 0: *to = load<float>(from); break;
      case 1: *to = half_at(from); break;
      case 2: unpack_q4(from + 2, half_at(from), 8, 0, to); break;
      case 3: unpack_q4(from + 4, half_at(from), 0, half_at(from + 2), to); break;
      case 8: unpack_q8_0(from, to); break;
      case 30: *to = kvx::to_float(kvx::bf16{load<std::uint16_t>(from)}); break;
      default: break;
    }
  }
}

}  // namespace decode_loop
