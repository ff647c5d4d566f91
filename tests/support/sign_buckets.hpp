#pragma once
// What an index of sign buckets must answer, computed key by key and bit by bit: the specification of its integer stages.

#include <kvx/core/element.hpp>
#include <kvx/index/host/scan_buckets.hpp>
#include <kvx/index/host/sign_sums.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

namespace kvx::test {

using scores = std::vector<std::uint8_t>;  ///< of tokens begin, begin + 1, ...

inline int sign_byte(const bucket_zone& z, std::int64_t token, int plane) {
  return static_cast<int>(z.block(column_signs, token / z.page.tokens)[plane * z.page.tokens + token % z.page.tokens]);
}
inline int norm_byte_of(const bucket_zone& z, std::int64_t token) {
  return static_cast<int>(z.block(column_norms, token / z.page.tokens)[token % z.page.tokens]);
}

/// The queries that count: every head's, or the mean of the finite ones. An empty row is a head that is left out.
inline std::vector<std::vector<float>> rows_of(const tensor_view<const float, 2>& view) {
  std::vector<std::vector<float>> rows;
  for (std::int64_t g = 0; g < view.extents[0]; ++g) {
    std::vector<float> row;
    for (std::int64_t d = 0; d < view.extents[1]; ++d) row.push_back(*view.at(g, d));
    rows.push_back(row);
  }
  return rows;
}
inline bool is_finite(const std::vector<float>& row) {
  return std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
}
inline std::vector<float> mean_of(const std::vector<std::vector<float>>& rows, const std::vector<bool>& used) {
  std::vector<double> sum(rows[0].size());
  int n = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    for (std::size_t d = 0; used[g] && d < sum.size(); ++d) sum[d] += static_cast<double>(rows[g][d]);
    n += used[g] ? 1 : 0;
  }
  std::vector<float> mean;
  for (const double s : sum) mean.push_back(n > 0 ? static_cast<float>(s / n) : 0.0f);
  return mean;
}

/// One head of a search by sign sums.
struct plain_head {
  bool used = true;
  double c = 0;               ///< table entries for one unit of |q_j|
  std::vector<float> rotated;
  std::vector<float> page;    ///< (D) plain / undo, to 16 significant bits
  double undo = 0;
  double lse = 0;
  std::int64_t entries = 0;
  int ratio = 0, centre = 0;
  double page_scale = 0, offset = 0;

  /// What four coordinates from d on add for a pattern of signs.
  int entry(int d, int pattern) const {
    double sum = 0;
    for (int j = 0; j < 4 && d + j < static_cast<int>(rotated.size()); ++j) {
      const float q = rotated[static_cast<std::size_t>(d + j)];
      if ((q >= 0) == (pattern >> j & 1)) sum += std::fabs(static_cast<double>(q));
    }
    return static_cast<int>(c * sum);
  }
  /// q . mean in sixteen lanes, which are added in halves.
  float dot(const std::vector<float>& mean) const {
    std::vector<float> lane(16);
    for (std::size_t d = 0; d < mean.size(); ++d) lane[d % 16] += page[d] * mean[d];
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t j = 0; j < half; ++j) lane[j] += lane[j + half];
    }
    return lane[0];
  }
};

/// A search by sign sums, prepared for one zone.
class plain_sign_sums {
 public:
  plain_sign_sums(const key_sketch& sketch, bucket_scoring::query of, const bucket_zone& z, const bucket_queries& in)
      : z_(z), dim_(z.page.key_dim), norms_(sketch.norms), means_(sketch.norms && sketch.centre), wide_(dim_ > 256) {
    auto rotated = rows_of(in.rotated), plain = means_ ? rows_of(in.plain) : rotated;
    std::vector<bool> used;
    for (std::size_t g = 0; g < rotated.size(); ++g) used.push_back(is_finite(rotated[g]) && is_finite(plain[g]));
    const bool mean = of == bucket_scoring::query::mean_query;
    if (mean) {
      rotated = {mean_of(rotated, used)};
      plain = {mean_of(plain, used)};
      used = {std::count(used.begin(), used.end(), true) > 0};
    }
    sample();
    for (std::size_t g = 0; g < rotated.size(); ++g) heads_.push_back(head_of(rotated[g], plain[g], used[g]));
    for (std::size_t g = 0; g < heads_.size() && !mean && norms_ && in.lse != nullptr; ++g) {
      if (std::isfinite(in.lse[g])) heads_[g].lse = static_cast<double>(in.lse[g]);
    }
    choose_words(static_cast<double>(in.scale));
    choose_bytes();
  }

  scores all() const {
    scores result;
    for (std::int64_t t = z_.begin; t < z_.end; ++t) result.push_back(static_cast<std::uint8_t>(score(t)));
    return result;
  }

