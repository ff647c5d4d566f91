// Codes of the means of pages: those of the definition wherever columns lie; the pages that they propose; searches of long zones.

#include <support/dci_tree.hpp>
#include <support/instruction_sets.hpp>

#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/index/host/page_proposals.hpp>
#include <kvx/index/host/page_search.hpp>
#include <kvx/index/page_codes.hpp>
#include <kvx/sketch/whole_query.hpp>
#include <kvx/transform/srht.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr int page_tokens = 4;

/// Half a byte of a page's code.
template <class E>
int code_at(const dci_shape& shape, const dci_head<E>& of, std::int64_t page, int d) {
  const std::int64_t group = page / coded_pages * coded_pages;
  const std::byte* const line = page_code_lines{of.rows.key_dim}.line(of.codes, of.head, of.column_pages + group, d / line_dims);
  CHECK(shape.block / of.rows.page_tokens % coded_pages == 0);
  const int byte = static_cast<int>(line[page % coded_pages * 4 + d % 4]);
  return d % line_dims < 4 ? byte & 15 : byte >> 4;
}

/// The codes of all pages by their definition.   (pages, D)
template <class E>
std::vector<std::vector<int>> plain_codes(const dci_shape& shape, const dci_head<E>& of, std::int64_t pages) {
  const int D = of.rows.key_dim;
  const auto dims = static_cast<std::size_t>(D);
  std::vector<std::int64_t> first;
  for (std::int64_t j = 0; j < shape.block / page_tokens; ++j) {
    if (of.packed(shape, j).count() > 0) first.push_back(j);
  }
  std::vector<float> centre(dims);
  double squares = 0;
  for (std::size_t d = 0; d < dims; ++d) {
    double sum = 0;
    for (const std::int64_t j : first) sum += static_cast<double>(to_float(of.mean_of(j)[d]));
    if (!first.empty()) centre[d] = static_cast<float>(sum / static_cast<double>(first.size()));
    double own = 0;
    for (const std::int64_t j : first) own += std::pow(static_cast<double>(to_float(of.mean_of(j)[d]) - centre[d]), 2);
    squares += own;
  }
  const double step = first.empty() ? 0 : std::sqrt(squares / static_cast<double>(first.size() * dims));
  std::vector<std::vector<int>> codes;
  for (std::int64_t j = 0; j < pages; ++j) {
    std::vector<float> x(dims);
    for (std::size_t d = 0; d < dims && of.packed(shape, j).count() > 0; ++d) x[d] = to_float(of.mean_of(j)[d]) - centre[d];
    rotate(x.data(), dims, shape.seed);
    auto& code = codes.emplace_back();
    for (const float y : x) {
      const double steps = step > 0 ? std::floor(static_cast<double>(y) * static_cast<double>(static_cast<float>(1 / step)))
                           : y > 0  ? 7
                           : y < 0  ? -8
                                    : 0;
      code.push_back(static_cast<int>(std::clamp(steps, -8.0, 7.0)) + 8);
    }
  }
  return codes;
}

std::vector<float> random_queries(int heads, int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> q;
  for (int i = 0; i < heads * dim; ++i) q.push_back(2 * normal(random));
  return q;
}

}  // namespace

TEST_CASE("codes are those of the definition, in any pieces; a first block whose means are all the same leaves signs") {
  for (const int dim : {3, 20, 128, 136}) {
    for (const bool same : {false, true}) {
      CAPTURE(dim);
      CAPTURE(same);
      const dci_shape shape{.block = 128};
      constexpr std::int64_t tokens = 512;
      dci_world<bf16> whole(shape, page_tokens, dim, tokens, 8), pieces(shape, page_tokens, dim, tokens, 8);
      for (auto* const world : {&whole, &pieces}) {
        world->set_key(200, 1, quiet_nan);
        for (std::int64_t t = 256; t < 384; ++t) world->set_key(t, 0, infinity);  // a block without members
        for (std::int64_t t = 0; t < 128 && same; ++t) {
          for (int d = 0; d < dim; ++d) world->set_key(t, d, .5f);
        }
      }
      whole.index(0, tokens / shape.block);
      for (std::int64_t b = 0; b < tokens / shape.block; ++b) pieces.index(b, 1);
      CHECK(whole.columns() == pieces.columns());
      const auto codes = plain_codes(shape, whole.head(), tokens / page_tokens);
      std::int64_t wrong = 0;
      for (std::int64_t j = 0; j < tokens / page_tokens; ++j) {
        for (int d = 0; d < dim; ++d)
          wrong += code_at(shape, whole.head(), j, d) != codes[static_cast<std::size_t>(j)][static_cast<std::size_t>(d)];
      }
      CHECK(wrong == 0);
    }
  }
}

