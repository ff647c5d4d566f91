#pragma once
// Encoding pages of values on the device: one block a page and KV head. Keys whose values are not finite are forgotten.

#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/cuda/code_columns.cuh>
#include <kvx/sketch/cuda/key_code.cuh>
#include <kvx/sketch/cuda/page_vectors.cuh>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/value_code.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// The columns of values of one layer as kernels take them: those that are absent have null data. Trivially copyable.
struct coded_value_columns {
  column_array codes;
  column_array scales;
  column_array means;
};

inline coded_value_columns coded_value_columns_of(const value_columns& columns) {
  return {columns[value_codes], columns[value_scales], columns[value_means]};
}

/// The columns of page `page` of KV head `head`, to be read or written.
template <bool Writes = false>
KVX_HD inline page_values<Writes> values_of(const coded_value_columns& columns, std::int64_t page, std::int64_t head) {
  page_values<Writes> values;
  if (columns.codes.data != nullptr) values.codes = reinterpret_cast<std::uint8_t*>(columns.codes.at(page, head));
  if (columns.scales.data != nullptr) values.scales = reinterpret_cast<half*>(columns.scales.at(page, head));
  if (columns.means.data != nullptr) values.means = reinterpret_cast<bf16*>(columns.means.at(page, head));
  return values;
}

/// What the kernel is told.
template <class E, int MagnitudeBits>
struct encode_values_arguments {
  page_vectors<E, MagnitudeBits> vectors;
  coded_value_columns values;
  key_sketch key_rule;
  code_columns keys;
  int key_dim = 0;
  const page_to_encode* pages = nullptr;
  int heads = 0;
};

/// The code of a tile of values in shared memory, before its bits become fields.
template <int MagnitudeBits>
struct coded_tile {
  std::uint8_t* signs;       // (plane_bytes, tile)
  std::uint8_t* magnitudes;  // (tile, MagnitudeBits, plane_bytes)

  KVX_HD coded_tile(scratch_parts& s, int dim)
      : signs(s.take<std::uint8_t>(std::int64_t{plane_bytes(dim)} * encode_tile)),
        magnitudes(s.take<std::uint8_t>(std::int64_t{plane_bytes(dim)} * encode_tile * MagnitudeBits)) {}
};

/// Writes the fields of n values from slot `first` of a page on; by all threads of a block.
template <int Threads, int MagnitudeBits>
__device__ __forceinline__ void pack_values(const coded_tile<MagnitudeBits>& tile, int dim, int first, int n, std::uint8_t* codes) {
  constexpr int bits = MagnitudeBits + 1;
  const int plane = plane_bytes(dim), bytes = static_cast<int>(value_row_bytes(bits, dim)), units = bytes / bits;
  for (int i = static_cast<int>(threadIdx.x); i < n * units; i += Threads) {
    const int t = i / units, y = i % units;
    const std::uint32_t fields =
        y < plane ? value_fields(tile.signs[y * encode_tile + t], tile.magnitudes + t * MagnitudeBits * plane + y, plane, bits) : 0;
    std::uint8_t* const to = codes + std::int64_t{first + t} * bytes + y * bits;
#pragma unroll
    for (int j = 0; j < bits; ++j) to[j] = static_cast<std::uint8_t>(fields >> 8 * j);
  }
}

/// Codes and packs the n values of a tile, whose rotated coordinates lie in shared memory, from slot `first` of a page on.
template <int Threads, int MagnitudeBits, class E>
__device__ __forceinline__ void encode_value_tile(const page_vectors<E, MagnitudeBits>& of, const encode_shared<E, MagnitudeBits>& shared,
                                                  const coded_tile<MagnitudeBits>& bits, int first, int n, const page_values<true>& out) {
  page_code<true> code;
  code.signs = bits.signs;
  code.magnitudes = bits.magnitudes;
  code.weights = out.scales + first;
  encode_tile_of<Threads, MagnitudeBits>(of.sketch, of.dim, encode_tile, 0, n, shared, code);
  // The bits lie before the last barrier of encode_tile_of, which stands before the weights.
  pack_values<Threads>(bits, of.dim, first, n, out.codes);
}

