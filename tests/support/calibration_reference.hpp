#pragma once
// The slow version of calibration: moments, eigenvalues and sensitivity as their definitions say, in double.

#include <kvx/transform/rope_pairs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace reference {

/// Rows, one after the other.
struct matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;

  matrix(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
  double& at(std::size_t i, std::size_t j) { return values[i * columns + j]; }
  double at(std::size_t i, std::size_t j) const { return values[i * columns + j]; }
};

/// Rows of correlated numbers: a random mixture of `columns` sources whose deviations fall like i^-decay, about a mean.
inline matrix mixed_rows(std::size_t rows, std::size_t columns, double decay, double mean, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  matrix mixture(columns, columns), out(rows, columns);
  for (double& x : mixture.values) x = normal(random) / std::sqrt(static_cast<double>(columns));
  std::vector<double> source(columns);
  for (std::size_t t = 0; t < rows; ++t) {
    for (std::size_t i = 0; i < columns; ++i) source[i] = normal(random) * std::pow(static_cast<double>(i + 1), -decay);
    for (std::size_t j = 0; j < columns; ++j) {
      double sum = mean * static_cast<double>(j % 3);
      for (std::size_t i = 0; i < columns; ++i) sum += source[i] * mixture.at(i, j);
      out.at(t, j) = sum;
    }
  }
  return out;
}

inline std::vector<double> mean(const matrix& x) {
  std::vector<double> m(x.columns);
  for (std::size_t t = 0; t < x.rows; ++t) {
    for (std::size_t j = 0; j < x.columns; ++j) m[j] += x.at(t, j) / static_cast<double>(x.rows);
  }
  return m;
}

inline matrix covariance(const matrix& x) {
  const auto m = mean(x);
  matrix c(x.columns, x.columns);
  for (std::size_t t = 0; t < x.rows; ++t) {
    for (std::size_t i = 0; i < x.columns; ++i) {
      for (std::size_t j = 0; j < x.columns; ++j) c.at(i, j) += (x.at(t, i) - m[i]) * (x.at(t, j) - m[j]) / static_cast<double>(x.rows);
    }
  }
  return c;
}

/// Eigenvalues of a symmetric matrix, descending, by Jacobi's rotations.
inline std::vector<double> eigenvalues(matrix a) {
  const std::size_t n = a.rows;
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (std::abs(a.at(p, q)) < 1e-300) continue;
        const double theta = (a.at(q, q) - a.at(p, p)) / (2 * a.at(p, q));
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (std::size_t k = 0; k < n; ++k) {
          const double x = a.at(k, p), y = a.at(k, q);
          a.at(k, p) = c * x - s * y;
          a.at(k, q) = s * x + c * y;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double x = a.at(p, k), y = a.at(q, k);
          a.at(p, k) = c * x - s * y;
          a.at(q, k) = s * x + c * y;
        }
      }
    }
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(a.at(i, i));
  std::sort(values.rbegin(), values.rend());
  return values;
}

/// One layer of attention for the weights of `sensitivity`.
///
/// shapes      q (n, Q, D), positions (n), k (T, H, D), v (T, H, Dv), projection (E, Q Dv), residual (m, E)
struct layer_case {
  std::size_t query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0, width = 0;
  kvx::rope_pairs pairs;
  std::size_t sinks = 0, newest = 1, window = 0;
  double common_share = 0;                                              // of the energy of V's error: the same in all rows
  std::vector<float> q, k, v, projection, residual, gain;
  std::vector<std::size_t> positions;

  /// Squares of the weights of K (H, D) and V (H, Dv).
  void weights(std::vector<double>& key, std::vector<double>& value) const {
    const std::size_t group = query_heads / kv_heads;
    std::vector<double> plain(kv_heads * key_dim);
    key.assign(kv_heads * key_dim, 0);
    value.assign(kv_heads * value_dim, 0);
    double inverse = 0;                                                 // mean of 1 / |x|^2
    for (std::size_t t = 0; t < residual.size() / width; ++t) {
      double length = 0;
      for (std::size_t e = 0; e < width; ++e)
        length += static_cast<double>(residual[t * width + e]) * static_cast<double>(residual[t * width + e]);
      inverse += 1 / length * static_cast<double>(width) / static_cast<double>(residual.size());
    }
    const double energy = 1 / inverse;
    const auto n = static_cast<double>(positions.size());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const std::size_t here = positions[i], from = window > 0 && here + 1 > window ? here + 1 - window : 0;
      const double scale = gain.empty() ? 1 : static_cast<double>(gain[i]) * static_cast<double>(gain[i]);
      for (std::size_t h = 0; h < query_heads; ++h) {
        const std::size_t g = h / group;
        const float* query = q.data() + (i * query_heads + h) * key_dim;
        std::vector<double> a(here + 1), o(value_dim);
        double sum = 0;
        for (std::size_t j = from; j <= here; ++j) {
          double dot = 0;
          for (std::size_t d = 0; d < key_dim; ++d) {
            dot += static_cast<double>(query[d]) * static_cast<double>(k[(j * kv_heads + g) * key_dim + d]);
          }
          sum += a[j] = std::exp(dot / std::sqrt(static_cast<double>(key_dim)));
        }
        for (std::size_t j = from; j <= here; ++j) {
          a[j] /= sum;
          for (std::size_t d = 0; d < value_dim; ++d) o[d] += a[j] * static_cast<double>(v[(j * kv_heads + g) * value_dim + d]);
        }
        double squares = 0, mass = 0, moved = 0;
        for (std::size_t j = std::max(from, sinks); j + newest <= here; ++j) {
          squares += a[j] * a[j];
          mass += a[j];
          for (std::size_t e = 0; e < width; ++e) {
            double change = 0;
            for (std::size_t d = 0; d < value_dim; ++d) {
              change += static_cast<double>(projection[e * query_heads * value_dim + h * value_dim + d]) *
                        (static_cast<double>(v[(j * kv_heads + g) * value_dim + d]) - o[d]);
            }
            moved += a[j] * a[j] * change * change;
          }
        }
        for (std::size_t d = 0; d < value_dim; ++d) {
          double column = 0;
          for (std::size_t e = 0; e < width; ++e) {
            const auto w = static_cast<double>(projection[e * query_heads * value_dim + h * value_dim + d]);
            column += w * w;
          }
          value[g * value_dim + d] += scale * ((1 - common_share) * squares + common_share * mass * mass) * column / n / energy;
        }
        for (std::size_t d = 0; d < key_dim; ++d) {
          const auto x = static_cast<double>(query[d]);
          plain[g * key_dim + d] += scale * x * x / static_cast<double>(key_dim) * moved / n / energy;
        }
      }
    }
    for (std::size_t g = 0; g < kv_heads; ++g) {
      for (std::size_t d = 0; d < key_dim; ++d) {
        const auto other = static_cast<std::size_t>(pairs.partner(static_cast<int>(d)));
        key[g * key_dim + d] = (plain[g * key_dim + d] + plain[g * key_dim + other]) / 2;
      }
    }
  }
};

}  // namespace reference
