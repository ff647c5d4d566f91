// refused: page_shape: tokens a power of two up to 65536

#include <kvx/layout/paged.hpp>

using layout = kvx::paged<kvx::bf16, kvx::page_shape{.tokens = 48, .key_dim = 64, .value_dim = 64}>;
static_assert(sizeof(layout) > 0);
