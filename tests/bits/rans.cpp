// Prints the alphabets of scales and a stream coded with them: the same lines from every compiler, flag and instruction set.

#include <kvx/codec/host/rans.hpp>
#include <kvx/codec/scale_tables.hpp>
#include <kvx/core/random.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

/// 64-bit FNV-1a.
std::uint64_t digest(const void* first, std::size_t bytes) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < bytes; ++i) value = (value ^ static_cast<const unsigned char*>(first)[i]) * 0x100000001b3u;
  return value;
}

void print(const char* name, std::uint64_t value) { std::printf("%s %016llx\n", name, static_cast<unsigned long long>(value)); }

}  // namespace

int main() {
  for (const int rounding : {77, 128}) {
    const kvx::scale_tables tables(rounding);
    for (int q = 0; q < kvx::shape_count; ++q) {
      for (int i = 0; i < kvx::scale_count; i += 5) {
        const auto table = static_cast<std::uint16_t>(q * kvx::scale_count + i);
        print("alphabet", digest(&tables.lookup(table), sizeof(kvx::symbol_lookup)));
        print("levels", digest(tables.level(table), 2 * kvx::scale_tables::levels));
      }
    }
    constexpr int components = 200, tokens = 150;
    std::vector<std::uint16_t> table_of;
    std::vector<std::int16_t> values(components * 160);
    for (int c = 0; c < components; ++c) {
      table_of.push_back(
          static_cast<std::uint16_t>(kvx::random_bits(1, static_cast<std::uint64_t>(c)) % (kvx::scale_count * kvx::shape_count)));
      const int i = table_of.back() % kvx::scale_count, bits = i / 8 + 1;
      for (int t = 0; t < tokens; ++t) {
        const auto x = static_cast<std::int64_t>(kvx::random_bits(2, static_cast<std::uint64_t>(c * tokens + t)));
        values[static_cast<std::size_t>(c * 160 + t)] = static_cast<std::int16_t>(t % 50 == 0 ? x >> 49 : x >> (64 - bits));
      }
    }
    const kvx::symbol_model model{tables.lookups(), table_of.data(), components};
    std::vector<std::byte> stream(static_cast<std::size_t>(kvx::rans_bound(model, tokens)));
    std::int64_t bytes = 0;
    if (!kvx::rans_encode(kvx::host{}, model, {values.data(), components, tokens, 160}, stream, bytes).ok()) return 1;
    print("stream", digest(stream.data(), static_cast<std::size_t>(bytes)));
    std::vector<std::int16_t> decoded(values.size());
    if (!kvx::rans_decode(kvx::host{}, model, {stream.data(), static_cast<std::size_t>(bytes)}, {decoded.data(), components, tokens, 160})
             .ok())
      return 2;
    for (int c = 0; c < components; ++c) print("values", digest(decoded.data() + c * 160, 2 * tokens));
    for (int code = -40000; code <= 40000; code += 777) {
      const float power = kvx::power_of_code(code);
      print("power", digest(&power, sizeof power));
    }
  }
  return 0;
}
