#pragma once
// The order in which a codec holds coefficients and symbols: component after component, the tokens of each side by side.

#include <kvx/core/annotate.hpp>

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

  KVX_HD constexpr T* component(std::int64_t c) const { return data + c * pitch; }
  /// A matrix of T is a matrix of const T. A template, since nvcc warns of a plain conversion from const T to itself.
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_same_v<U, T>)
  KVX_HD constexpr operator component_matrix<U>() const {
    return {data, components, tokens, pitch};
  }
};

}  // namespace kvx
