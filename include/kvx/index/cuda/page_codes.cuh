#pragma once
// The codes of the means of semantic pages on the device: behind the packing of their blocks, a block of threads each.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/index/cuda/block_to_index.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/page_codes.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/transform/cuda/srht.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Threads of a block that codes the means of one block of tokens; most dimensions of a key.
inline constexpr int mean_code_threads = 128, most_coded_dims = 576;

/// What the kernel is told.
struct mean_code_call {
  dci_shape shape;
  page_shape page;
  column_array members;
  column_array means;
  column_array codes;
  const block_to_index* blocks = nullptr;
};

template <int Threads>
__global__ void __launch_bounds__(Threads) code_means_kernel(mean_code_call call) {
  __shared__ sign_words signs;
  __shared__ double squares[most_coded_dims];
  __shared__ float centre[most_coded_dims], rotated[Threads / warp_lanes][most_coded_dims];
  __shared__ float inverse;
  const std::int64_t unit = blockIdx.x, head = unit % call.members.heads;
  const block_to_index of = call.blocks[unit / call.members.heads];
  const int dim = call.page.key_dim, P = call.page.tokens, pages = call.shape.block / P, tid = static_cast<int>(threadIdx.x);
  const auto packed = [&](std::int32_t id) { return packed_page{call.members.at(id, head), P, packed_page::entry_bytes(call.shape)}; };
  const auto mean = [&](std::int32_t id) { return reinterpret_cast<const bf16*>(call.means.at(id, head)); };
  fill_sign_words(call.shape.seed, dim, signs);
  int found = 0;  // pages of the first block that have members
  for (int j = 0; j < pages; ++j) found += packed(of.first_block[j]).count() > 0 ? 1 : 0;
  for (int d = tid; d < dim; d += Threads) {
    double sum = 0, square = 0;
    for (int j = 0; j < pages; ++j) {
      if (packed(of.first_block[j]).count() > 0) sum += static_cast<double>(to_float(mean(of.first_block[j])[d]));
    }
    const float c = found > 0 ? static_cast<float>(sum / found) : 0.0f;
    for (int j = 0; j < pages; ++j) {
      if (packed(of.first_block[j]).count() == 0) continue;
      const auto x = static_cast<double>(to_float(mean(of.first_block[j])[d]) - c);
      square += x * x;  // exact
    }
    centre[d] = c;
    squares[d] = square;
  }
  __syncthreads();
  if (tid == 0) {
    double sum = 0;
    for (int d = 0; d < dim; ++d) sum += squares[d];
    inverse = steps_of(found > 0 ? sqrt(sum / (static_cast<double>(found) * dim)) : 0);
  }
  __syncthreads();
  const page_code_lines lines{dim};
  const std::int32_t* const ids = of.pages + (of.block * pages - of.first_page);  // of the block
  float* const x = rotated[warp_of_thread()];
  for (int j = warp_of_thread(); j < pages; j += Threads / warp_lanes) {
    const bool any = packed(ids[j]).count() > 0;
    const auto load = [&](int d, int i) { return any ? to_float(mean(ids[j])[d + 32 * i]) - centre[d + 32 * i] : 0.0f; };
    warp_rotate(dim, signs, load, [&](int d, int i, float y) { x[d + 32 * i] = y; });
    __syncwarp();
    const auto code = [&](int d) { return d < dim ? static_cast<std::uint32_t>(coordinate_code(x[d], inverse)) : 8u; };
    for (int l = lane_of_thread(); l < lines.written(); l += warp_lanes) {
      std::uint32_t four = 0;
      for (int k = 0; k < 4; ++k) four |= (code(line_dims * l + k) | code(line_dims * l + 4 + k) << 4) << 8 * k;
      *reinterpret_cast<std::uint32_t*>(lines.line(call.codes, head, ids + (j - j % coded_pages), l) + 4 * (j % coded_pages)) = four;
    }
    __syncwarp();
  }
}

/// Codes the means of blocks of every KV head of one layer.
///
/// shapes      blocks (count) in device memory, with the pages of their sequences' first blocks; the columns of dci_tree: members and means
///             are there, by an earlier launch of the same stream
/// cost        one launch; reads the means of the blocks and of the first ones
/// exactness   the bytes of the host
/// errors      usage_error: a shape whose means are not coded, keys of more than most_coded_dims
inline void code_means(const device& exec, const dci_shape& shape, page_shape page, const column_array& members, const column_array& means,
                       const column_array& codes, const block_to_index* blocks, std::int64_t count, call_site where = call_site::here()) {
  require(codes_means(shape, page.tokens), "code_means: the shape has no codes of means", where);
  require_range("code_means: key_dim", page.key_dim, 1, most_coded_dims, where);
  require_range("code_means: blocks", count, 0, INT32_MAX / (members.heads > 0 ? members.heads : 1), where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(count * members.heads)), .threads = mean_code_threads},
         code_means_kernel<mean_code_threads>, mean_code_call{shape, page, members, means, codes, blocks});
}

}  // namespace kvx
