#pragma once
// A strided view of an array of N dimensions that somebody else owns.

#include <kvx/core/annotate.hpp>
#include <kvx/core/check.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace kvx {

/// Pointer, extents, strides. Trivially copyable; strides count elements; the innermost dimension need not be dense.
template <class T, int N>
struct tensor_view {
  T* data = nullptr;
  std::int64_t extents[N] = {};
  std::int64_t strides[N] = {};

  tensor_view() = default;

  /// A dense, row-major array.
  template <class... Extent>
    requires(sizeof...(Extent) == N)
  KVX_HD constexpr explicit tensor_view(T* first, Extent... extent) : data(first), extents{static_cast<std::int64_t>(extent)...} {
    std::int64_t stride = 1;
    for (int d = N; d-- > 0;) {
      strides[d] = stride;
      stride *= extents[d];
    }
  }

  /// A view of T is a view of const T. A template, since nvcc warns of a plain conversion from const T to itself.
  template <class U>
    requires(std::is_same_v<U, const T> && !std::is_same_v<U, T>)
  KVX_HD constexpr operator tensor_view<U, N>() const {
    tensor_view<U, N> view;
    view.data = data;
    for (int d = 0; d < N; ++d) {
      view.extents[d] = extents[d];
      view.strides[d] = strides[d];
    }
    return view;
  }

  /// Address of one element; indices are not checked, and beyond the extents undefined.
  template <class... Index>
    requires(sizeof...(Index) == N)
  KVX_HD constexpr T* at(Index... index) const {
    const std::int64_t i[N] = {static_cast<std::int64_t>(index)...};
    T* p = data;
    for (int d = 0; d < N; ++d) p += i[d] * strides[d];
    return p;
  }
};

/// The same array, to be read.
template <class T, int N>
KVX_HD constexpr tensor_view<const T, N> read_only(tensor_view<T, N> view) {
  if constexpr (std::is_const_v<T>) {
    return view;
  } else {
    return tensor_view<const T, N>(view);
  }
}

/// Throws a usage_error unless the view has these extents, and a pointer if it has any element.
template <class T, int N>
void require_shape(const char* name, const tensor_view<T, N>& view, const std::int64_t (&extents)[N], call_site where) {
  bool empty = false;
  for (int d = 0; d < N; ++d) {
    if (view.extents[d] != extents[d]) {
      require_range(joined({"extent ", std::to_string(d), " of ", name}).c_str(), view.extents[d], extents[d], extents[d], where);
    }
    empty = empty || extents[d] == 0;
  }
  if (!empty && view.data == nullptr) throw usage_error(joined({name, " is null"}), where);
}

static_assert([] {
  int x[12] = {};
  const tensor_view<int, 3> view(x, 2, 3, 2);
  return view.at(1, 2, 1) == x + 11 && view.strides[0] == 6 && tensor_view<const int, 3>(view).at(0, 1, 0) == x + 2;
}());

}  // namespace kvx
