#pragma once
// Where the rows of one layer lie in memory, for every layout: page, head and slot strides of K and of V.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/layout/page_shape.hpp>

#include <cstdint>
#include <type_traits>

namespace kvx {

/// Addresses of one array of rows (K or V) of one layer.
///
/// shapes      component c of the row of (page, head, slot) is data[page * page_stride + head * head_stride + slot * slot_stride + c]
/// units       strides count elements; 64 bits: a page index times a stride leaves 32
/// errors      none; page, head and slot are not checked
template <class E>
struct row_array {
  E* data = nullptr;
  std::int64_t page_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t slot_stride = 0;

  KVX_HD constexpr E* at(std::int64_t page, std::int64_t head, std::int64_t slot) const {
    return data + page * page_stride + head * head_stride + slot * slot_stride;
  }

  template <class C>
    requires(std::is_same_v<C, const E> && !std::is_same_v<C, E>)
  KVX_HD constexpr operator row_array<C>() const {
    return {data, page_stride, head_stride, slot_stride};
  }
};

/// K and V rows of one layer; trivially copyable. `E` is const for readers.
template <class E>
struct row_view {
  row_array<E> key;
  row_array<E> value;
  int heads = 0;        ///< H
  int page_tokens = 0;  ///< P, a power of two
  int key_dim = 0;      ///< D
  int value_dim = 0;    ///< Dv

  template <class C>
    requires(std::is_same_v<C, const E> && !std::is_same_v<C, E>)
  KVX_HD constexpr operator row_view<C>() const {
    return {key, value, heads, page_tokens, key_dim, value_dim};
  }
};

/// Rows of K then V side by side, slot after slot, in pages that begin at `first`.
template <class E>
KVX_HD constexpr row_view<E> rows_at(E* first, page_shape shape, int heads, std::int64_t page_stride, std::int64_t head_stride) {
  const row_pitch pitch = pitch_of<E>(shape);
  return {{first, page_stride, head_stride, pitch.row},
          {first + pitch.value, page_stride, head_stride, pitch.row},
          heads,
          shape.tokens,
          shape.key_dim,
          shape.value_dim};
}

}  // namespace kvx
