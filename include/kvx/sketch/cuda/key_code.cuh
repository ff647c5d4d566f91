#pragma once
// Encoding pages of keys on the device: one block a page and KV head, which writes all columns of the sketch.

#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/cuda/code_columns.cuh>
#include <kvx/sketch/cuda/page_vectors.cuh>
#include <kvx/sketch/key_code.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// A page to be encoded.
///
/// rows, columns   page ids under which its rows and its columns lie
/// balances        diagonals of the layer (H, D), in device memory; null: all 1
struct page_to_encode {
  std::int32_t rows = 0;
  std::int32_t columns = 0;
  const float* balances = nullptr;
};

/// What the kernel is told.
template <class E, int MagnitudeBits>
struct encode_arguments {
  page_vectors<E, MagnitudeBits> keys;
  code_columns columns;
  const page_to_encode* pages = nullptr;
  int heads = 0;
};

/// Encodes one page of one KV head, by one block.
template <int Threads, class E, int MagnitudeBits>
__device__ __forceinline__ void encode_page(const encode_arguments<E, MagnitudeBits>& a, const page_to_encode& page, std::int64_t head,
                                            const encode_shared<E, MagnitudeBits>& shared) {
  const page_vectors<E, MagnitudeBits>& keys = a.keys;
  const page_code<true> out = code_of<true>(a.columns, page.columns, head);
  const float* const balance = page.balances != nullptr ? page.balances + head * keys.dim : nullptr;
  const encode_rows<E> rows{keys.rows.at(page.rows, head, 0), keys.rows.slot_stride};
  for_each_tile<Threads>(keys, rows, keys.page_tokens, balance, out.means, shared, [&](int first, int n) {
    encode_tile_of<Threads, MagnitudeBits>(keys.sketch, keys.dim, keys.page_tokens, first, n, shared, out);
  });
}

template <int Threads, class E, int MagnitudeBits>
__global__ void __launch_bounds__(Threads, 2) encode_pages_kernel(encode_arguments<E, MagnitudeBits> a) {
  scratch_parts memory{dynamic_shared<std::byte>()};
  const encode_shared<E, MagnitudeBits> shared(memory, a.keys.sketch, a.keys.dim, a.keys.page_tokens, a.keys.staged);
  const std::int64_t unit = blockIdx.x;
  encode_page<Threads>(a, a.pages[unit / a.heads], unit % a.heads, shared);
}

/// encode_pages for codes of so many magnitude bits.
template <int MagnitudeBits, element E>
void encode_pages_of(const device& exec, const key_sketch& sketch, const row_view<const E>& rows, const key_columns& columns,
                     const page_to_encode* pages, std::int64_t count) {
  const encode_arguments<E, MagnitudeBits> a{
      {sketch, rows.key, rows.page_tokens, rows.key_dim}, code_columns_of(columns), pages, rows.heads};
  launch(exec,
         {.grid = dim3(static_cast<unsigned>(count * rows.heads)),
          .threads = encode_threads,
          .shared_bytes = static_cast<std::size_t>(a.keys.shared_bytes())},
         encode_pages_kernel<encode_threads, E, MagnitudeBits>, a);
}

/// Encodes pages of every KV head of one layer.
///
/// what        all columns that the sketch has, see key_code.hpp; the host's encode_keys with a balance and ids for each page
/// shapes      pages (count), in device memory; blocks of columns in device memory: see sketch_column
/// cost        one launch, a block a page and head; keys are read once where a page of them fits shared memory, else twice
/// exactness   the bits of the host
/// errors      usage_error: a sketch that is not valid or not of Bits (0: any), a dim outside 1..576. Keys with NaN, infinity or a norm
///             of 2^60 are never found, and the others are coded as if they were not there
template <int Bits = 0, element E>
void encode_pages(const device& exec, const key_sketch& sketch, const row_view<const E>& rows, const key_columns& columns,
                  const page_to_encode* pages, std::int64_t count, call_site where = call_site::here()) {
  require(is_valid(sketch), "encode_pages: subspace is 4, 8 or 16, bits are 1, 2, 4 or 8", where);
  if (Bits != 0) require_range("encode_pages: bits of the sketch", sketch.bits, Bits, Bits, where);
  require_range("encode_pages: key_dim", rows.key_dim, 1, 576, where);
  require_range("encode_pages: pages", count, 0, INT32_MAX / (rows.heads > 0 ? rows.heads : 1), where);
  const auto run = [&]<int Magnitudes>() {
    if constexpr (Bits == 0 || Bits == Magnitudes + 1) {
      if (sketch.bits == Magnitudes + 1) encode_pages_of<Magnitudes>(exec, sketch, rows, columns, pages, count);
    }
  };
  run.template operator()<0>();
  run.template operator()<1>();
  run.template operator()<3>();
  run.template operator()<7>();
}

}  // namespace kvx
