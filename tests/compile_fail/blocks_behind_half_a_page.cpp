// refused: beside dci_tree, zones::sink must be whole pages

#include <kvx/aliases.hpp>

using layout = kvx::paged<float, kvx::page_shape{.tokens = 16}, kvx::zones{.sink = 4, .local = 32}>;
constexpr auto columns = kvx::spec<layout, kvx::dci_tree<>>::columns(layout::shape);
