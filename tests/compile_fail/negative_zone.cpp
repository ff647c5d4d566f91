// refused: zones: sink and local are counts of tokens

#include <kvx/layout/contiguous.hpp>

using layout = kvx::contiguous<float, kvx::page_shape{}, kvx::zones{.sink = -1, .local = 0}>;
static_assert(sizeof(layout) > 0);
