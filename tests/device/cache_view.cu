// Rows and page tables of a cache in a kernel of the user's own, while sequences grow, fork and are cut.

#include "cache_on_host.cuh"

#include <support/feed.hpp>

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using test::device_array, test::feed, test::token, test::tokens;

constexpr int D = 9, Dv = 6;

/// Every key and value of a sequence, token after token: what a user's kernel might do with a view.   to (T, H, D + Dv)
template <class E>
__global__ void collect(paged_view<E> view, std::int64_t sequence, float* to) {
  const std::int64_t token = blockIdx.x / view.rows.heads, head = blockIdx.x % view.rows.heads;
  if (token >= view.length(sequence)) return;
  for (int c = static_cast<int>(threadIdx.x); c < D + Dv; c += 32)
    to[blockIdx.x * (D + Dv) + c] = to_float(c < D ? view.key(sequence, head, token)[c] : view.value(sequence, head, token)[c - D]);
}

template <class Layout>
void collects(std::int64_t n) {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::cache_on_host<spec<Layout>> c(exec, {}, {.layers = 2, .kv_heads = 2, .query_heads = 2, .max_tokens = 300, .max_sequences = 3});
  const sequence a = c.open(exec);
  feed(c, exec, a, tokens(1, n));
  const sequence b = c.fork(exec, a, n - 2);
  feed(c, exec, b, tokens(5000, 4));
  c.truncate(exec, a, n - 1);
  std::vector<token> expected[2] = {tokens(1, n - 1), tokens(1, n - 2)};
  for (const token t : tokens(5000, 4)) expected[1].push_back(t);
  const std::vector<sequence> both = {a, b};
  for (int layer = 0; layer < 2; ++layer) {
    const device_page_csr table(exec, c.on_device().pages(layer, both));
    for (std::int64_t s = 0; s < 2; ++s) {
      const auto& ids = expected[s];
      device_array<float> found(ids.size() * 2 * (D + Dv));
      const auto view = table.view(c.on_device().view(layer));
      launch(exec, {dim3(static_cast<unsigned>(ids.size() * 2 + 6)), 32}, collect<typename Layout::element_type>, view, s, found.data());
      stream.wait();
      std::vector<float> right;
      for (const token id : ids) {
        for (int h = 0; h < 2; ++h) {
          for (int i = 0; i < D + Dv; ++i) {
            const float x =
                i < D ? test::component(id, test::part::key, layer, h, i) : test::component(id, test::part::value, layer, h, i - D);
            right.push_back(to_float(round_to<typename Layout::element_type>(x)));
          }
        }
      }
      CHECK(found.read() == right);
    }
  }
}

}  // namespace

TEST_CASE("a kernel of one's own finds every row through a view and a table on the device") {
  for (const std::int64_t n : {3, 16, 17, 50}) {
    CAPTURE(n);
    collects<paged<float, page_shape{.tokens = 16, .key_dim = D, .value_dim = Dv}>>(n);
    collects<contiguous<bf16, page_shape{.tokens = 4, .key_dim = D, .value_dim = Dv}>>(n);
  }
}
