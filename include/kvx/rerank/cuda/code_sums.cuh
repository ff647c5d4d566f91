#pragma once
// Inner products of whole queries with the code of one key, by one thread: bits become signed bytes, which multiply four at a time.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/rerank/rsq_ip.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// A chunk is 16 quads of coordinates, one for each lane of the float sums. Half of it is taken at once, four plane bytes: first the
/// lower eight lanes over all chunks, then the upper ones, so that half of the sums are in registers.
inline constexpr int code_chunk_dims = 64;

/// How the keys of a sketch are coded, as the kernels read it.
///
/// shift                    coordinates of a subspace: 1 << shift
/// weights                  of a key
/// last_from                from this coordinate on levels are those of a narrower last subspace; D where there is none
/// plane_unit, weight_unit  bytes: addresses of planes and of the weights of half a chunk are multiples of them
/// levels                   [0] of the key, [1] from last_from on: see whole_levels
struct code_layout {
  int dim = 0;
  int bytes = 0;
  int shift = 3;
  int weights = 0;
  int page_tokens = 0;
  int last_from = 0;
  int plane_unit = 1;
  int weight_unit = 2;
  std::uint8_t levels[2][128] = {};

  KVX_HD constexpr int chunks() const { return (dim + code_chunk_dims - 1) / code_chunk_dims; }
};

template <int Bits>
code_layout code_layout_of(const key_sketch& sketch, int dim, int page_tokens, const whole_levels& levels) {
  const auto divides = [](int n, int most) {
    while (n % most != 0) most /= 2;
    return most;
  };
  code_layout f;
  f.dim = dim;
  f.bytes = plane_bytes(dim);
  f.shift = sketch.subspace == 4 ? 2 : sketch.subspace == 8 ? 3 : 4;
  f.weights = weights_per_key(sketch, dim);
  f.page_tokens = page_tokens;
  f.last_from = levels.last_from;
  f.plane_unit = divides(f.bytes, 4);
  f.weight_unit = divides(2 * f.weights, 64 >> f.shift);
  for (std::size_t i = 0; i < 128; ++i) {
    f.levels[0][i] = levels.all[i];
    f.levels[1][i] = levels.last[i];
  }
  return f;
}

/// Bits of four planes of eight coordinates, brought together: nibble j of the result is what the planes hold of coordinate j.
///
/// what        three exchanges of bits of the index (plane, coordinate), of which bit n of a nibble comes from byte 0, 2, 1, 3
KVX_HD constexpr std::uint32_t nibbles_of(std::uint32_t planes) {
  std::uint32_t t = (planes ^ planes >> 12) & 0x0000f0f0u;
  planes ^= t ^ t << 12;
  t = (planes ^ planes >> 6) & 0x00cc00ccu;
  planes ^= t ^ t << 6;
  t = (planes ^ planes >> 3) & 0x0a0a0a0au;
  return planes ^ t ^ t << 3;
}
static_assert([] {
  for (int j = 0; j < 8; ++j) {
    for (int n = 0; n < 4; ++n) {
      constexpr int byte_of[4] = {0, 2, 1, 3};
      if (nibbles_of(1u << (8 * byte_of[n] + j)) != 1u << (4 * j + n)) return false;
    }
  }
  return true;
}());

/// Bytes [0, n) of 4 Words bytes at p, zeros behind them; p is a multiple of `unit`.
template <int Words>
__device__ __forceinline__ void load_words(const std::uint8_t* p, int n, int unit, std::uint32_t (&words)[Words]) {
  if (n == 4 * Words && unit >= 16 && Words % 4 == 0) {
#pragma unroll
    for (int w = 0; w + 3 < Words; w += 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(p + 4 * w);
      words[w] = v.x, words[w + 1] = v.y, words[w + 2] = v.z, words[w + 3] = v.w;
    }
  } else if (n == 4 * Words && unit >= 8 && Words % 2 == 0) {
#pragma unroll
    for (int w = 0; w + 1 < Words; w += 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(p + 4 * w);
      words[w] = v.x, words[w + 1] = v.y;
    }
  } else if (n == 4 * Words && unit >= 4) {
#pragma unroll
    for (int w = 0; w < Words; ++w) words[w] = *reinterpret_cast<const std::uint32_t*>(p + 4 * w);
  } else {
#pragma unroll
    for (int w = 0; w < Words; ++w) {
      words[w] = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        if (4 * w + b < n) words[w] |= static_cast<std::uint32_t>(p[4 * w + b]) << 8 * b;
      }
    }
  }
}

