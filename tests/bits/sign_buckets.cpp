// Prints what an index of sign buckets decides; every compiler, flag and instruction set must print the same.

#include <kvx/index/host/sign_buckets.hpp>
#include <kvx/transform/srht.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

using namespace kvx;

namespace {

std::uint64_t state = 1;
std::uint32_t next() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<std::uint32_t>(state >> 33);
}
float uniform() { return static_cast<float>(next() % 65536) * 0x1p-15f - 1; }

void decide(int dim, int group, const bucket_scoring& by) {
  const key_sketch sketch;
  const page_shape page{64, dim, dim};
  constexpr std::int64_t tokens = 3000, pages = 47;
  std::vector<std::byte> memory[3];
  std::vector<std::int32_t> table;
  key_columns columns;
  for (int c = 0; c <= column_means; ++c) {
    const column block{block_bytes(sketch, page, static_cast<sketch_column>(c))};
    memory[c].resize(static_cast<std::size_t>(block.pitch() * pages));
    for (std::byte& b : memory[c]) b = static_cast<std::byte>(c == column_norms ? 150 + next() % 20 : next());
    columns[static_cast<std::size_t>(c)] = {memory[c].data(), block.pitch(), 1};
  }
  for (std::int32_t i = 0; i < pages; ++i) {
    table.push_back(i);
    for (int d = 0; d < dim; ++d) reinterpret_cast<bf16*>(columns[column_means].at(i, 0))[d] = round_to<bf16>(uniform());
  }
  std::vector<float> plain, lse;
  for (int i = 0; i < group * dim; ++i) plain.push_back(uniform());
  for (int g = 0; g < group; ++g) lse.push_back(3 * uniform());
  std::vector<float> rotated = plain;
  for (int g = 0; g < group; ++g) rotate(rotated.data() + g * dim, static_cast<std::size_t>(dim), sketch.seed);
  const bucket_queries in{tensor_view<const float, 2>(rotated.data(), group, dim), tensor_view<const float, 2>(plain.data(), group, dim),
                          lse.data(), .1f};
  const bucket_zone z{page, columns, 0, table.data(), 4, tokens};
  const memory_block scratch(lazy_pages(), search_bytes(sketch, by, page, group, tokens));
  std::vector<std::int32_t> found(300);
  const std::int64_t n =
      search_buckets({}, sketch, by, z, in, {}, 300, found.data(), std::span(scratch.data(), static_cast<std::size_t>(scratch.size())));
  std::printf("dim %d, group %d: %lld:", dim, group, static_cast<long long>(n));
  for (std::int64_t i = 0; i < n; ++i) std::printf(" %d", found[static_cast<std::size_t>(i)]);
  std::printf("\n");
}

}  // namespace

int main() {
  for (const int dim : {8, 46, 80, 128, 256, 300, 576}) {
    decide(dim, 4, {});
    decide(dim, 7, {bucket_scoring::rule::sign_sum, bucket_scoring::query::mean_query});
    decide(dim, 3, voting);
  }
  return 0;
}
