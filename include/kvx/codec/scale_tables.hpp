#pragma once
// The static alphabets of entropy-first streams: one for every scale of a component, in steps of an eighth of an octave, and for five
// shapes.

#include <kvx/codec/component_scale.hpp>
#include <kvx/codec/symbol_table.hpp>
#include <kvx/core/annotate.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Scales that have an alphabet: 2^((i - 24) / 8) steps for i in [0, 124), from an eighth of a step to 2^12 steps. From 2.8 steps on the
/// lowest bits are raw: one bit more an octave, so that sixteen symbols span 2.9 deviations to each side.
inline constexpr int scales_per_octave = 8;
inline constexpr int smallest_scale = -24;
inline constexpr int first_raw_scale = 36;
inline constexpr int scale_count = first_raw_scale + scales_per_octave * most_raw_bits;
inline constexpr int shape_count = 5;

/// Raw bits of the i-th scale.
KVX_HD constexpr int raw_bits_of_scale(int i) { return i < first_raw_scale ? 0 : 1 + (i - first_raw_scale) / scales_per_octave; }

/// A component whose scale is below this many units under the step is not coded: all its values are 0 (.18 steps).
inline constexpr int rank_cut = -633;

/// The number of the alphabet of a component under a step.
KVX_HD constexpr std::uint16_t table_of_scale(const component_scale& c, int log2_step) {
  constexpr int units = scale_units / scales_per_octave;
  int i = ((c.log2_scale - log2_step + units / 2) >> 5) - smallest_scale;
  i = i < 0 ? 0 : i >= scale_count ? scale_count - 1 : i;
  return static_cast<std::uint16_t>((c.laplace < shape_count ? c.laplace : shape_count - 1) * scale_count + i);
}
static_assert(scale_units / scales_per_octave == 1 << 5 && table_of_scale({-800, 0}, -32) == 0);
static_assert(table_of_scale({0, 4}, 0) == 4 * scale_count + 24 && table_of_scale({17, 1}, 0) == scale_count + 25);

/// Components up to the last one above the rank cut.
KVX_HD constexpr std::int64_t coded_components(const component_scale* scales, std::int64_t count, int log2_step) {
  while (count > 0 && scales[count - 1].log2_scale - log2_step < rank_cut) --count;
  return count;
}

/// e^-x for x in units of 2^-32, in such units.
///
/// exactness   integers; within 2^-28
KVX_HD constexpr std::uint64_t exp_minus(std::uint64_t x) {
  constexpr std::uint64_t one = std::uint64_t{1} << 32, ln2 = 0xb17217f8u;
  const std::uint64_t n = x / ln2;
  if (n >= 40) return 0;
  const std::uint64_t rest = x % ln2;
  std::uint64_t p = one;
  for (std::uint64_t k = 10; k > 0; --k) p = one - (rest * p >> 32) / k;  // 1 - x (1 - x/2 (1 - x/3 ...))
  return p >> n;
}
static_assert(exp_minus(0) == std::uint64_t{1} << 32 && exp_minus(std::uint64_t{1} << 32) / 64 == 24687971);

/// Alphabets and reconstruction of a quantiser whose rounding is |v| = floor(|x| / step + rounding / 256).
///
/// what        each bin's probability is the density's integral over it, by the midpoint rule with 16 points; symbols below 1 in 45,000
///             share the escape. The value of a bin is its centroid for the Gaussian and mixed densities up to |v| = 7 where no bit is
///             raw, and the middle of the bin beyond
/// exactness   integers from end to end: the same tables from every compiler and processor, so streams need not carry them
/// cost        some 10 ms and 200 KB, once
class scale_tables {
 public:
  /// Levels count in units of 2^-10 steps.
  static constexpr int level_units = 1024;
  static constexpr int levels = 8;

  explicit scale_tables(int rounding = 77) : rounding_(rounding), lookups_(static_cast<std::size_t>(scale_count * shape_count)) {
    levels_.resize(lookups_.size() * levels);
    for (int i = 0; i < scale_count; ++i) make(i);
  }

  int rounding() const { return rounding_; }
  const symbol_lookup* lookups() const { return lookups_.data(); }
  const symbol_lookup& lookup(std::uint16_t table) const { return lookups_[table]; }

  /// What |v| stands for under a table: entries of `levels` each; beyond them level_of_middle.
  const std::uint16_t* level(std::uint16_t table) const { return levels_.data() + std::size_t{table} * levels; }

 private:
  struct mass {
    std::uint64_t weight[shape_count] = {};
    std::uint64_t moment[shape_count] =
        {};  ///< of the distance from 0, in 2^-13 steps, over 2^8; where bits are raw it wraps, and is not used
  };

  /// Where the bin of value v begins, in 2^-8 steps.
  std::int64_t lower_edge(std::int64_t v) const { return 256 * v + (v >= 1 ? -rounding_ : rounding_ - 256); }

