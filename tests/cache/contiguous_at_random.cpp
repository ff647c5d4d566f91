// Contiguous caches under random operations hold what the model holds.

#include "play.hpp"

namespace {

using namespace kvx;

template <element E, int P>
using layout = contiguous<E, page_shape{.tokens = P, .key_dim = 3, .value_dim = 6}, zones{.sink = 4, .local = 6}>;

}  // namespace

// A slab is one page of 64 tokens, or seven of 4.
TEST_CASE_TEMPLATE("random operations", L, layout<float, 4>, layout<float, 64>, layout<half, 16>, layout<bf16, 1>) {
  test::play<L>(400 + L::shape.tokens);
}