/// Bits 0: means alone.
template <int Threads, int Bits, class E>
__global__ void __launch_bounds__(Threads, 2) encode_values_kernel(encode_values_arguments<E, (Bits > 0 ? Bits - 1 : 0)> a) {
  constexpr int magnitude_bits = Bits > 0 ? Bits - 1 : 0;
  scratch_parts memory{dynamic_shared<std::byte>()};
  const page_vectors<E, magnitude_bits>& of = a.vectors;
  const encode_shared<E, magnitude_bits> shared(memory, of.sketch, of.dim, of.page_tokens, of.staged);
  const coded_tile<magnitude_bits> bits(memory, of.dim);
  const std::int64_t head = blockIdx.x % a.heads;
  const page_to_encode page = a.pages[blockIdx.x / a.heads];
  const page_values<true> out = values_of<true>(a.values, page.columns, head);
  const page_code<true> key = code_of<true>(a.keys, page.columns, head);
  const encode_rows<E> rows{of.rows.at(page.rows, head, 0), of.rows.slot_stride};
  const int tid = static_cast<int>(threadIdx.x);
  if constexpr (Bits == 0) {
    find_finite_keys<Threads>(rows, of.page_tokens, of.dim, shared.kept);
    __syncthreads();
    for (int t = tid; t < of.page_tokens; t += Threads) {
      if ((shared.kept[t / 32] >> (t % 32) & 1u) == 0) forget_key(a.key_rule, a.key_dim, of.page_tokens, t, key);
    }
    __syncthreads();
    mean_key<Threads>(rows, of.page_tokens, of.dim, shared.kept, shared.centre, out.means);
  } else {
    for_each_tile<Threads>(of, rows, of.page_tokens, nullptr, out.means, shared, [&](int first, int n) {
      encode_value_tile<Threads>(of, shared, bits, first, n, out);
      if (tid < n && norm_byte(shared.norms[tid]) == never_found) forget_key(a.key_rule, a.key_dim, of.page_tokens, first + tid, key);
    });
  }
}

/// Encodes the values of pages of every KV head of one layer, behind their keys.
///
/// what        all columns of values; a token whose value is not finite gets the key code of one that is never found: no tier reads it
/// shapes      pages (count), in device memory; blocks of columns in device memory: see value_column, sketch_column
/// cost        one launch, a block a page and head; values are read once where a page of them fits shared memory, else twice
/// exactness   the bits of the host
/// errors      usage_error: a dim outside 1..576
template <int Bits, element E>
void encode_values(const device& exec, const key_sketch& sketch, const row_view<const E>& rows, const key_columns& keys,
                   const value_columns& values, const page_to_encode* pages, std::int64_t count, call_site where = call_site::here()) {
  static_assert(Bits == 0 || Bits == 2 || Bits == 4);
  constexpr int magnitude_bits = Bits > 0 ? Bits - 1 : 0;
  require_range("encode_values: value_dim", rows.value_dim, 1, 576, where);
  require_range("encode_values: pages", count, 0, INT32_MAX / (rows.heads > 0 ? rows.heads : 1), where);
  const encode_values_arguments<E, magnitude_bits> a{{value_sketch(Bits, sketch.seed), rows.value, rows.page_tokens, rows.value_dim},
                                                     coded_value_columns_of(values),
                                                     sketch,
                                                     code_columns_of(keys),
                                                     rows.key_dim,
                                                     pages,
                                                     rows.heads};
  scratch_parts beside;
  coded_tile<magnitude_bits>(beside, rows.value_dim);
  launch(exec,
         {.grid = dim3(static_cast<unsigned>(count * rows.heads)),
          .threads = encode_threads,
          .shared_bytes = static_cast<std::size_t>(a.vectors.shared_bytes() + beside.used)},
         encode_values_kernel<encode_threads, Bits, E>, a);
}

}  // namespace kvx
