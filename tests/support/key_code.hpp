#pragma once
// The code of a key, by its definition: one key after the other, one coordinate after the other.

#include <kvx/core/element.hpp>
#include <kvx/sketch/codebook.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/transform/srht.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

namespace kvx::test {

/// The columns of one page of one head; those that the sketch has not are empty.
struct coded_page {
  std::vector<std::uint8_t> signs;       // (plane_bytes(D), P)
  std::vector<std::uint8_t> norms;       // (P)
  std::vector<bf16> means;               // (D)
  std::vector<std::uint8_t> magnitudes;  // (P, bits - 1, plane_bytes(D))
  std::vector<half> weights;             // (P, weights)

  coded_page(const key_sketch& s, int dim, int page_tokens)
      : signs(static_cast<std::size_t>(plane_bytes(dim) * page_tokens)),
        norms(s.norms ? static_cast<std::size_t>(page_tokens) : 0),
        means(s.centre ? static_cast<std::size_t>(dim) : 0),
        magnitudes(static_cast<std::size_t>(plane_bytes(dim) * (s.bits - 1) * page_tokens)),
        weights(static_cast<std::size_t>(weights_per_key(s, dim) * page_tokens)) {}

  page_code<true> columns() {
    page_code<true> c;
    c.signs = signs.data();
    c.norms = norms.empty() ? nullptr : norms.data();
    c.means = means.empty() ? nullptr : means.data();
    c.magnitudes = magnitudes.empty() ? nullptr : magnitudes.data();
    c.weights = weights.empty() ? nullptr : weights.data();
    return c;
  }

  friend bool operator==(const coded_page&, const coded_page&) = default;
};

/// The codebook of directions of `width` coordinates as vectors. Neither inline nor constexpr: where this is declared extern, the compiler
/// has not to compute it, which takes seconds for 7 bits.
template <int Bits>
void copy_codebook(int width, std::vector<float>& levels, std::vector<float>& squared_thresholds) {
  const auto& book = codebook_for<Bits>(width);
  levels.assign(book.levels.begin(), book.levels.end());
  squared_thresholds.assign(book.squared_thresholds.begin(), book.squared_thresholds.end());
}

/// Levels and squared thresholds of directions of `width` coordinates.
struct any_codebook {
  std::vector<float> levels;
  std::vector<float> squared_thresholds;

