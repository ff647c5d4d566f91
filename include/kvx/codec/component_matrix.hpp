#pragma once
// The order in which a codec holds coefficients and symbols: component after component, the tokens of each side by side.

#include <cstdint>
#include <type_traits>

namespace kvx {

/// Values of a chunk: token t of component c is data[c * pitch + t]. Components share an alphabet or a range, and have the matrix product's
/// long side; so they are the rows.
template <class T>
struct component_matrix {
  T* data = nullptr;
  std::int64_t components = 0;
  std::int32_t tokens = 0;
  std::int64_t pitch = 0;

  constexpr T* component(std::int64_t c) const { return data + c * pitch; }
  constexpr operator component_matrix<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, components, tokens, pitch};
  }
};

}  // namespace kvx
