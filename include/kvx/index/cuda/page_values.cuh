#pragma once
// The values of semantic pages on the device: their codes and the mean of each page, a block of threads a page and KV head.

#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/dci_tree.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/cuda/code_columns.cuh>
#include <kvx/sketch/cuda/page_vectors.cuh>
#include <kvx/sketch/cuda/value_code.cuh>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/value_code.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What the kernel is told.
template <class E, int MagnitudeBits>
struct encode_page_values_arguments {
  page_vectors<E, MagnitudeBits> vectors;
  coded_value_columns values;
  key_sketch key_rule;
  code_columns keys;
  int key_dim = 0;
  dci_shape shape;
  column_array members;
  std::int64_t sink = 0;
  const block_to_index* blocks = nullptr;
  int heads = 0;
};

/// Bits 0: means alone.
template <int Threads, int Bits, class E>
__global__ void __launch_bounds__(Threads, 2) encode_page_values_kernel(encode_page_values_arguments<E, (Bits > 0 ? Bits - 1 : 0)> a) {
  constexpr int magnitude_bits = Bits > 0 ? Bits - 1 : 0;
  scratch_parts memory{dynamic_shared<std::byte>()};
  const page_vectors<E, magnitude_bits>& of = a.vectors;
  const encode_shared<E, magnitude_bits> shared(memory, of.sketch, of.dim, of.page_tokens, of.staged);
  const coded_tile<magnitude_bits> bits(memory, of.dim);
  const E** const members = memory.take<const E*>(of.page_tokens);
  const int P = of.page_tokens, tid = static_cast<int>(threadIdx.x), pages_of_block = a.shape.block / P;
  const std::int64_t head = blockIdx.x % a.heads, page = blockIdx.x / a.heads % pages_of_block;  // of the block of tokens
  const block_to_index block = a.blocks[blockIdx.x / a.heads / pages_of_block];
  const std::int32_t* const pages = block.pages + (block.block * pages_of_block - block.first_page);
  const std::int32_t* const frames = block.frames != nullptr ? block.frames + (pages - block.pages) : pages;
  const packed_page packed{a.members.at(pages[page], head), P, packed_page::entry_bytes(a.shape)};
  const page_values<true> out = values_of<true>(a.values, pages[page], head);
  const int count = packed.count();
  for (int i = tid; i < count; i += Threads) members[i] = of.rows.at(frames[packed.member(i) / P], head, packed.member(i) % P);
  __syncthreads();
  const encode_rows<E> rows{nullptr, 0, members};
  if constexpr (Bits == 0) {
    mean_key<Threads>(rows, count, of.dim, shared.kept, shared.centre, out.means);
  } else {
    for_each_tile<Threads>(of, rows, count, nullptr, out.means, shared,
                           [&](int first, int n) { encode_value_tile<Threads>(of, shared, bits, first, n, out); });
  }
  if (block.block * a.shape.block + page * P < a.sink) return;
  for (int i = count + tid; i < P; i += Threads) {  // no member that is found
    const int token = packed.member(i);
    forget_key(a.key_rule, a.key_dim, P, token % P, code_of<true>(a.keys, pages[token / P], head));
    if constexpr (Bits > 0) {
      const std::int64_t row_bytes = value_row_bytes(Bits, of.dim);
      for (std::int64_t b = 0; b < row_bytes; ++b) out.codes[i * row_bytes + b] = 0;
      out.scales[i] = no_weight;
    }
  }
}

/// Fills the columns of the values of blocks of every KV head of one layer, behind index_blocks and the codes of their keys.
///
/// what        encode_page_values of the host, for all semantic pages of these blocks
/// shapes      blocks (count), in device memory; members: a column of dci_tree; see value_column, sketch_column
/// cost        one launch, a block of threads a page and head; values are read once where a page of them fits shared memory, else twice
/// exactness   the bits of the host
/// errors      usage_error: a dim outside 1..576
template <int Bits, element E>
void encode_page_values(const device& exec, const dci_shape& shape, const key_sketch& sketch, const row_view<const E>& rows,
                        const column_array& members, const key_columns& keys, const value_columns& values, std::int64_t sink,
                        const block_to_index* blocks, std::int64_t count, call_site where = call_site::here()) {
  static_assert(Bits == 0 || Bits == 2 || Bits == 4);
  constexpr int magnitude_bits = Bits > 0 ? Bits - 1 : 0;
  require_range("encode_page_values: value_dim", rows.value_dim, 1, 576, where);
  const std::int64_t units = shape.block / rows.page_tokens * (rows.heads > 0 ? rows.heads : 1);
  require_range("encode_page_values: blocks", count, 0, INT32_MAX / units, where);
  const encode_page_values_arguments<E, magnitude_bits> a{{value_sketch(Bits, sketch.seed), rows.value, rows.page_tokens, rows.value_dim},
                                                          coded_value_columns_of(values),
                                                          sketch,
                                                          code_columns_of(keys),
                                                          rows.key_dim,
                                                          shape,
                                                          members,
                                                          sink,
                                                          blocks,
                                                          rows.heads};
  scratch_parts beside;
  coded_tile<magnitude_bits>(beside, rows.value_dim);
  beside.take<const E*>(rows.page_tokens);
  launch(exec,
         {.grid = dim3(static_cast<unsigned>(count * units)),
          .threads = encode_threads,
          .shared_bytes = static_cast<std::size_t>(a.vectors.shared_bytes() + beside.used)},
         encode_page_values_kernel<encode_threads, Bits, E>, a);
}

}  // namespace kvx
