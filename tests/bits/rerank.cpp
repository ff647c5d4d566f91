// Prints what reranking decides from codes of any bytes: the same lines from every compiler, flag and instruction set.

#include <kvx/core/random.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

namespace {

using kvx::key_sketch;

/// 64-bit FNV-1a.
template <class T>
std::uint64_t digest(const std::vector<T>& x) {
  std::uint64_t value = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(x.data());
  for (std::size_t i = 0; i < x.size() * sizeof(T); ++i) value = (value ^ bytes[i]) * 0x100000001b3u;
  return value;
}

/// Sums of four 16-bit numbers: as good as normal, and the same everywhere.
std::vector<float> bells(std::uint64_t seed, std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t bits = kvx::random_bits(seed, i);
    std::int32_t sum = -131072;
    for (int j = 0; j < 4; ++j) sum += static_cast<std::int32_t>(bits >> 16 * j & 0xffffu);
    x[i] = static_cast<float>(sum) * 0x1p-15f;
  }
  return x;
}

template <int Bits>
void print(key_sketch s, int dim, int group) {
  s.bits = Bits;
  constexpr int page_tokens = 64, pages = 6;
  const kvx::page_shape shape{page_tokens, dim, dim};
  const auto columns = kvx::sketch_columns(s, shape);
  kvx::head_view<float> from;
  from.rows.heads = 1;
  from.rows.page_tokens = page_tokens;
  from.rows.key_dim = dim;
  std::vector<std::vector<std::byte>> memory;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    auto& bytes = memory.emplace_back(static_cast<std::size_t>(columns[c].pitch() * pages + 64));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(kvx::random_bits(c, i));
    const auto values = bells(c + 10, bytes.size() / 2);
    auto* const words = reinterpret_cast<std::uint16_t*>(bytes.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (c == kvx::column_means) words[i] = kvx::round_to<kvx::bf16>(values[i]).bits;
      if (c == kvx::column_weights) words[i] = kvx::round_to<kvx::half>(20 * (values[i] < 0 ? -values[i] : values[i])).bits;
    }
    from.columns[c] = {bytes.data(), columns[c].pitch(), 1};
  }
  const std::vector<std::int32_t> table = {3, 1, 5, 0, 2, 4};
  from.pages = table.data();
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < page_tokens * pages; t += 1 + t % 3) ids.push_back(t);
  const auto count = static_cast<std::int64_t>(ids.size());

  const auto plain = bells(20, static_cast<std::size_t>(group * dim)), rotated = bells(21, static_cast<std::size_t>(group * dim));
  const kvx::group_queries queries{kvx::tensor_view<const float, 2>(plain.data(), group, dim),
                                   kvx::tensor_view<const float, 2>(rotated.data(), group, dim), 0.0625f};
  const kvx::host exec{.threads = 1};
  std::vector<float> logits(static_cast<std::size_t>(group * count)), scores(ids.size()), resident(static_cast<std::size_t>(group), 3.5f);
  std::vector<std::byte> scratch(static_cast<std::size_t>(kvx::rerank_scratch(exec, kvx::rsq_ip<Bits>{}, dim, group)));
  kvx::rerank(exec, kvx::rsq_ip<Bits>{}, s, from, queries, ids, kvx::tensor_view<float, 2>(logits.data(), group, count), scratch);
  scratch.resize(static_cast<std::size_t>(kvx::group_scores_scratch(exec, {}, group, count)));
  kvx::group_scores(exec, {}, kvx::tensor_view<const float, 2>(logits.data(), group, count), resident, scores, scratch);
  std::vector<std::int32_t> kept(40);
  kvx::top_k(exec, scores, 40, std::span(kept));
  std::printf("dim %d m %d bits %d weights %d group %d: %016llx %016llx %016llx\n", dim, s.subspace, s.bits, static_cast<int>(s.weights),
              group, static_cast<unsigned long long>(digest(logits)), static_cast<unsigned long long>(digest(scores)),
              static_cast<unsigned long long>(digest(kept)));
}

}  // namespace

int main() {
  for (const int dim : {8, 72, 100, 128, 576}) {
    for (const int m : {4, 8, 16}) {
      print<4>({.subspace = m}, dim, 4);
      print<2>({.subspace = m}, dim, 1);
      print<8>({.subspace = m, .centre = false}, dim, 3);
    }
    print<4>({.weights = key_sketch::weighting::key}, dim, 4);
  }
  print<4>({}, 128, 16);
  return 0;
}