/// The kernels of every set, and those of AVX-512 that byte dot products replace on this processor.
std::vector<simd::page_table> all_page_kernels() {
  std::vector<simd::page_table> all;
  for (const instruction_set set : instruction_sets()) all.push_back(simd::page_kernels_of(set));
#if defined(__x86_64__)
  if (instruction_sets().back() == instruction_set::avx512) all.push_back(simd::avx512::functions<simd::page_table>);
#endif
  return all;
}

TEST_CASE("sums over the codes of pages are whole and the same for every instruction set") {
  constexpr std::int64_t groups = 10, pages = groups * coded_pages;
  std::mt19937 random(3);
  std::vector<std::int32_t> ids(pages);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  for (const int lines : {1, 3, 16, 72}) {
    const int each = (lines + coded_pages - 1) / coded_pages;
    const std::int64_t pitch = 64 * each;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(pages * pitch));
    for (auto& x : bytes) x = lines == 16 ? 255 : static_cast<std::uint8_t>(random());  // the largest sums that words must hold
    for (const int heads : {1, 2, 3, 4, 7}) {
      std::vector<std::int8_t> q(static_cast<std::size_t>(lines * heads * 8));
      for (auto& x : q) x = lines == 16 ? std::int8_t{-127} : static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
      std::vector<std::int32_t> words(q.size() / 4);
      std::memcpy(words.data(), q.data(), q.size());
      std::vector<float> units, expected;
      for (int g = 0; g < heads; ++g) {
        units.push_back(.01f * static_cast<float>(g + 1));
        for (std::int64_t i = 0; i < pages; ++i) {
          std::int32_t sum = 0;
          for (int l = 0; l < lines; ++l) {
            const std::int32_t page = ids[static_cast<std::size_t>(i / coded_pages * coded_pages + l / each)];
            const std::uint8_t* const line = bytes.data() + page * pitch + 64 * (l % each);
            for (int k = 0; k < 8; ++k) {
              const int byte = line[4 * (i % coded_pages) + k % 4];
              sum += (k < 4 ? byte & 15 : byte >> 4) * q[static_cast<std::size_t>(((2 * l + k / 4) * heads + g) * 4 + k % 4)];
            }
          }
          expected.push_back(static_cast<float>(sum) * units.back());
        }
      }
      const simd::page_lines in{bytes.data(), pitch, each, lines};
      for (const simd::page_table& kernels : all_page_kernels()) {
        std::vector<float> sums(expected.size()), best(pages - 1);
        kernels.page_sums(words.data(), heads, in, ids.data(), groups, units.data(), sums.data(), pages);
        CHECK(sums == expected);
        kernels.best_of_heads(sums.data(), pages, heads, pages - 1, units.data(), best.data());
        std::int64_t wrong = 0;
        for (std::size_t i = 0; i < best.size(); ++i) {
          float most = -infinity;
          for (std::size_t g = 0; g < units.size(); ++g) most = std::max(most, expected[g * pages + i] - units[g]);
          wrong += best[i] != most;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("proposed are the pages of which some head makes most; heads without a direction have no say") {
  constexpr int dim = 20;
  constexpr std::int64_t tokens = 1024;
  const dci_shape shape{.block = 64};
  dci_world<bf16> world(shape, page_tokens, dim, tokens, 12);
  world.index(0, tokens / shape.block);
  const auto of = world.head();
  const auto codes = plain_codes(shape, of, tokens / page_tokens);
  for (const float scale : {0.0f, .3f, -.3f}) {
    for (const float lost : {1.0f, 0.0f, quiet_nan, 1e36f}) {  // the second head's queries times it
      std::vector<float> q = random_queries(3, dim, 5);
      for (int d = 0; d < dim; ++d) q[static_cast<std::size_t>(dim + d)] *= lost;
      for (const std::int64_t begin : {12, 64, 200}) {
        const std::int64_t first = begin / page_tokens, pages = tokens / page_tokens - first;
        std::vector<double> scores(static_cast<std::size_t>(pages), -1e300);
        for (int g = 0; g < 3; ++g) {
          std::vector<float> x(q.begin() + g * dim, q.begin() + (g + 1) * dim);
          rotate(x.data(), x.size(), shape.seed);
          const query_scale by = scale_of(x.data(), 1, dim);
          if (g == 1 && lost != 1) continue;
          std::vector<double> sums;
          for (std::int64_t j = first; j < first + pages; ++j) {
            int sum = 0;
            for (std::size_t d = 0; d < dim; ++d) sum += whole_component(x[d], by.inverse) * codes[static_cast<std::size_t>(j)][d];
            sums.push_back(static_cast<double>(static_cast<float>(sum) * (scale < 0 ? -by.unit : by.unit)));
          }
          const double most = *std::max_element(sums.begin(), sums.end());
          for (std::size_t j = 0; j < sums.size(); ++j)
            scores[j] = std::max(scores[j], static_cast<double>(static_cast<float>(sums[j] - most)));
        }
        for (const std::int64_t wanted : {std::int64_t{1}, std::int64_t{30}, pages}) {
          std::vector<std::int32_t> expected(static_cast<std::size_t>(pages)), ids(expected);
          std::iota(expected.begin(), expected.end(), 0);
          std::stable_sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) {
            return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
          });
          expected.resize(static_cast<std::size_t>(wanted));
          std::sort(expected.begin(), expected.end());
          scratch_parts size;
          page_proposals(size, dim, 3, tokens / page_tokens);
          const memory_block memory(std::pmr::new_delete_resource(), size.used);
          std::fill_n(memory.data(), memory.size(), std::byte{0x7f});
          scratch_parts parts{memory.data()};
          const page_proposals proposals(parts, dim, 3, tokens / page_tokens);
          const page_query query{tensor_view<const float, 2>(q.data(), 3, dim), nullptr, scale, begin, tokens};
          ids.resize(static_cast<std::size_t>(proposals.propose(shape, of, query, wanted, ids.data())));
          CHECK(ids == expected);
        }
      }
    }
  }
}

TEST_CASE("a long zone: the means of what codes propose are looked at alone, and what stands out is found; asked for probes, all are") {
  constexpr int dim = 20, group = 2;
  constexpr std::int64_t sink = 32, tokens = 64 * 160;
  const dci_shape shape{.block = 64};
  dci_world<bf16> world(shape, page_tokens, dim, tokens, sink);
  const std::vector<float> q = random_queries(group, dim, 9);
  std::vector<std::int64_t> planted;
  for (std::int64_t t = 64 * 7 + 3; t < tokens; t += 64 * 19) {  // a key along a query, in a block of its own
    planted.push_back(t);
    for (int d = 0; d < dim; ++d)
      world.set_key(t, d, 1.5f * q[static_cast<std::size_t>(planted.size() % group * dim) + static_cast<std::size_t>(d)]);
  }
  for (std::int64_t t = 640; t < 704; ++t) world.set_key(t, 0, quiet_nan);  // pages without members are never proposed
  world.index(0, tokens / shape.block);
  const page_query query{tensor_view<const float, 2>(q.data(), group, dim), nullptr, 0, sink, tokens};
  const std::int64_t pages = (tokens - sink) / page_tokens;
  REQUIRE(proposed_pages(pages, 12) == 512);
  const auto search = [&](const dci_head<bf16>& of, int probes, std::vector<std::int32_t>& found) {
    const page_search options{.pages = 12, .probes = probes};
    const memory_block scratch(std::pmr::new_delete_resource(), search_pages_bytes({page_tokens, dim, 8}, group, tokens, options));
    std::fill_n(scratch.data(), scratch.size(), std::byte{0x7f});
    found.resize(12);
    const auto result =
        search_pages(host{}, shape, of, {}, query, options, found, {scratch.data(), static_cast<std::size_t>(scratch.size())});
    found.resize(static_cast<std::size_t>(result.found));
    return result;
  };
  dci_head<bf16> uncoded = world.head();
  uncoded.codes = {};
  std::vector<std::int32_t> coded, plain, brute, brute_uncoded;
  const auto result = search(world.head(), 0, coded);
  CHECK(result.means == pages + 512);
  CHECK(search(uncoded, 0, plain).means == pages - 16);
  for (const std::int64_t t : planted) CHECK(std::find(coded.begin(), coded.end(), world.head().semantic_page(shape, t)) != coded.end());
  search(world.head(), static_cast<int>(pages), brute);
  search(uncoded, static_cast<int>(pages), brute_uncoded);
  CHECK(brute == brute_uncoded);
}