 private:
  /// Tokens of up to 32 pages of 64 (fewer or more of other sizes, at least four), evenly apart.
  void sample() {
    const std::int64_t P = z_.page.tokens, first = z_.begin / P, n = z_.end > z_.begin ? (z_.end + P - 1) / P - first : 0;
    const std::int64_t count = std::min(n, std::max<std::int64_t>(2048 / P, 4));
    for (std::int64_t s = 0; s < count; ++s) sampled_.push_back(first + s * n / count);
    std::vector<int> bytes;
    for (const std::int64_t i : sampled_) {
      for (std::int64_t t = std::max(z_.begin, i * P); t < std::min(z_.end, (i + 1) * P); ++t) {
        tokens_.push_back(t);
        if (norms_ && norm_byte_of(z_, t) != 0) bytes.push_back(norm_byte_of(z_, t));
      }
    }
    std::sort(bytes.begin(), bytes.end());
    if (!bytes.empty()) reference_ = std::min(bytes.back(), bytes[(bytes.size() - 1) / 2] + 24);
  }

  plain_head head_of(std::vector<float> rotated, std::vector<float> plain, bool used) const {
    plain_head h;
    h.used = used;
    if (!used) {
      for (float& x : rotated) x = 0;
      for (float& x : plain) x = 0;
    }
    h.rotated = rotated;
    double whole = 0, largest = 0;
    for (int d = 0; d < dim_; d += 4) {
      double sum = 0;
      for (int j = d; j < std::min(d + 4, dim_); ++j) sum += std::fabs(static_cast<double>(rotated[static_cast<std::size_t>(j)]));
      whole += sum;
      largest = std::max(largest, sum);
    }
    if (whole > 0) h.c = wide_ ? 63 / largest : 255 / whole;
    for (int d = 0; d < plane_bytes(dim_) * 8; d += 4) {
      for (int i = 0; i < 16; ++i) h.entries += h.entry(d, i);
    }
    float top = 0;
    for (const float x : plain) top = std::max(top, std::fabs(x));
    int exponent = 0;
    std::frexp(top, &exponent);
    h.undo = std::ldexp(1.0, exponent + 1);
    for (const float x : plain) {
      const auto y = static_cast<float>(static_cast<double>(x) / h.undo);
      int e = 0;
      const double m = std::frexp(static_cast<double>(y), &e);
      h.page.push_back(std::fabs(y) > 0x1p-40f ? static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(m, 16)), e - 16)) : 0.0f);
    }
    return h;
  }

  std::vector<float> page_mean(std::int64_t i) const {
    std::vector<float> mean;
    const auto* const bits = reinterpret_cast<const bf16*>(z_.block(column_means, i));
    for (int d = 0; d < dim_; ++d) mean.push_back(to_float(bits[d]));
    return mean;
  }

  void choose_words(double scale) {
    const double kappa = std::sqrt(2 / (std::numbers::pi * dim_)),
                 norm = norms_ ? static_cast<double>(norm_of(static_cast<std::uint8_t>(reference_))) : 1;
    const int steps = wide_ ? 4 : 256, middle = wide_ ? 4608 : 128;
    std::vector<double> units;
    double largest = 0;
    for (const plain_head& h : heads_) {
      units.push_back(h.c > 0 ? 2 * scale * kappa * norm / h.c : 0);
      if (h.used) largest = std::max(largest, units.back());
    }
    std::vector<double> tops;
    for (const std::int64_t i : sampled_) {
      std::vector<double> values;
      for (const plain_head& h : heads_) {
        const float dot = means_ ? h.dot(page_mean(i)) : 0.0f;
        if (h.used && std::isfinite(dot)) values.push_back(scale * h.undo * static_cast<double>(dot) - h.lse);
      }
      if (!values.empty()) tops.push_back(*std::max_element(values.begin(), values.end()));
    }
    double base = 0, spread = 0;
    for (const double x : tops) base += x;
    if (!tops.empty()) base /= static_cast<double>(tops.size());
    for (const double x : tops) spread = std::max(spread, std::fabs(x - base));
    double word = std::max(largest / (steps * .5), spread / 8192);
    if (!(word > 0)) word = 1;
    for (std::size_t g = 0; g < heads_.size(); ++g) {
      plain_head& h = heads_[g];
      h.offset = -1e9;
      if (!h.used) continue;
      h.ratio = static_cast<int>(std::min<std::int64_t>(static_cast<std::int64_t>(32768 * (units[g] / word) / steps), 16384));
      h.centre = static_cast<int>(std::floor(static_cast<double>((16 * middle - h.entries) * steps * h.ratio) / 0x1p19 + .5));
      h.page_scale = means_ ? with_float_precision(scale * h.undo / word) : 0;
      h.offset = (-h.lse - base) / word;
    }
  }

  void choose_bytes() {
    std::vector<int> found;
    for (const std::int64_t t : tokens_) {
      if (score(t) != 0) found.push_back(score(t));
    }
    if (found.empty()) return;
    std::sort(found.begin(), found.end());
    const int lowest = found[found.size() / 20], largest = found.back();
    low_ = (lowest - 1) * 128 - 16384;
    gain_ = 255 * 32768 / std::max((largest + 2 - lowest) * 144, 256);
  }

  static int word(double x) { return static_cast<int>(std::clamp(x, -32768.0, 32767.0)); }
  static int scaled(int x, int y) { return static_cast<int>(std::floor((x * static_cast<double>(y) + 16384) / 32768)); }

  int score(std::int64_t t) const {
    if (norms_ && norm_byte_of(z_, t) == 0) return 0;
    const int distance = norms_ ? std::clamp(reference_ - norm_byte_of(z_, t), 0, 63) : 0;
    const int factor = simd::eighth_powers[distance % 8] >> (1 + distance / 8);
    int best = -32768;
    for (const plain_head& h : heads_) {
      int sum = 0;
      for (int p = 0; p < plane_bytes(dim_); ++p) {
        sum += h.entry(8 * p, sign_byte(z_, t, p) & 15) + h.entry(8 * p + 4, sign_byte(z_, t, p) >> 4);
      }
      const double dot = means_ ? static_cast<double>(h.dot(page_mean(t / z_.page.tokens))) : 0;
      const double exact = h.page_scale * dot + h.offset;
      const int offset = std::isnan(exact) ? -32768 : word(exact < 0 ? std::ceil(exact - .5) : std::floor(exact + .5));
      const int x = wide_ ? (sum - 4608) * 4 : (sum - 128) * 256;
      best = std::max(best, word(scaled(word(scaled(x, h.ratio) + h.centre), factor) + offset));
    }
    return std::clamp(scaled(word(best - low_), gain_), 1, 255);
  }

  bucket_zone z_;
  int dim_;
  bool norms_, means_, wide_;
  int reference_ = 128;
  std::vector<std::int64_t> sampled_, tokens_;
  std::vector<plain_head> heads_;
  int low_ = -16384, gain_ = 256;
};

