// refused: tiers need key sketches with centre and norms

#include <kvx/aliases.hpp>

using layout = kvx::paged<float, kvx::page_shape{.tokens = 16}, kvx::zones{.sink = 32, .local = 32}>;
using tiered = kvx::spec<layout, kvx::full_scan, kvx::rsq_ip<4, kvx::tiers{.value_bits = 4, .tail = true}>>;
constexpr auto columns = tiered::columns(layout::shape);
