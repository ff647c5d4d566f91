#pragma once
// Encoding pages of keys on the host.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/codebook.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// A codebook with what vector loads may touch beyond it.
struct padded_codebook {
  std::array<float, 128> levels{};
  std::array<float, 128> squared_thresholds{};

  simd::encode_book view() const { return {levels.data(), squared_thresholds.data()}; }
};

/// Everything that encoding the keys of one sketch and dim needs beside the keys: computed once, shared by all pages, heads and layers.
template <element E>
struct key_encoder {
  key_sketch sketch;
  int dim = 0;
  const simd::encode_table* kernels = nullptr;
  simd::encode_function<E> encode = nullptr;
  padded_codebook book;       ///< of whole subspaces, or of the whole key
  padded_codebook last_book;  ///< of a narrower last subspace
  alignas(64) std::array<float, simd::encode_pitch> flips{};     ///< random signs, in lane order
  alignas(64) std::array<float, simd::encode_pitch> balanced{};  ///< ones, in lane order
};

template <int MagnitudeBits>
padded_codebook pad_codebook(int width) {
  padded_codebook padded;
  std::ranges::copy(codebook_for<MagnitudeBits>(width).levels, padded.levels.begin());
  std::ranges::copy(codebook_for<MagnitudeBits>(width).squared_thresholds, padded.squared_thresholds.begin());
  return padded;
}

/// The encoder of a sketch.
///
/// Bits        the bits of the sketch where they are known at compile time; 0: any, which makes the compiler compute the codebooks of
///             128 levels too (two seconds)
/// kernels     of an instruction set that this machine has
/// errors      usage_error: a sketch that is not valid or not of Bits, a dim outside 1..576
template <element E, int Bits = 0>
key_encoder<E> make_key_encoder(const key_sketch& sketch, int dim, const simd::encode_table& kernels = simd::encode_kernels(),
                                call_site where = call_site::here()) {
  require(is_valid(sketch), "key_sketch: subspace is 4, 8 or 16, bits are 1, 2, 4 or 8", where);
  if (Bits != 0) require_range("key_sketch::bits", sketch.bits, Bits, Bits, where);
  require_range("dim", dim, 1, simd::longest_key, where);
  key_encoder<E> encoder;
  encoder.sketch = sketch;
  encoder.dim = dim;
  encoder.kernels = &kernels;
  for (int d = 0; d < dim; ++d) {
    const auto at = static_cast<std::size_t>(simd::lane_position<E>(d, kernels.lanes));
    encoder.flips[at] = flip(0, sign_of(sketch.seed, static_cast<std::size_t>(d)));
    encoder.balanced[at] = 1;
  }
  const int width = codebook_width(sketch, dim, 0);
  const int last = codebook_width(sketch, dim, dim - 1);
  const auto take = [&]<int Magnitudes>() {
    if constexpr (Bits == 0 || Bits == Magnitudes + 1) {
      if (sketch.bits == Magnitudes + 1) {
        encoder.encode = kernels.encode<E, Magnitudes>();
        if constexpr (Magnitudes > 0) {
          encoder.book = pad_codebook<Magnitudes>(width);
          encoder.last_book = pad_codebook<Magnitudes>(last);
        }
      }
    }
  };
  take.template operator()<0>();
  take.template operator()<1>();
  take.template operator()<3>();
  take.template operator()<7>();
  return encoder;
}

/// The mean of the keys without NaN and infinity, summed in ascending order in float, rounded to bf16; 0 where that is not finite, and
/// where there is no such key.
///
/// what        a sum that is finite has finite terms, so keys are looked at one by one only where one is not
/// shapes      rows (tokens, stride); mean (encode_pitch) in lane order; stored (dim)
template <element E>
void mean_key(const simd::encode_table& kernels, const E* rows, std::int64_t stride, int tokens, int dim, float* mean, bf16* stored) {
  const auto& of = kernels.template means<E>();
  const auto finite = [&](const float* x) { return simd::kernels().all_finite(x, round_up(dim, simd::padding)); };
  std::fill_n(mean, simd::encode_pitch, 0.0f);
  of.sum(rows, stride, tokens, dim, mean);
  int count = tokens;
  if (!finite(mean)) {
    std::fill_n(mean, simd::encode_pitch, 0.0f);
    count = 0;
    for (int t = 0; t < tokens; ++t) {
      alignas(64) std::array<float, simd::encode_pitch> key{};
      of.sum(rows + t * stride, stride, 1, dim, key.data());
      if (!finite(key.data())) continue;
      for (std::size_t d = 0; d < key.size(); ++d) mean[d] += key[d];
      ++count;
    }
  }
  of.mean(mean, dim, static_cast<float>(std::max(count, 1)), stored);
}

