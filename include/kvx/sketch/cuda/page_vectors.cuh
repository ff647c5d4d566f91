#pragma once
// Vectors of one page brought into shared memory, centred, rotated and coded, tile after tile: what encoders of keys and values share.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/codebook.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/transform/cuda/srht.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// The codebooks of a sketch: [0] of whole subspaces or of the whole key, [1] of a narrower last subspace.
template <int MagnitudeBits>
struct code_books {
  static constexpr int cells = 1 << MagnitudeBits;
  float levels[2][cells] = {};
  float squared_thresholds[2][cells] = {};
};

template <int MagnitudeBits>
code_books<MagnitudeBits> code_books_of(const key_sketch& sketch, int dim) {
  code_books<MagnitudeBits> books;
  if constexpr (MagnitudeBits > 0) {
    const int widths[2] = {codebook_width(sketch, dim, 0), codebook_width(sketch, dim, dim - 1)};
    for (int b = 0; b < 2; ++b) {
      const auto& book = codebook_for<MagnitudeBits>(widths[b]);
      for (std::size_t i = 0; i < book.levels.size(); ++i) books.levels[b][i] = book.levels[i];
      for (std::size_t i = 0; i < book.squared_thresholds.size(); ++i) books.squared_thresholds[b][i] = book.squared_thresholds[i];
    }
  }
  return books;
}

/// Keys that a block rotates before it codes them.
inline constexpr int encode_threads = 256, encode_tile = 16;

/// Where component d of a rotated key lies: subspaces of eight begin in different banks.
KVX_HD constexpr int encode_place(int d) { return d + (d >> 3); }
static_assert(encode_place(13 + 32 * 5) == encode_place(13) + 36 * 5);

/// The shared memory of a block.
template <class E, int MagnitudeBits>
struct encode_shared {
  code_books<MagnitudeBits>* books;
  sign_words* signs;
  float* centre;        // (D)
  float* balance;       // (D)
  float* rotated;       // (tile, pitch)
  float* squares;       // (tile, B) squared radii
  float* norms;         // (tile) squared norms
  std::uint32_t* kept;  // (P / 32) bits of keys without NaN and infinity
  E* stage;             // (P, stage_pitch), where staged
  int pitch, stage_pitch;

  KVX_HD encode_shared(scratch_parts& s, const key_sketch& sketch, int dim, int page_tokens, bool staged) {
    pitch = encode_place(dim) + 1;
    constexpr int unit = 16 / static_cast<int>(sizeof(E));
    stage_pitch = (dim + unit - 1) / unit * unit;
    books = s.take<code_books<MagnitudeBits>>(1);
    signs = s.take<sign_words>(1);
    centre = s.take<float>(dim);
    balance = s.take<float>(dim);
    rotated = s.take<float>(std::int64_t{encode_tile} * pitch);
    squares = s.take<float>(std::int64_t{encode_tile} * subspaces(sketch, dim));
    norms = s.take<float>(encode_tile);
    kept = s.take<std::uint32_t>((page_tokens + 31) / 32);
    stage = s.take<E>(staged ? std::int64_t{page_tokens} * stage_pitch : 0);
  }
};

/// The rows of one page and head, wherever they lie.
///
/// listed      (rows) where each of them lies; null: `stride` elements apart
template <class E>
struct encode_rows {
  const E* first;
  std::int64_t stride;
  const E* const* listed = nullptr;
  __device__ const E* operator()(int t) const { return listed != nullptr ? listed[t] : first + t * stride; }
};

