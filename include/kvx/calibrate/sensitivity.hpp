#pragma once
// How much an error in a channel of K or V matters to the model: weights in closed form, from queries and attention seen in calibration.

#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/transform/rope_pairs.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// What a model looks like to its attention.
///
/// scale       of logits, 0: 1 / sqrt(key_dim)
struct attention_shape {
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  rope_pairs pairs = {};
  float scale = 0;

  friend bool operator==(const attention_shape&, const attention_shape&) = default;
};

/// Queries of one layer and the keys and values that they attend to.
///
/// shapes      queries (n, Q, D) after RoPE, positions (n) of them ascending; keys (T, H, D) after RoPE; values (T, H, Dv): rows of
///             positions 0..T-1, T above every position of a query
/// gain        (n) or empty: where a norm follows the output projection, 1 / rms(W_O o) of each query's token, the norm's weight folded
///             into the projection
struct attention_sample {
  std::span<const float> queries;
  std::span<const std::int64_t> positions;
  std::span<const float> keys;
  std::span<const float> values;
  std::span<const float> gain = {};
};

/// Which rows of a query's context would be coded: [sinks, position - newest], and above position - window where a layer has one.
struct coded_rows {
  std::int64_t sinks = 4;
  std::int64_t newest = 128;
  std::int64_t window = 0;
};

/// Expected squared relative change of the residual stream by an error of unit variance in a channel, and its square root, the weight.
///
/// what        a the attention of query i over rows j, o its head's output, W the head's output projection, x the residual stream after the
///             layer; sums over the rows that would be coded, all heads of a group added, the mean over queries:
///             V: w^2[layer, head, d] = sum_h E_i( (1 - c) sum_j a_ij^2 + c (sum_j a_ij)^2 ) |W_h e_d|^2 E(1 / |x|^2)
///             K: w^2[layer, head, pair] = sum_h E_i( q_id^2 scale^2 sum_j a_ij^2 |W_h (v_j - o_i)|^2 ) E(1 / |x|^2), q^2 the pair's mean.
///             The mean of 1 / |x|^2, since norms divide every token by its own length; the mean of |x|^2 is that of a few tokens (sinks,
///             first line breaks) whose length is hundreds of times the others': on SmolLM2 it makes the weights of the middle layers five
///             times too small, and KL three times larger.
///             c, the common share: what coding leaves out of a text's own mean is the same for all its rows. Attention spread over
///             thousands of rows averages their independent errors away, and keeps that
/// exactness   sums in double
/// cost        of a query and head, T (D + 2 Dv) multiply-adds; of a sample and head, T Dv^2; 8 Dv^2 bytes a query head
/// errors      usage_error: shapes; a layer without projection or residuals when weights are asked for
/// source      ours: docs/calibration.md, weights
class sensitivity {
 public:
  explicit sensitivity(const attention_shape& shape, double common_share = default_common_share, call_site where = call_site::here())
      : shape_(shape), common_share_(common_share) {
    require(common_share >= 0 && common_share <= 1, "sensitivity: the common share of errors is from 0 to 1", where);
    require_range("layers", shape.layers, 1, 1 << 16, where);
    require_range("KV heads", shape.kv_heads, 1, 1 << 12, where);
    require_range("key dim", shape.key_dim, 1, 576, where);
    require_range("value dim", shape.value_dim, 1, 576, where);
    require_range("rotary dims", shape.pairs.dims, 0, shape.key_dim, where);
    require(shape.query_heads >= shape.kv_heads && shape.query_heads % shape.kv_heads == 0,
            "sensitivity: query heads are a multiple of KV heads", where);
    layers_.resize(static_cast<std::size_t>(shape.layers));
    for (layer_sums& l : layers_) {
      l.key = Eigen::MatrixXd::Zero(shape.key_dim, shape.kv_heads);
      l.value = Eigen::VectorXd::Zero(shape.query_heads);
    }
  }

  const attention_shape& shape() const { return shape_; }

  /// The output projection of a layer.   weights (E, Q Dv), row-major
  void projection(int layer, std::span<const float> weights, call_site where = call_site::here()) {
    layer_sums& l = at(layer, where);
    const std::int64_t width = std::int64_t{shape_.query_heads} * shape_.value_dim;
    require(!weights.empty() && static_cast<std::int64_t>(weights.size()) % width == 0, "sensitivity: a projection is (E, Q Dv)", where);
    const Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>> w(weights.data(),
                                                                            static_cast<std::int64_t>(weights.size()) / width, width);
    l.squares.clear();
    for (int h = 0; h < shape_.query_heads; ++h) {
      const Eigen::MatrixXf head = w.middleCols(std::int64_t{h} * shape_.value_dim, shape_.value_dim);
      l.squares.push_back(head.transpose() * head);
    }
  }

