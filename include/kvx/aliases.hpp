#pragma once
// The compositions that people ask for by name.

#include <kvx/layout/paged.hpp>
#include <kvx/spec.hpp>

namespace kvx {

/// Every row kept, every row attended to: what the other compositions are measured against.
template <element E, int KeyDim, int ValueDim = KeyDim>
using full = spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}>>;

}  // namespace kvx