/// Copies rows into shared memory, 16 bytes at a time where they lie so.
template <int Threads, class E>
__device__ __forceinline__ void stage_rows(const encode_rows<E>& rows, int page_tokens, int dim, bool wide, E* stage, int pitch) {
  constexpr int unit = 16 / static_cast<int>(sizeof(E));
  const int vectors = wide ? dim / unit : 0, tid = static_cast<int>(threadIdx.x);
  for (int i = tid; i < page_tokens * vectors; i += Threads) {
    const int t = i / vectors, j = i % vectors * unit;
    *reinterpret_cast<uint4*>(stage + t * pitch + j) = *reinterpret_cast<const uint4*>(rows(t) + j);
  }
  const int first = vectors * unit, rest = dim - first;
  for (int i = tid; i < page_tokens * rest; i += Threads) {
    const int t = i / rest, d = first + i % rest;
    stage[t * pitch + d] = rows(t)[d];
  }
}

/// Which keys have neither NaN nor infinity, 32 of them a warp and word.
template <int Threads, class E>
__device__ __forceinline__ void find_finite_keys(const encode_rows<E>& rows, int page_tokens, int dim, std::uint32_t* kept) {
  for (int w = warp_of_thread(); w * 32 < page_tokens; w += Threads / warp_lanes) {
    std::uint32_t word = 0;
    for (int j = 0; j < 32 && w * 32 + j < page_tokens; ++j) {
      const E* const row = rows(w * 32 + j);
      bool finite = true;
      for (int d = lane_of_thread(); d < dim; d += warp_lanes) finite = finite && is_finite(to_float(row[d]));
      if (__all_sync(all_lanes, finite ? 1 : 0) != 0) word |= 1u << j;
    }
    if (lane_of_thread() == 0) kept[w] = word;
  }
}

/// centre = the mean of the keys without NaN and infinity, in ascending order, rounded to bf16, and 0 where that is not finite. A sum that
/// is finite has finite terms: keys are looked at one by one only where one is not. `means` gets the same.
template <int Threads, class E>
__device__ __forceinline__ void mean_key(const encode_rows<E>& rows, int page_tokens, int dim, std::uint32_t* kept, float* centre,
                                         bf16* means) {
  const int tid = static_cast<int>(threadIdx.x);
  bool finite = true;
  for (int d = tid; d < dim; d += Threads) {
    float sum = 0;
#pragma unroll 4
    for (int t = 0; t < page_tokens; ++t) sum += to_float(rows(t)[d]);
    centre[d] = sum;
    finite = finite && is_finite(sum);
  }
  int count = page_tokens;
  if (__syncthreads_or(finite ? 0 : 1) != 0) {
    find_finite_keys<Threads>(rows, page_tokens, dim, kept);
    __syncthreads();
    count = 0;
    for (int w = 0; w * 32 < page_tokens; ++w) count += __popc(kept[w]);
    for (int d = tid; d < dim; d += Threads) {
      float sum = 0;
      for (int t = 0; t < page_tokens; ++t) {
        if ((kept[t / 32] >> (t % 32) & 1u) != 0) sum += to_float(rows(t)[d]);
      }
      centre[d] = sum;
    }
  }
  for (int d = tid; d < dim; d += Threads) {
    bf16 mean = round_to<bf16>(centre[d] / static_cast<float>(count > 0 ? count : 1));
    if (!is_finite(to_float(mean))) mean = {};
    centre[d] = to_float(mean);
    means[d] = mean;
  }
}

