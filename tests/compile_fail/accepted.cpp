// accepted

#include <kvx/aliases.hpp>
#include <kvx/core/tensor_view.hpp>

using layout = kvx::paged<kvx::bf16, kvx::page_shape{.tokens = 64, .key_dim = 576, .value_dim = 1}, kvx::zones{.sink = 4, .local = 256}>;
static_assert(sizeof(kvx::spec<layout, kvx::full_scan>) > 0 && sizeof(layout) > 0);
static_assert(sizeof(kvx::full<kvx::half, 64>) > 0);

kvx::tensor_view<const float, 2> reader_of(kvx::tensor_view<float, 2> view) { return view; }
