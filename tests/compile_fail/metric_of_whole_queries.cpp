// refused: the metric of dci_tree must be keys or diagonal

#include <kvx/aliases.hpp>

using layout = kvx::paged<float, kvx::page_shape{.tokens = 16}, kvx::zones{.sink = 32, .local = 32}>;
constexpr auto columns = kvx::spec<layout, kvx::dci_tree<kvx::dci_shape{.by = kvx::dci_shape::metric::full}>>::columns(layout::shape);