/// What an encoder asks of the kernels, but for where the codes go.   centre, balance (encode_pitch) in lane order
template <element E>
simd::encode_task key_task(const key_encoder<E>& encoder, const float* centre, const float* balance) {
  const key_sketch& s = encoder.sketch;
  simd::encode_task task;
  task.dim = encoder.dim;
  task.subspace = s.subspace;
  task.magnitude_bits = s.bits - 1;
  task.one_weight = s.weights == key_sketch::weighting::key;
  task.divisor = task.one_weight && encoder.dim > widest_codebook ? static_cast<float>(encoder.dim) : 1.0f;
  task.centre = centre;
  task.balance = balance;
  task.flips = encoder.flips.data();
  task.book = encoder.book.view();
  task.last_book = encoder.last_book.view();
  return task;
}

/// Encodes all keys of one page of one KV head.
///
/// what        the columns that the sketch has: page mean, signs, norm bytes, magnitudes, weights; see key_code.hpp for the rules
/// shapes      rows (P, stride), D components each; balance (D), null: all 1; out: see sketch_column
/// exactness   the same bits from every compiler, flag and instruction set
/// cost        D (log2 D + 12) operations a key, one pass over the keys for the mean and one for the code
/// errors      none; keys with NaN, infinity or a norm of 2^60 are never found, and the others are coded as if they were not there
/// source      ParisKV (arXiv 2602.07721) section 3; page mean, balance, norm byte: ours
template <element E>
void encode_page(const key_encoder<E>& encoder, const E* rows, std::int64_t stride, int page_tokens, const float* balance,
                 const page_code<true>& out) {
  const key_sketch& s = encoder.sketch;
  const simd::encode_table& kernels = *encoder.kernels;
  alignas(64) std::array<float, simd::encode_pitch> centre;                                         // centre (D), in lane order
  alignas(64) std::array<float, simd::encode_pitch> scale;                                          // scale (D), in lane order
  if (s.centre) {
    mean_key(kernels, rows, stride, page_tokens, encoder.dim, centre.data(), out.means);
  } else {
    centre.fill(0);
  }
  if (balance != nullptr) {
    scale.fill(0);
    for (int d = 0; d < encoder.dim; ++d) scale[static_cast<std::size_t>(simd::lane_position<E>(d, kernels.lanes))] = balance[d];
  }

  simd::encode_task task = key_task(encoder, centre.data(), balance != nullptr ? scale.data() : encoder.balanced.data());
  task.page_tokens = page_tokens;
  task.signs = out.signs;
  task.magnitudes = out.magnitudes;
  task.weights = out.weights;

  constexpr int block = 64;
  float square_norms[block];
  for (int first = 0; first < page_tokens; first += block) {
    const int n = std::min(block, page_tokens - first);
    encoder.encode(task, rows, stride, first, n, square_norms);
    for (int t = 0; t < n; ++t) {
      const std::uint8_t byte = norm_byte(square_norms[t]);
      if (byte == never_found) {
        forget_key(s, encoder.dim, page_tokens, first + t, out);
      } else if (out.norms != nullptr) {
        out.norms[first + t] = byte;
      }
    }
  }
}

/// Encodes pages of one KV head of one layer; see encode_page.
///
/// shapes      pages (n): page ids of rows and columns alike; balance (D), null: all 1
template <element E>
void encode_keys(const host& exec, const key_encoder<E>& encoder, const row_view<const E>& rows, const std::int64_t* pages, std::int64_t n,
                 std::int64_t head, const float* balance, const key_columns& columns) {
  for_each_task(exec, n, [&](std::int64_t i) {
    encode_page(encoder, rows.key.at(pages[i], head, 0), rows.key.slot_stride, rows.page_tokens, balance,
                code_of<true>(columns, pages[i], head));
  });
}

}  // namespace kvx
