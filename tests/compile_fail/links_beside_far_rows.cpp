// refused: a tree of links compares a new block with keys of all others

#include <kvx/aliases.hpp>

using layout = kvx::paged<float, kvx::page_shape{.tokens = 16}, kvx::zones{.sink = 32, .local = 32}, kvx::placement::offload_bulk>;
using tree = kvx::dci_tree<kvx::dci_shape{.rank = kvx::dci_shape::ranking::best_member}>;
constexpr auto columns = kvx::spec<layout, tree>::columns(layout::shape);