/// Signs and magnitude planes of half a chunk of one key.
template <int Bits>
struct code_bits {
  std::uint32_t signs;
  std::uint32_t planes[Bits - 1];

  /// first       plane byte
  __device__ __forceinline__ code_bits(const code_layout& f, const std::uint8_t* sign_bytes, const std::uint8_t* magnitudes, int first) {
    const int n = f.bytes - first < 4 ? f.bytes - first : 4;
    signs = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < n) signs |= static_cast<std::uint32_t>(sign_bytes[std::int64_t{first + i} * f.page_tokens]) << 8 * i;
    }
#pragma unroll
    for (int p = 0; p < Bits - 1; ++p) {
      std::uint32_t word[1];
      load_words(magnitudes + p * f.bytes + first, n, f.plane_unit, word);
      planes[p] = word[0];
    }
  }

  /// Byte i of four planes, in the order of nibbles_of; plane Bits - 1 is the signs.
  template <int First>
  __device__ __forceinline__ std::uint32_t nibbles(int i) const {
    const auto plane = [&](int p) { return p < Bits - 1 ? planes[p] : p == Bits - 1 ? signs : 0u; };
    const unsigned pair = static_cast<unsigned>(i | (4 + i) << 4);
    const std::uint32_t a = __byte_perm(plane(First), plane(First + 2), pair), b = __byte_perm(plane(First + 1), plane(First + 3), pair);
    return nibbles_of(__byte_perm(a, b, 0x5410));
  }
};

/// Signed levels of codes of up to 4 bits: looked up in registers, eight at most.
template <int Bits>
struct signed_levels {
  std::uint32_t low[2], high[2];

  __device__ __forceinline__ signed_levels(const code_layout& f, const std::int8_t*) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      low[b] = high[b] = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        low[b] |= static_cast<std::uint32_t>(f.levels[b][i]) << 8 * i;
        high[b] |= static_cast<std::uint32_t>(f.levels[b][4 + i]) << 8 * i;
      }
    }
  }
  /// The levels of four coordinates as signed bytes.   nibbles: the low 16 bits, sign bits at `sign`
  __device__ __forceinline__ int of(std::uint32_t nibbles, std::uint32_t sign, int book) const {
    const std::uint32_t level = __byte_perm(book == 0 ? low[0] : low[1], book == 0 ? high[0] : high[1], nibbles & 0x7777u);
    const std::uint32_t negative = __byte_perm(0xffu, 0u, sign & 0x1111u);
    const std::uint32_t t = level ^ negative;  // and one more to each negative byte, without a carry into the next
    return static_cast<int>(((t & 0x7f7f7f7fu) + (negative & 0x01010101u)) ^ (t & 0x80808080u));
  }
  /// The two quads of byte i of a chunk.
  __device__ __forceinline__ void quads(const code_bits<Bits>& bits, int i, int first_book, int second_book, int& a, int& b) const {
    const std::uint32_t x = bits.template nibbles<0>(i);
    const std::uint32_t cells = Bits == 4 ? x : x & 0x11111111u, signs = Bits == 4 ? x >> 3 : x >> 1;
    a = of(cells, signs, first_book);
    b = of(cells >> 16, signs >> 16, second_book);
  }
};

/// Signed levels of codes of 8 bits: looked up in shared memory, (2, 256), the sign being bit 7 of the place.
template <>
struct signed_levels<8> {
  const std::int8_t* table;

  __device__ __forceinline__ signed_levels(const code_layout&, const std::int8_t* filled) : table(filled) {}

  __device__ __forceinline__ int of(std::uint32_t low, std::uint32_t high, int book) const {
    std::uint32_t quad = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t place = (low >> 4 * j & 15u) | (high >> 4 * j & 15u) << 4;
      quad |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(table[book * 256 + static_cast<int>(place)])) << 8 * j;
    }
    return static_cast<int>(quad);
  }
  __device__ __forceinline__ void quads(const code_bits<8>& bits, int i, int first_book, int second_book, int& a, int& b) const {
    const std::uint32_t low = bits.template nibbles<0>(i), high = bits.template nibbles<4>(i);
    a = of(low, high, first_book);
    b = of(low >> 16, high >> 16, second_book);
  }
};

