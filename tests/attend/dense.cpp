// Dense attention on the host equals its definition: shapes, lengths, masks, elements, by every instruction set.

#include "../support/dense_case.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

/// One item that decodes a token and one that is a short prompt, over rows of the same shape.
template <class E, class T>
void check_decode_and_prompt(paged_shape s, int group, std::int64_t decode_length, std::int64_t prompt_length,
                             const dense_options& o = {}) {
  s.lengths = {decode_length, prompt_length};
  const paged_rows<E> rows(s);
  const std::int64_t queries = prompt_length;
  const std::vector<attend_item> batch = {rows.item(0, 1, 0), rows.item(1, queries, 1)};
  const query_rows<T> q(1 + queries, s.heads * group, s.key_dim, 5);
  check_dense(rows.view(), batch, q, o);
}

}  // namespace

TEST_CASE("head dims: those that faulted elsewhere, and a sample of 1..576, K and V of different width") {
  const int faulted[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 46, 64, 72, 80, 96, 112, 127, 128, 129, 136, 144, 160, 176, 192, 256, 575, 576};
  for (const int d : faulted) {
    CAPTURE(d);
    check_decode_and_prompt<bf16, float>({.key_dim = d, .value_dim = d, .gap = d % 3}, 2, 67, 21);
    check_decode_and_prompt<half, half>({.key_dim = d, .value_dim = 577 - d, .offset = 1, .gap = 1}, 1, 19, 26);
  }
  for (int d = 5; d <= 576; d += 37) {
    CAPTURE(d);
    check_decode_and_prompt<float, float>({.key_dim = d, .value_dim = (d * 7) % 576 + 1, .offset = 3, .gap = d % 5}, 3, 33, 17);
    check_decode_and_prompt<bf16, bf16>({.key_dim = d, .value_dim = (d * 5) % 576 + 1, .offset = d % 4, .gap = d % 2}, 1, 35, 25);
  }
  check_decode_and_prompt<bf16, bf16>({.key_dim = 192, .value_dim = 128}, 4, 70, 20);
  check_decode_and_prompt<bf16, bf16>({.key_dim = 576, .value_dim = 512}, 16, 70, 3);
}

TEST_CASE("group sizes 1 to 16 and 64") {
  for (int group = 1; group <= 17; ++group) {
    const int g = group == 17 ? 64 : group;
    CAPTURE(g);
    check_decode_and_prompt<bf16, float>({.heads = 2, .key_dim = 24, .value_dim = 20}, g, 77, 12);
    check_decode_and_prompt<float, float>({.heads = 1, .key_dim = 9, .value_dim = 13}, g, 66, 5);
  }
}

TEST_CASE("lengths: all residues of pages, blocks and panels, and both sides of the edges of pieces") {
  for (std::int64_t n = 1; n <= 140; ++n) {
    CAPTURE(n);
    check_decode_and_prompt<bf16, float>({.page_tokens = n % 2 == 0 ? 4 : 64, .key_dim = 16, .value_dim = 16}, 2, n, n % 71 + 1);
  }
  for (const std::int64_t n : {511, 512, 513, 575, 1023, 1024, 1025, 1600}) {
    CAPTURE(n);
    check_decode_and_prompt<half, float>({.page_tokens = 1, .key_dim = 8, .value_dim = 8}, 1, n, 40);
    check_decode_and_prompt<float, float>({.page_tokens = 4096, .key_dim = 8, .value_dim = 8}, 3, n, 40);
  }
}