  /// Rows of the residual stream after a layer.   rows (n, E)
  void residual(int layer, std::span<const float> rows, std::int64_t width, call_site where = call_site::here()) {
    layer_sums& l = at(layer, where);
    require(width >= 1 && static_cast<std::int64_t>(rows.size()) % width == 0, "sensitivity: residual rows are (n, E)", where);
    for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(width)) {
      double length = 0;
      for (const float x : rows.subspan(first, static_cast<std::size_t>(width))) length += static_cast<double>(x) * static_cast<double>(x);
      if (!(length > 0)) continue;
      l.inverse_energy += 1 / length;
      ++l.residuals;
    }
  }

  /// Adds the queries of a sample.
  void add(const host& exec, int layer, const attention_sample& sample, const coded_rows& coded = {}, call_site where = call_site::here()) {
    layer_sums& l = at(layer, where);
    const auto count = static_cast<std::int64_t>(sample.positions.size());
    const std::int64_t keys = std::int64_t{shape_.kv_heads} * shape_.key_dim, values = std::int64_t{shape_.kv_heads} * shape_.value_dim;
    const std::int64_t tokens = static_cast<std::int64_t>(sample.keys.size()) / keys;
    require(static_cast<std::int64_t>(sample.queries.size()) == count * shape_.query_heads * shape_.key_dim,
            "sensitivity: queries are (n, Q, D)", where);
    require(static_cast<std::int64_t>(sample.keys.size()) == tokens * keys &&
                static_cast<std::int64_t>(sample.values.size()) == tokens * values,
            "sensitivity: keys are (T, H, D) and values (T, H, Dv)", where);
    require(sample.gain.empty() || sample.gain.size() == sample.positions.size(), "sensitivity: a gain a query", where);
    for (const std::int64_t p : sample.positions) require_range("position of a query", p, 0, tokens - 1, where);
    require(!l.squares.empty(), "sensitivity: a layer's projection comes before its queries", where);
    // A task a query head; each adds to sums of its own, so that the order of tasks cannot matter.
    std::vector<head_sums> heads(static_cast<std::size_t>(shape_.query_heads));
    for_each_task(exec, shape_.query_heads,
                  [&](std::int64_t h) { heads[static_cast<std::size_t>(h)] = head(l, sample, coded, static_cast<int>(h), tokens); });
    const int group = shape_.query_heads / shape_.kv_heads;
    for (int h = 0; h < shape_.query_heads; ++h) {
      l.key.col(h / group) += heads[static_cast<std::size_t>(h)].key;
      l.value[h] += heads[static_cast<std::size_t>(h)].value;
    }
    l.queries += count;
  }

  /// Weights of K (layers, KV heads, D) and of V (layers, KV heads, Dv).
  ///
  /// floor       no weight lies below this share of the root mean square of all: what calibration never saw attended to is kept too
  std::vector<float> key_weights(double floor = default_floor, call_site where = call_site::here()) const {
    std::vector<double> squares;
    for (const layer_sums& l : layers_) {
      const double unit = l.unit(where);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (int d = 0; d < shape_.key_dim; ++d) squares.push_back((l.key(d, head) + l.key(shape_.pairs.partner(d), head)) / 2 * unit);
      }
    }
    return roots(squares, floor);
  }
  std::vector<float> value_weights(double floor = default_floor, call_site where = call_site::here()) const {
    std::vector<double> squares;
    const int group = shape_.query_heads / shape_.kv_heads;
    for (const layer_sums& l : layers_) {
      const double unit = l.unit(where);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (int d = 0; d < shape_.value_dim; ++d) {
          double sum = 0;
          for (int h = head * group; h < (head + 1) * group; ++h) {
            sum += l.value[h] * static_cast<double>(l.squares[static_cast<std::size_t>(h)](d, d));
          }
          squares.push_back(sum * unit);
        }
      }
    }
    return roots(squares, floor);
  }

  static constexpr double default_floor = .02;
  /// Of the error's energy in V, coded 35 times smaller, over 8,000 tokens: .011 on SmolLM2.
  static constexpr double default_common_share = .01;

 private:
  struct head_sums {
    Eigen::VectorXd key;  // (D)
    double value = 0;
  };
  struct layer_sums {
    std::vector<Eigen::MatrixXf> squares;  // of each query head: W^T W (Dv, Dv)
    Eigen::MatrixXd key;  // (D, H): sums over queries
    Eigen::VectorXd value;  // (Q)
    double inverse_energy = 0;  // sum of 1 / |x|^2
    std::int64_t residuals = 0;
    std::int64_t queries = 0;

    /// What turns sums over queries into a mean relative to the residual stream.
    double unit(call_site where) const {
      require(queries > 0 && residuals > 0, "sensitivity: every layer has queries and residual rows", where);
      return inverse_energy / static_cast<double>(residuals) / static_cast<double>(queries);
    }
  };

  layer_sums& at(int layer, call_site where) {
    require_range("layer", layer, 0, shape_.layers - 1, where);
    return layers_[static_cast<std::size_t>(layer)];
  }

  head_sums head(const layer_sums& l, const attention_sample& s, const coded_rows& coded, int h, std::int64_t tokens) const {
    using rows = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;
    const int kv = h / (shape_.query_heads / shape_.kv_heads), dim = shape_.key_dim;
    const rows keys(s.keys.data() + std::int64_t{kv} * dim, tokens, dim, Eigen::OuterStride<>(std::int64_t{shape_.kv_heads} * dim));
    const rows values(s.values.data() + std::int64_t{kv} * shape_.value_dim, tokens, shape_.value_dim,
                      Eigen::OuterStride<>(std::int64_t{shape_.kv_heads} * shape_.value_dim));
    const Eigen::MatrixXf& square = l.squares[static_cast<std::size_t>(h)];
    const Eigen::VectorXf lengths = (values * square).cwiseProduct(values).rowwise().sum();  // v^T W^T W v (T)
    const float scale = shape_.scale > 0 ? shape_.scale : 1 / std::sqrt(static_cast<float>(dim));
    head_sums sums;
    sums.key = Eigen::VectorXd::Zero(dim);
    for (std::size_t i = 0; i < s.positions.size(); ++i) {
      const std::int64_t here = s.positions[i], first_seen = coded.window > 0 ? std::max<std::int64_t>(0, here + 1 - coded.window) : 0;
      const std::int64_t first = std::max(coded.sinks, first_seen), last = here + 1 - coded.newest;
      if (first >= last) continue;
      const Eigen::Map<const Eigen::VectorXf> q(s.queries.data() + (static_cast<std::int64_t>(i) * shape_.query_heads + h) * dim, dim);
      Eigen::VectorXf a = keys.middleRows(first_seen, here + 1 - first_seen) * q * scale;  // a (seen)
      a = (a.array() - a.maxCoeff()).exp();
      a /= a.sum();
      const Eigen::VectorXf o = values.middleRows(first_seen, a.size()).transpose() * a;
      const Eigen::VectorXf turned = square * o;
      const Eigen::VectorXd shares = a.segment(first - first_seen, last - first).cast<double>().cwiseAbs2();
      const Eigen::VectorXf far = (lengths.segment(first, last - first) - 2 * values.middleRows(first, last - first) * turned).array() +
                                  o.dot(turned);  // |W (v_j - o)|^2
      const double gain = s.gain.empty() ? 1 : static_cast<double>(s.gain[i]) * static_cast<double>(s.gain[i]);
      const auto mass = static_cast<double>(a.segment(first - first_seen, last - first).sum());
      sums.value += gain * ((1 - common_share_) * shares.sum() + common_share_ * mass * mass);
      const double moved = gain * static_cast<double>(scale) * static_cast<double>(scale) * shares.dot(far.cast<double>().cwiseMax(0.0));
      sums.key += moved * q.cast<double>().cwiseAbs2();
    }
    return sums;
  }

  static std::vector<float> roots(const std::vector<double>& squares, double floor) {
    double mean = 0;
    for (const double x : squares) mean += x / static_cast<double>(squares.size());
    const double least = mean > 0 ? floor * std::sqrt(mean) : 1;
    std::vector<float> weights;
    weights.reserve(squares.size());
    for (const double x : squares) weights.push_back(static_cast<float>(std::max(std::sqrt(x), least)));
    return weights;
  }

  attention_shape shape_;
  double common_share_;
  std::vector<layer_sums> layers_;
};

}  // namespace kvx
