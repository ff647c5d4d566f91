// refused: page_shape: tokens a power of two up to 65536, key_dim and value_dim 1\.\.576

#include <kvx/layout/paged.hpp>

using layout = kvx::paged<kvx::bf16, kvx::page_shape{.tokens = 64, .key_dim = 577, .value_dim = 64}>;
static_assert(sizeof(layout) > 0);
