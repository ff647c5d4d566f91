// refused: symbols of a dead zone have no fixed width; their entropy coder is kvx::rans

#include <kvx/codec/chain.hpp>

using unsized = kvx::chain<kvx::pca, kvx::dead_zone, kvx::fixed_width>;
static_assert(unsized{}.quantizer.rounding == 77);