/// Codes coordinates [first, last) of one key, a multiple of whole plane bytes and subspaces: bits, and weights where each subspace has
/// one. With one weight a key, what each coordinate adds to the sum of levels is left in its place of x.
template <int MagnitudeBits>
__device__ __forceinline__ void encode_coordinates(const key_sketch& s, int dim, int page_tokens, int slot, int first, int last, bool found,
                                                   float* x, const float* squares, float shared_radius,
                                                   const code_books<MagnitudeBits>& books, const page_code<true>& out) {
  const bool one = s.weights == key_sketch::weighting::key;
  const int shift = s.subspace == 4 ? 2 : s.subspace == 8 ? 3 : 4, bytes = (dim + 7) / 8, weights = weights_per_key(s, dim);
  std::uint8_t* const magnitudes = out.magnitudes + std::int64_t{slot} * MagnitudeBits * bytes;
  std::uint32_t signs = 0;
  std::uint64_t planes = 0;  // byte p: plane p
  float sum = 0;
  for (int d = first; d < last; ++d) {
    const float v = x[encode_place(d)];
    if (found && v >= 0) signs |= 1u << d % 8;
    if constexpr (MagnitudeBits > 0) {
      const int b = d >> shift;
      const int which = !one && (b + 1) * s.subspace > dim ? 1 : 0;
      int cell = 0;
      if (found) cell = find_cell(rounded_product(v, v), one ? shared_radius : squares[b], books.squared_thresholds[which], MagnitudeBits);
#pragma unroll
      for (int p = 0; p < MagnitudeBits; ++p) planes |= static_cast<std::uint64_t>(cell >> p & 1) << (8 * p + d % 8);
      const float product = rounded_product(books.levels[which][cell], v);
      const float level = product < 0 ? -product : product;
      if (one) {
        x[encode_place(d)] = level;
      } else {
        sum += level;
        if (d + 1 == dim || (d + 1) % s.subspace == 0) {
          out.weights[std::int64_t{slot} * weights + b] = found ? weight(squares[b], sum) : no_weight;
          sum = 0;
        }
      }
    }
    if (d % 8 == 7 || d + 1 == last) {
      out.signs[std::int64_t{d / 8} * page_tokens + slot] = static_cast<std::uint8_t>(signs);
#pragma unroll
      for (int p = 0; p < MagnitudeBits; ++p) magnitudes[p * bytes + d / 8] = static_cast<std::uint8_t>(planes >> 8 * p);
      signs = 0;
      planes = 0;
    }
  }
}

/// Codes the n keys of a tile, whose rotated coordinates lie in shared memory; slot 0 of the tile is slot `first` of the page.
template <int Threads, int MagnitudeBits, class Shared>
__device__ __forceinline__ void encode_tile_of(const key_sketch& s, int dim, int page_tokens, int first, int n, const Shared& shared,
                                               const page_code<true>& out) {
  const int B = subspaces(s, dim), tid = static_cast<int>(threadIdx.x);
  const bool one = s.weights == key_sketch::weighting::key;
  for (int i = tid; i < n * B; i += Threads) {
    const int t = i / B, b = i % B, end = (b + 1) * s.subspace < dim ? (b + 1) * s.subspace : dim;
    const float* const x = shared.rotated + t * shared.pitch;
    float square = 0;
    for (int d = b * s.subspace; d < end; ++d) square += rounded_product(x[encode_place(d)], x[encode_place(d)]);
    shared.squares[t * B + b] = square;
  }
  __syncthreads();
  if (tid < n) {
    float norm = 0;
    for (int b = 0; b < B; ++b) norm += shared.squares[tid * B + b];
    shared.norms[tid] = norm;
    if (out.norms != nullptr) out.norms[first + tid] = norm_byte(norm);
  }
  __syncthreads();
  const int unit = s.subspace > 8 ? s.subspace : 8, units = (dim + unit - 1) / unit;
  for (int i = tid; i < n * units; i += Threads) {
    const int t = i / units, d = i % units * unit;
    const float norm = shared.norms[t];
    encode_coordinates(s, dim, page_tokens, first + t, d, d + unit < dim ? d + unit : dim, norm_byte(norm) != never_found,
                       shared.rotated + t * shared.pitch, shared.squares + t * B,
                       dim > widest_codebook ? norm / static_cast<float>(dim) : norm, *shared.books, out);
  }
  if (MagnitudeBits > 0 && one) {
    __syncthreads();
    if (tid < n) {
      float sum = 0;
      for (int d = 0; d < dim; ++d) sum += shared.rotated[tid * shared.pitch + encode_place(d)];
      const float norm = shared.norms[tid];
      out.weights[first + tid] = norm_byte(norm) != never_found ? weight(norm, sum) : no_weight;
    }
  }
}

