// refused: fullest_pages keeps pages in the order of time

#include <kvx/aliases.hpp>

using layout = kvx::paged<float, kvx::page_shape{.tokens = 16}, kvx::zones{.sink = 32, .local = 32}>;
constexpr auto columns = kvx::spec<layout, kvx::dci_tree<>, kvx::fullest_pages>::columns(layout::shape);