  any_codebook(int magnitude_bits, int width) {
    if (magnitude_bits == 1) copy_codebook<1>(width, levels, squared_thresholds);
    if (magnitude_bits == 3) copy_codebook<3>(width, levels, squared_thresholds);
    if (magnitude_bits == 7) copy_codebook<7>(width, levels, squared_thresholds);
  }
};

/// The mean of the rows whose components are all finite.   keys (n, dim)
template <class E>
std::vector<bf16> mean_of(const std::vector<E>& keys, int dim) {
  std::vector<float> sum(static_cast<std::size_t>(dim));
  float count = 0;
  for (std::size_t first = 0; first < keys.size(); first += sum.size()) {
    bool finite = true;
    for (std::size_t d = 0; d < sum.size(); ++d) finite = finite && std::isfinite(to_float(keys[first + d]));
    if (!finite) continue;
    count += 1;
    for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += to_float(keys[first + d]);
  }
  std::vector<bf16> mean;
  for (const float s : sum) {
    const bf16 m = round_to<bf16>(count > 0 ? s / count : 0);
    mean.push_back(std::isfinite(to_float(m)) ? m : bf16{});
  }
  return mean;
}

/// k~ = rotate(a (k - c)).   key (dim)
template <class E>
std::vector<float> rotated_key(const key_sketch& s, const E* key, int dim, const std::vector<bf16>& mean, const float* balance) {
  std::vector<float> x;
  for (int d = 0; d < dim; ++d) {
    const float centred = s.centre ? to_float(key[d]) - to_float(mean[static_cast<std::size_t>(d)]) : to_float(key[d]);
    x.push_back(balance == nullptr ? centred : rounded_product(balance[d], centred));
  }
  rotate(x.data(), x.size(), s.seed);
  return x;
}

/// Encodes one rotated key.
inline void encode_rotated(const key_sketch& s, const std::vector<float>& x, int page_tokens, int slot, coded_page& out) {
  const int dim = static_cast<int>(x.size());
  const int bytes = plane_bytes(dim);
  const int weights = weights_per_key(s, dim);
  std::vector<float> squares(static_cast<std::size_t>(subspaces(s, dim)));                          // squares (B)
  for (int d = 0; d < dim; ++d) {
    const float v = x[static_cast<std::size_t>(d)];
    squares[static_cast<std::size_t>(d / s.subspace)] += rounded_product(v, v);
  }
  float norm = 0;
  for (const float r : squares) norm += r;
  const std::uint8_t byte = norm_byte(norm);
  if (s.norms) out.norms[static_cast<std::size_t>(slot)] = byte;
  const bool one = s.weights == key_sketch::weighting::key;
  for (int w = 0; w < weights; ++w) out.weights[static_cast<std::size_t>(slot * weights + w)] = no_weight;
  if (byte == never_found) return;

  const any_codebook whole(s.bits - 1, codebook_width(s, dim, 0));
  const any_codebook last(s.bits - 1, codebook_width(s, dim, dim - 1));
  std::vector<float> sums(static_cast<std::size_t>(weights));
  for (int d = 0; d < dim; ++d) {
    const float v = x[static_cast<std::size_t>(d)];
    if (v >= 0) out.signs[static_cast<std::size_t>(d / 8 * page_tokens + slot)] |= static_cast<std::uint8_t>(1 << d % 8);
    if (weights == 0) continue;
    const any_codebook& book = codebook_width(s, dim, d) == codebook_width(s, dim, 0) ? whole : last;
    const float radius = !one                    ? squares[static_cast<std::size_t>(d / s.subspace)]
                         : dim > widest_codebook ? norm / static_cast<float>(dim)
                                                 : norm;
    int cell = 0;
    for (const float t : book.squared_thresholds) cell += rounded_product(v, v) >= rounded_product(t, radius) ? 1 : 0;
    for (int p = 0; p < s.bits - 1; ++p) {
      const int at = (slot * (s.bits - 1) + p) * bytes + d / 8;
      out.magnitudes[static_cast<std::size_t>(at)] |= static_cast<std::uint8_t>((cell >> p & 1) << d % 8);
    }
    sums[static_cast<std::size_t>(weight_of(s, d))] += std::fabs(rounded_product(book.levels[static_cast<std::size_t>(cell)], v));
  }
  for (int w = 0; w < weights; ++w) {
    const auto i = static_cast<std::size_t>(w);
    out.weights[static_cast<std::size_t>(slot * weights) + i] = weight(one ? norm : squares[i], sums[i]);
  }
}

/// Encodes a page.   keys (page_tokens, dim), balance (dim) or null
template <class E>
coded_page encode_page_slowly(const key_sketch& s, const std::vector<E>& keys, int dim, const float* balance) {
  const int page_tokens = static_cast<int>(keys.size()) / dim;
  coded_page page(s, dim, page_tokens);
  const std::vector<bf16> mean = mean_of(keys, dim);
  if (s.centre) page.means = mean;
  for (int t = 0; t < page_tokens; ++t) encode_rotated(s, rotated_key(s, keys.data() + t * dim, dim, mean, balance), page_tokens, t, page);
  return page;
}

/// v_d = +-level of every coordinate times its weight: what an estimate multiplies q~ with.   result (dim), in double
inline std::vector<double> decoded_key(const key_sketch& s, const coded_page& page, int dim, int page_tokens, int slot) {
  std::vector<double> v;
  const any_codebook whole(s.bits - 1, codebook_width(s, dim, 0));
  const any_codebook last(s.bits - 1, codebook_width(s, dim, dim - 1));
  const int weights = weights_per_key(s, dim);
  const std::uint8_t* const planes = page.magnitudes.data() + slot * (s.bits - 1) * plane_bytes(dim);
  for (int d = 0; d < dim; ++d) {
    const any_codebook& book = codebook_width(s, dim, d) == codebook_width(s, dim, 0) ? whole : last;
    const double level = book.levels[static_cast<std::size_t>(cell_of(planes, s, dim, d))];
    const double w = to_float(page.weights[static_cast<std::size_t>(slot * weights + weight_of(s, d))]);
    v.push_back(is_nonnegative(page.signs.data(), page_tokens, slot, d) ? w * level : -w * level);
  }
  return v;
}

}  // namespace kvx::test
