// Contiguous caches under random operations hold what the model holds, in every page size and element.

#include "play.hpp"

namespace {

using namespace kvx;

template <element E, int P>
using layout = contiguous<E, page_shape{.tokens = P, .key_dim = 3, .value_dim = 6}, zones{.sink = 4, .local = 6}>;

}  // namespace

// A slab is one page of 64 tokens, or seven of 4.
TEST_CASE_TEMPLATE("random operations, float", L, layout<float, 1>, layout<float, 4>, layout<float, 16>, layout<float, 64>) {
  test::play<L>(400 + L::shape.tokens);
}

TEST_CASE_TEMPLATE("random operations, half", L, layout<half, 1>, layout<half, 4>, layout<half, 16>, layout<half, 64>) {
  test::play<L>(500 + L::shape.tokens);
}

TEST_CASE_TEMPLATE("random operations, bf16", L, layout<bf16, 1>, layout<bf16, 4>, layout<bf16, 16>, layout<bf16, 64>) {
  test::play<L>(600 + L::shape.tokens);
}