/// Entries of the table of signed_levels<8> that the threads of a block fill, all of them together.
__device__ __forceinline__ void fill_signed_levels(const code_layout& f, int thread, int threads, std::int8_t* table) {
  for (int i = thread; i < 512; i += threads) {
    const int level = f.levels[i / 256][i % 128];
    table[i] = static_cast<std::int8_t>(i % 256 < 128 ? -level : level);
  }
}

/// A whole number below 2^22 as a float, without a conversion: the bits of 1.5 2^23 take it in.
inline constexpr int float_bias_bits = 0x4b400000;
__device__ __forceinline__ float float_of_biased(int x) { return __int_as_float(x) - 12582912.0f; }

/// The eight weights of the quads of half a chunk; `first` is its first quad of the key.
__device__ __forceinline__ void quad_weights(const code_layout& f, const half* weights, int first, float (&quads)[8]) {
  const int begin = first * 4 >> f.shift, left = 2 * (f.weights - begin);
  const auto* const p = reinterpret_cast<const std::uint8_t*>(weights + begin);
  const auto take = [](std::uint32_t word, int i) { return to_float(half{static_cast<std::uint16_t>(word >> 16 * i)}); };
  if (f.shift == 2) {
    std::uint32_t w[4];
    load_words(p, left < 16 ? left : 16, f.weight_unit, w);
#pragma unroll
    for (int k = 0; k < 8; ++k) quads[k] = take(w[k / 2], k % 2);
  } else if (f.shift == 3) {
    std::uint32_t w[2];
    load_words(p, left < 8 ? left : 8, f.weight_unit, w);
#pragma unroll
    for (int k = 0; k < 8; ++k) quads[k] = take(w[k / 4], k / 2 % 2);
  } else {
    std::uint32_t w[1];
    load_words(p, left < 4 ? left : 4, f.weight_unit, w);
#pragma unroll
    for (int k = 0; k < 8; ++k) quads[k] = take(w[0], k / 4);
  }
}

/// Sums over the code of one key for `Heads` queries: see code_lanes_wide of the host for the order.
///
/// shapes      sign_bytes, magnitudes, weights: of the key; queries (chunks, Heads, 64) whole components in shared memory, at a
///             multiple of 16 bytes, 0 beyond D; sums (Heads)
/// exactness   the bits of the host
template <int Bits, int Heads, bool OneWeight>
__device__ __forceinline__ void code_sums(const code_layout& f, const signed_levels<Bits>& levels, const std::uint8_t* sign_bytes,
                                          const std::uint8_t* magnitudes, const half* weights, const std::int8_t* queries,
                                          float (&sums)[Heads]) {
  int whole[Heads] = {};
  float lower[Heads] = {}, crossed[Heads] = {};  // the first half's part in (g0 + g2) + (g1 + g3): g0 and g1
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    float lane[Heads][OneWeight ? 1 : 8] = {};
    for (int d = 32 * side; d < f.dim; d += code_chunk_dims) {
      const code_bits<Bits> bits(f, sign_bytes, magnitudes, d / 8);
      float weight[8];
      if constexpr (!OneWeight) quad_weights(f, weights, d / 4, weight);
      const std::int8_t* const q = queries + d / code_chunk_dims * (Heads * code_chunk_dims) + 32 * side;
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {  // of plane bytes: four quads
        int v[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = d + 16 * pair + 8 * i;
          levels.quads(bits, 2 * pair + i, at >= f.last_from ? 1 : 0, at + 4 >= f.last_from ? 1 : 0, v[2 * i], v[2 * i + 1]);
        }
#pragma unroll
        for (int h = 0; h < Heads; ++h) {
          const int4 four = *reinterpret_cast<const int4*>(q + h * code_chunk_dims + 16 * pair);
          const int components[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if constexpr (OneWeight) {
              whole[h] = __dp4a(v[k], components[k], whole[h]);
            } else {
              float& to = lane[h][4 * pair + k];
              to = fmaf(float_of_biased(__dp4a(v[k], components[k], float_bias_bits)), weight[4 * pair + k], to);
            }
          }
        }
      }
    }
    if constexpr (!OneWeight) {
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        const float even = (lane[h][0] + lane[h][2]) + (lane[h][1] + lane[h][3]),
                    odd = (lane[h][4] + lane[h][6]) + (lane[h][5] + lane[h][7]);
        lower[h] = side == 0 ? even : lower[h] + even;
        crossed[h] = side == 0 ? odd : crossed[h] + odd;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < Heads; ++h) sums[h] = OneWeight ? static_cast<float>(whole[h]) * to_float(*weights) : lower[h] + crossed[h];
}

}  // namespace kvx
