// Prints what encoding decides, for keys that are integers scaled by powers of two: the same lines from every compiler, flag and set.

#include <kvx/sketch/balance.hpp>
#include <kvx/sketch/host/key_code.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

namespace {

using kvx::key_sketch;

/// 64-bit FNV-1a.
struct digest {
  std::uint64_t value = 0xcbf29ce484222325u;
  template <class T>
  void add(const std::vector<T>& x) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(x.data());
    for (std::size_t i = 0; i < x.size() * sizeof(T); ++i) value = (value ^ bytes[i]) * 0x100000001b3u;
  }
};

/// Sums of four 16-bit numbers: as good as normal, and the same everywhere.
float bell(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t x = kvx::random_bits(seed, i);
  std::int32_t sum = -131072;
  for (int j = 0; j < 4; ++j) sum += static_cast<std::int32_t>(x >> 16 * j & 0xffffu);
  return static_cast<float>(sum) * 0x1p-15f;
}

template <class E>
void print(const char* element, const key_sketch& s, int dim, int tokens, const std::vector<float>& keys, const float* balance) {
  std::vector<E> rows;
  for (const float k : keys) rows.push_back(kvx::round_to<E>(k));
  std::vector<std::uint8_t> signs(static_cast<std::size_t>(kvx::plane_bytes(dim) * tokens)), norms(static_cast<std::size_t>(tokens));
  std::vector<kvx::bf16> means(static_cast<std::size_t>(dim));
  std::vector<std::uint8_t> magnitudes(signs.size() * static_cast<std::size_t>(s.bits - 1));
  std::vector<kvx::half> weights(static_cast<std::size_t>(kvx::weights_per_key(s, dim) * tokens));
  const auto encoder = kvx::make_key_encoder<E>(s, dim);
  kvx::page_code<true> out;
  out.signs = signs.data();
  out.norms = norms.data();
  out.means = means.data();
  out.magnitudes = magnitudes.data();
  out.weights = weights.data();
  kvx::encode_page(encoder, rows.data(), dim, tokens, balance, out);
  digest d[5];
  d[0].add(signs);
  d[1].add(norms);
  d[2].add(means);
  d[3].add(magnitudes);
  d[4].add(weights);
  std::printf("%s dim %d m %d bits %d weights %d:", element, dim, s.subspace, s.bits, static_cast<int>(s.weights));
  for (const auto& x : d) std::printf(" %016llx", static_cast<unsigned long long>(x.value));
  std::printf("\n");
}

}  // namespace

int main() {
  constexpr int tokens = 64;
  for (const int dim : {1, 15, 64, 80, 100, 128, 256, 576}) {
    std::vector<float> keys;
    kvx::balance_moments moments(dim);
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> key, query;
      for (int c = 0; c < dim; ++c) {
        const auto i = static_cast<std::uint64_t>(t * dim + c);
        key.push_back(3 * bell(1, static_cast<std::uint64_t>(c)) + bell(2, i) * static_cast<float>(c % 7 + 1));
        query.push_back(bell(3, i));
      }
      moments.add_key(key.data());
      moments.add_query(query.data());
      if (t == 17) key[0] = std::numeric_limits<float>::infinity();
      keys.insert(keys.end(), key.begin(), key.end());
    }
    std::vector<float> balance(static_cast<std::size_t>(dim));
    moments.balance({kvx::rope_pairs::order::halves, dim}, balance.data());
    digest b;
    b.add(balance);
    std::printf("balance %016llx\n", static_cast<unsigned long long>(b.value));
    for (const int m : {4, 8, 16}) {
      for (const int bits : {1, 2, 4, 8}) {
        for (const auto w : {key_sketch::weighting::subspace, key_sketch::weighting::key}) {
          const key_sketch s{.subspace = m, .bits = bits, .weights = w, .centre = m != 16};
          print<float>("float", s, dim, tokens, keys, balance.data());
          print<kvx::half>("half", s, dim, tokens, keys, nullptr);
          print<kvx::bf16>("bf16", s, dim, tokens, keys, balance.data());
        }
      }
    }
  }
  return 0;
}
