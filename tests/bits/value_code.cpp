// Prints what encoding values decides, for values that are integers scaled by powers of two: the same lines from every compiler, flag and
 // set.

#include <kvx/core/random.hpp>
#include <kvx/sketch/host/value_code.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

namespace {

/// 64-bit FNV-1a.
template <class T>
std::uint64_t digest(const std::vector<T>& x) {
  std::uint64_t value = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(x.data());
  for (std::size_t i = 0; i < x.size() * sizeof(T); ++i) value = (value ^ bytes[i]) * 0x100000001b3u;
  return value;
}

template <int Bits, class E>
void print(const char* element, int dim, const std::vector<float>& values) {
  const int tokens = static_cast<int>(values.size()) / dim;
  std::vector<E> rows;
  for (const float v : values) rows.push_back(kvx::round_to<E>(v));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(kvx::value_row_bytes(Bits, dim) * tokens));
  std::vector<kvx::half> scales(static_cast<std::size_t>(tokens));
  std::vector<kvx::bf16> means(static_cast<std::size_t>(dim));
  kvx::encode_values(kvx::make_value_encoder<E, Bits>(dim, 1), rows.data(), dim, tokens, {codes.data(), scales.data(), means.data()});
  std::printf("%s dim %d bits %d: %016llx %016llx %016llx\n", element, dim, Bits, static_cast<unsigned long long>(digest(codes)),
              static_cast<unsigned long long>(digest(scales)), static_cast<unsigned long long>(digest(means)));
}

}  // namespace

int main() {
  for (const int dim : {1, 15, 64, 80, 128, 576}) {
    std::vector<float> values;
    for (int i = 0; i < 64 * dim; ++i) {
      const auto x = static_cast<std::int32_t>(kvx::random_bits(4, static_cast<std::uint64_t>(i)) & 0xffffu) - 0x7000;
      values.push_back(static_cast<float>(x) * 0x1p-13f);
    }
    values[static_cast<std::size_t>(17 * dim)] = std::numeric_limits<float>::infinity();
    print<4, float>("float", dim, values);
    print<2, kvx::half>("half", dim, values);
    print<4, kvx::bf16>("bf16", dim, values);
  }
  return 0;
}