/// The vectors of one page as a kernel is told of them.
///
/// staged      a page's vectors are brought into shared memory, and so read once
/// wide        they begin on multiples of 16 bytes
template <class E, int MagnitudeBits>
struct page_vectors {
  key_sketch sketch;
  row_array<const E> rows;
  int page_tokens = 0;
  int dim = 0;
  bool staged = false;
  bool wide = false;
  code_books<MagnitudeBits> books;

  page_vectors(const key_sketch& s, const row_array<const E>& of, int tokens, int components)
      : sketch(s), rows(of), page_tokens(tokens), dim(components), books(code_books_of<MagnitudeBits>(s, components)) {
    constexpr std::int64_t most_shared = 86 * 1024;  // of the 99 KiB of every architecture, and room for what an encoder keeps beside
    const auto multiple = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(E)) % 16 == 0; };
    wide = reinterpret_cast<std::uintptr_t>(of.data) % 16 == 0 && multiple(of.page_stride) && multiple(of.head_stride) &&
           multiple(of.slot_stride);
    staged = shared_bytes(true) <= most_shared;
  }
  std::int64_t shared_bytes() const { return shared_bytes(staged); }

 private:
  std::int64_t shared_bytes(bool with_stage) const {
    scratch_parts memory;
    encode_shared<E, MagnitudeBits>(memory, sketch, dim, page_tokens, with_stage);
    return memory.used;
  }
};

/// Brings the vectors of one page to their coders, by one block.
///
/// what        tile(first, n): the rotated coordinates of n vectors from slot `first` on lie in shared.rotated; barriers before and behind
/// shapes      rows (count), at most a page; balance (dim) or null: all 1; means (dim): where their mean goes, null where the sketch has
///             no centre
template <int Threads, class E, int MagnitudeBits, class Tile>
__device__ __forceinline__ void for_each_tile(const page_vectors<E, MagnitudeBits>& of, encode_rows<E> rows, int count,
                                              const float* balance, bf16* means, const encode_shared<E, MagnitudeBits>& shared,
                                              const Tile& tile) {
  const int dim = of.dim, tid = static_cast<int>(threadIdx.x);
  fill_sign_words(of.sketch.seed, dim, *shared.signs);
  for (int i = tid; i < 2 * code_books<MagnitudeBits>::cells; i += Threads) {
    const int b = i / code_books<MagnitudeBits>::cells, cell = i % code_books<MagnitudeBits>::cells;
    shared.books->levels[b][cell] = of.books.levels[b][cell];
    shared.books->squared_thresholds[b][cell] = of.books.squared_thresholds[b][cell];
  }
  for (int d = tid; d < dim; d += Threads) {
    shared.balance[d] = balance != nullptr ? balance[d] : 1.0f;
    shared.centre[d] = 0;
  }
  if (of.staged) {
    stage_rows<Threads>(rows, count, dim, of.wide, shared.stage, shared.stage_pitch);
    rows = {shared.stage, shared.stage_pitch};
  }
  __syncthreads();
  if (of.sketch.centre) {
    mean_key<Threads>(rows, count, dim, shared.kept, shared.centre, means);
    __syncthreads();
  }
  for (int first = 0; first < count; first += encode_tile) {
    const int n = count - first < encode_tile ? count - first : encode_tile;
    for (int t = warp_of_thread(); t < n; t += Threads / warp_lanes) {
      const E* const row = rows(first + t);
      float* const x = shared.rotated + t * shared.pitch;
      const auto load = [&](int d, int i) {
        return rounded_product(shared.balance[d + 32 * i], to_float(row[d + 32 * i]) - shared.centre[d + 32 * i]);
      };
      warp_rotate(dim, *shared.signs, load, [&](int d, int i, float y) { x[encode_place(d) + 36 * i] = y; });
    }
    __syncthreads();
    tile(first, n);
    __syncthreads();
  }
}

}  // namespace kvx
