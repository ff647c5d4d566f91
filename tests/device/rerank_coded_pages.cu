// Pages by the codes of their members on the device: each page's logits are the best of its members' by definition, to the last bit.

#include <kvx/attend/cuda/page_call.cuh>
#include <kvx/rerank/cuda/coded_pages.cuh>
#include <kvx/rerank/cuda/page_terms.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "device/codes_on_device.cuh"
#include "support/code_logits.hpp"

using namespace kvx;
using namespace kvx::test;

namespace {

bool same_bits(float a, float b) { return is_nan(a) ? is_nan(b) : std::memcmp(&a, &b, sizeof a) == 0; }

/// Zones of sequences that share pages in different orders; members are any tokens of a page's block that are no sinks.
struct coded_case {
  key_sketch sketch = {};
  dci_shape shape{.block = 32, .rank = dci_shape::ranking::coded_member};
  int dim = 24, page_tokens = 8, heads = 2, group = 3, sink = 8;
  std::vector<searched_sequence> sequences = {{300, 1}, {130, 2}, {30, 1}};

  template <int Bits>
  void check() {
    sketch.bits = Bits;
    constexpr std::int64_t longest = 304;
    const zones cut{.sink = sink, .local = 20, .unit = shape.block};
    const codes_on_device codes(sketch, dim, page_tokens, heads, longest, static_cast<unsigned>(dim), sequences);
    const std::int64_t units = codes.tokens() * heads, pages = longest / page_tokens;
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    std::vector<float> plain, rotated;
    for (std::int64_t i = 0; i < units * group * dim; ++i) {
      plain.push_back(normal(random));
      rotated.push_back(normal(random));
    }
    const std::int64_t pitch = packed_page::block_bytes(shape, page_tokens) + 4;
    const std::int64_t ids = 1 + *std::max_element(codes.head(0, 0).pages, codes.head(0, 0).pages + pages);
    std::vector<std::byte> members(static_cast<std::size_t>(pitch * ids * heads));
    const column_array column{members.data(), pitch, heads, pitch * ids};
    for (std::int64_t p = 0; p < ids; ++p) {
      for (int h = 0; h < heads; ++h) {
        const packed_page packed{column.at(p, h), page_tokens, packed_page::entry_bytes(shape)};
        for (int i = 0; i < page_tokens; ++i)
          packed.set_member(i, sink + static_cast<int>(random() % static_cast<unsigned>(shape.block - sink)));
        packed.count() = page_tokens;
      }
    }
    const device_array<std::byte> d_members(members);
    const device_array<float> d_plain(plain), d_rotated(rotated);

    page_search_call<float, page_budget> call;
    static_cast<page_search_shape<page_budget>&>(call) =
        page_search_of(shape, {}, false, {page_tokens, dim, dim}, cut, heads, std::int64_t{heads} * group, codes.tokens(), longest,
                       {.keep = 16}, false, {.coded = false, .tail = false}, 0);
    call.rows = codes.head(0, 0).rows;
    call.members = column;
    call.members.data = d_members.data();
    call.batch = codes.batch();
    call.plain = d_plain.data();
    scratch_parts size;
    page_search_arrays(call, size);
    const device_array<std::byte> memory(std::vector<std::byte>(static_cast<std::size_t>(size.used), std::byte{0x7e}));
    scratch_parts parts{memory.data()};
    call.to = page_search_arrays(call, parts);
    const device_array<float> dots(static_cast<std::size_t>(units * call.to.page_pitch * group));
    rerank_input in;
    in.plain = d_plain.data();
    in.rotated = d_rotated.data();
    in.page_dots = dots.data();
    in.page_pitch = call.to.page_pitch;
    in.first_page = sink / page_tokens;
    const test_stream stream;
    const device exec{.stream = stream.get()};
    const page_shape page{page_tokens, dim, dim};
    if (sketch.centre) leave_page_dots(exec, page, codes.columns(), codes.batch(), in, {heads, group, codes.tokens()}, dots.data(), &cut);
    score_coded_pages<Bits>(exec, call, sketch, codes.columns(), in);
    stream.wait();

    const auto left = memory.read();
    const auto* const logits = reinterpret_cast<const float*>(left.data() + (reinterpret_cast<std::byte*>(call.to.logits) - memory.data()));
    std::int64_t entry = 0, query = 0, seen = 0;
    for (std::int64_t u = 0; u < units; ++u) {
      CAPTURE(u);
      const searched_sequence& s = sequences[static_cast<std::size_t>(entry)];
      const token_zone z = zone_of({nullptr, s.length, s.queries, 0}, 0, cut, page_tokens, query);
      if (u % heads == heads - 1 && ++query == s.queries) ++entry, query = 0;
      if (call.wanted((z.end - z.begin) / page_tokens, z.committed) * page_tokens >= z.end - z.begin) continue;  // nothing to choose
      std::vector<std::int32_t> all(static_cast<std::size_t>(z.end));
      std::iota(all.begin(), all.end(), 0);
      const head_view<float> from = codes.head(u / heads, u % heads);
      const kvx::group_queries q{tensor_view<const float, 2>(plain.data() + u * group * dim, group, dim),
                                 tensor_view<const float, 2>(rotated.data() + u * group * dim, group, dim)};
      const std::vector<float> by_token = code_logits<Bits>(sketch, from, q, all);
      bool same = true;
      for (std::int64_t j = z.begin / page_tokens; j < z.end / page_tokens; ++j) {
        const packed_page packed{column.at(from.pages[j], u % heads), page_tokens, packed_page::entry_bytes(shape)};
        const std::int64_t block = j * page_tokens / shape.block * shape.block;
        for (std::int64_t g = 0; g < group; ++g) {
          float most = -infinity;
          for (int m = 0; m < page_tokens; ++m) {
            const float logit = by_token[static_cast<std::size_t>(g * z.end + block + packed.member(m))];
            if (logit > most) most = logit;
          }
          same = same &&
                 same_bits(most > -infinity ? most : quiet_nan, logits[(u * group + g) * call.to.page_pitch + j - z.begin / page_tokens]);
          ++seen;
        }
      }
      CHECK(same);
    }
    CHECK(seen > 20);
  }
};

}  // namespace

TEST_CASE("each number of bits, groups of 1 to 9 heads, keys with one weight or many, with a centre and without") {
  coded_case{}.check<4>();
  coded_case{.sketch = {.weights = key_sketch::weighting::key, .centre = false}, .group = 1}.check<4>();
  coded_case{.dim = 70, .group = 9}.check<8>();
  coded_case{.sketch = {.subspace = 4}, .dim = 9, .group = 4}.check<2>();
}

TEST_CASE("blocks of one page, and of more tokens than a block of threads; no sinks") {
  coded_case{.shape = {.block = 8}, .sink = 0}.check<4>();
  coded_case{.shape = {.block = 64}, .page_tokens = 16, .sink = 0}.check<4>();
  coded_case{.shape = {.block = 264}, .page_tokens = 8, .heads = 1, .sequences = {{303, 1}}}.check<4>();
}

TEST_CASE("misuse is refused") {
  page_search_call<float, page_budget> call;
  call.rows.key_dim = call.rows.value_dim = 8;
  const auto score = [&](const key_sketch& s) { score_coded_pages<4>(device{}, call, s, {}, {}); };
  CHECK_THROWS_AS(score({.bits = 8}), usage_error);
  CHECK_THROWS_AS(score({.bits = 4}), usage_error);  // no dots
  call.group = 129;
  CHECK_THROWS_AS(score({.centre = false}), usage_error);
}