  /// Integral over the values [first, first + count) of an alphabet of scale i.
  mass integral(int i, std::int64_t first, std::int64_t count) const {
    // 2^(j / 8) in units of 2^-32.
    constexpr std::uint64_t eighths_of_octaves[8] = {0x100000000, 0x1172b83c8, 0x1306fe0a3, 0x14bfdad53,
                                                     0x16a09e668, 0x18ace5423, 0x1ae89f996, 0x1d5818dd0};
    constexpr int points = 16;
    constexpr std::uint64_t root2 = 92682;                             // 2^16 sqrt(2)
    constexpr std::uint64_t gauss_height = 26145, laplace_height = 46341;  // 2^16 / sqrt(2 pi), 2^16 / sqrt(2)
    const int exponent = -(smallest_scale + i);                        // 1 / scale is 2^(exponent / 8)
    const int octave = exponent >> 3;
    const std::uint64_t root = eighths_of_octaves[exponent & 7];
    const std::int64_t from = lower_edge(first), width = lower_edge(first + count) - from;
    mass sum;
    for (int p = 0; p < points; ++p) {
      const std::int64_t at = 32 * from + (2 * p + 1) * width;
      const auto distance = static_cast<std::uint64_t>(at < 0 ? -at : at);  // 2^-13 steps
      std::uint64_t u = distance * root;                                    // deviations, 2^-45 before the octave
      u = octave >= 0 ? u << octave >> 29 : u >> (29 - octave);             // 2^-16
      const std::uint64_t gauss = u < 64u << 16 ? exp_minus(u * u >> 1) * gauss_height >> 16 : 0;
      const std::uint64_t laplace = exp_minus(u * root2) * laplace_height >> 16;
      for (std::uint64_t q = 0; q < shape_count; ++q) {
        const std::uint64_t density = (gauss * (4 - q) + laplace * q) >> 2;
        sum.weight[q] += density;
        sum.moment[q] += (density >> 8) * distance;
      }
    }
    for (auto& w : sum.weight) w *= static_cast<std::uint64_t>(width);
    for (auto& m : sum.moment) m *= static_cast<std::uint64_t>(width);
    return sum;
  }

  void make(int i) {
    const int raw = raw_bits_of_scale(i);
    const std::int64_t count = std::int64_t{1} << raw, lowest = -middle_symbol * count - count / 2;
    std::uint64_t weights[shape_count][alphabet_size] = {};
    std::uint64_t moments[shape_count][alphabet_size] = {};
    for (int s = -8; s < alphabet_size - 1 + 8; ++s) {  // eight bins to each side are what escapes
      const mass m = integral(i, lowest + s * count, count);
      const int to = s < 0 || s >= alphabet_size - 1 ? alphabet_size - 1 : s;
      for (int q = 0; q < shape_count; ++q) {
        weights[q][to] += m.weight[q] >> 12;
        moments[q][to] += m.moment[q];
      }
    }
    for (int q = 0; q < shape_count; ++q) {
      const std::size_t table = static_cast<std::size_t>(q * scale_count + i);
      for (int v = 0; v < levels; ++v) {
        const std::uint64_t weight = weights[q][middle_symbol + v];
        // A weight has lost 12 bits and a moment 8, so their quotient counts 2^-17 steps.
        const std::uint64_t centroid = weight > 0 ? (moments[q][middle_symbol + v] + 64 * weight) / (128 * weight) : 0;
        const std::int64_t low = 4 * lower_edge(v);
        const bool inside =
            raw == 0 && v > 0 && static_cast<std::int64_t>(centroid) >= low && static_cast<std::int64_t>(centroid) <= low + level_units;
        levels_[table * levels + static_cast<std::size_t>(v)] = static_cast<std::uint16_t>(v == 0   ? 0
                                                                                           : inside ? static_cast<std::int64_t>(centroid)
                                                                                                    : low + level_units / 2);
      }
      std::uint64_t sum = 0;
      for (const std::uint64_t w : weights[q]) sum += w;
      std::uint64_t& escaped = weights[q][alphabet_size - 1];
      for (int s = 0; s < alphabet_size - 1; ++s) {
        if ((weights[q][s] << rans_bits) * 11 >= sum) continue;
        escaped += weights[q][s];
        weights[q][s] = 0;
      }
      if (escaped == 0) escaped = 1;
      symbol_range range;
      range.raw_bits = static_cast<std::uint8_t>(raw);
      range.offset = static_cast<std::int16_t>(lowest);
      lookups_[table] = make_lookup(normalised(weights[q]), range);
    }
  }

  int rounding_;
  std::vector<symbol_lookup> lookups_;
  std::vector<std::uint16_t> levels_;  // (shapes, scales, levels)
};

}  // namespace kvx
