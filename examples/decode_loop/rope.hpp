#pragma once
// Rotary position embedding: pairs of dimensions turned by an angle that grows with the position.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decode_loop {

/// Which dimensions make a pair: (2i, 2i + 1), as GGUF's llama weights are permuted for, or (i, i + D/2).
enum class rope_pairs { interleaved, half_split };

/// Cosines and sines of the positions of a pass, shared by all its layers.
///
/// what        angle(t, i) = positions[t] base^(-2i / D)
/// shapes      cosine, sine (T, D / 2)
/// exactness   angles in double, rounded to float once
/// source      Su et al. 2021, section 3.2
struct rope_table {
  std::size_t pairs = 0;
  std::vector<float> cosine, sine;

  void fill(std::span<const std::int64_t> positions, std::size_t dim, double base) {
    pairs = dim / 2;
    cosine.resize(positions.size() * pairs);
    sine.resize(positions.size() * pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
      const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      for (std::size_t t = 0; t < positions.size(); ++t) {
        const double angle = static_cast<double>(positions[t]) * frequency;
        cosine[t * pairs + i] = static_cast<float>(std::cos(angle));
        sine[t * pairs + i] = static_cast<float>(std::sin(angle));
      }
    }
  }

  /// Turns one head's row x (D) of token t in place.
  void turn(float* x, std::size_t t, rope_pairs layout) const {
    const float* c = cosine.data() + t * pairs;                         // c, s (D / 2)
    const float* s = sine.data() + t * pairs;
    const std::size_t step = layout == rope_pairs::interleaved ? 2 : 1;
    const std::size_t apart = layout == rope_pairs::interleaved ? 1 : pairs;
    for (std::size_t i = 0; i < pairs; ++i) {
      float& a = x[i * step];
      float& b = x[i * step + apart];
      const float turned = a * c[i] - b * s[i];
      b = a * s[i] + b * c[i];
      a = turned;
    }
  }
};

}  // namespace decode_loop