/// Keys of the zone in a bucket of subspace b.
inline int bucket_of(const bucket_zone& z, std::int64_t token, int subspace, int b) {
  return subspace == 8 ? sign_byte(z, token, b) : sign_byte(z, token, b / 2) >> (4 * (b % 2)) & 15;
}

/// Votes of the mean query, subspace after subspace.
inline scores plain_votes(const key_sketch& sketch, const bucket_zone& z, const tensor_view<const float, 2>& rotated, std::int64_t window) {
  const int dim = z.page.key_dim, m = sketch.subspace, parts = subspaces(sketch, dim);
  std::vector<double> sum(static_cast<std::size_t>(dim));
  for (const auto& row : rows_of(rotated)) {
    for (std::size_t d = 0; is_finite(row) && d < row.size(); ++d) sum[d] += static_cast<double>(row[d]);
  }
  double largest = 0;
  for (const double x : sum) largest = std::max(largest, std::fabs(x));
  std::vector<int> votes(static_cast<std::size_t>(z.end - z.begin));
  for (int b = 0; b < parts; ++b) {
    const int width = std::min(m, dim - b * m);
    std::vector<std::pair<std::int64_t, int>> order;  // what a bucket lacks, id
    for (int id = 0; id < 1 << width; ++id) {
      std::int64_t lack = 0;
      for (int j = 0; j < width; ++j) {
        const double q = sum[static_cast<std::size_t>(b * m + j)];
        if ((q >= 0) != (id >> j & 1) && largest > 0) lack += static_cast<std::int64_t>(std::fabs(q) / largest * 0x1p24);
      }
      order.emplace_back(lack, id);
    }
    std::sort(order.begin(), order.end());
    std::vector<int> weight(256);
    std::int64_t before = 0;
    for (const auto& [lack, id] : order) {
      if (before >= window) break;
      int tier = 0;
      for (const int edge : {5, 15, 30, 50, 75}) tier += before * 100 >= edge * window ? 1 : 0;
      weight[static_cast<std::size_t>(id)] = 6 - tier;
      for (std::int64_t t = z.begin; t < z.end; ++t) before += bucket_of(z, t, m, b) == id ? 1 : 0;
    }
    for (std::size_t t = 0; t < votes.size(); ++t) {
      votes[t] += weight[static_cast<std::size_t>(bucket_of(z, z.begin + static_cast<std::int64_t>(t), m, b))];
    }
  }
  int halvings = 0;
  while ((6 * parts) >> halvings > 254) ++halvings;
  scores result;
  for (std::size_t t = 0; t < votes.size(); ++t) {
    const bool never = sketch.norms && norm_byte_of(z, z.begin + static_cast<std::int64_t>(t)) == 0;
    result.push_back(static_cast<std::uint8_t>(never ? 0 : (votes[t] >> halvings) + 1));
  }
  return result;
}

/// The tokens that a full sort takes: highest scores first, ties to the lowest token, none without a score; ascending.
inline std::vector<std::int32_t> plain_selection(const scores& s, std::int64_t begin, std::int64_t count) {
  std::vector<std::pair<int, std::int32_t>> order;
  for (std::size_t t = 0; t < s.size(); ++t) {
    if (s[t] != 0) order.emplace_back(-s[t], static_cast<std::int32_t>(begin + static_cast<std::int64_t>(t)));
  }
  std::sort(order.begin(), order.end());
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < order.size() && static_cast<std::int64_t>(i) < count; ++i) tokens.push_back(order[i].second);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace kvx::test
