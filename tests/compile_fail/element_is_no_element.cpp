// refused: constraint|does not satisfy

#include <kvx/aliases.hpp>

using elements_of_int = kvx::full<int, 64>;
