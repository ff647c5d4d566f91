// refused: a block of dci_tree must be whole pages

#include <kvx/aliases.hpp>

using layout = kvx::paged<float, kvx::page_shape{.tokens = 16}, kvx::zones{.sink = 32, .local = 32}>;
constexpr auto columns = kvx::spec<layout, kvx::dci_tree<kvx::dci_shape{.block = 200}>>::columns(layout::shape);
