// refused: constraint|does not satisfy

#include <kvx/aliases.hpp>

using not_an_index = kvx::spec<kvx::paged<float, kvx::page_shape{}>, int>;
