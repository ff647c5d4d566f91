#pragma once
// Rows of a context through a calibrated codec, as bytes and back: what a store would keep, and what a cache would get again.

#include <kvx/backend/host.hpp>
#include <kvx/codec/calibration.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/codec/host/chain.hpp>
#include <kvx/codec/level_alphabets.hpp>
#include <kvx/transform/eigen_product.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace quality {

/// Rows of consecutive tokens, all layers of each: K after RoPE and V in bf16, token by token.
///
/// shapes      keys (n, L, H, D), values (n, L, H, Dv); inputs (n, 2 E) normed embeddings of the token and the one before
struct context_rows {
  std::int64_t tokens = 0;
  std::int64_t first_position = 0;
  std::vector<kvx::bf16> keys, values;
  std::vector<float> inputs;
};

/// What came back, and what it cost.
///
/// bytes       chunks with their headers, 48 bytes of the frame's table for each (offset, length, checksum), 4 a token for its id where a
///             predictor needs them
/// error       squared, a token, of K before RoPE and V together
struct coded_rows {
  std::int64_t bytes = 0;
  double key_error = 0, value_error = 0;
  double cross_entropy_bits = 0;                                        // of the symbols under the tables used, entropy-first alone
  std::int64_t stream_bytes = 0;                                        // of the chunks' streams alone
  std::vector<kvx::bf16> keys, values;                                  // as in context_rows; empty where only bytes were asked for
};

using row_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Floats of stored halves (rows, columns).
inline row_matrix floats(const std::vector<kvx::half>& x, std::int64_t rows, std::int64_t columns) {
  row_matrix m(rows, columns);
  for (std::size_t i = 0; i < x.size(); ++i) m.data()[i] = kvx::to_float(x[i]);
  return m;
}

/// A calibration made ready: tables, alphabets of plans, predictors as floats.
class ready_calibration {
 public:
  explicit ready_calibration(const kvx::calibration& c) : calibration_(c), tables_(c.rounding) {
    for (const auto* parts : {&c.keys, &c.values}) {
      for (const kvx::span_basis& b : *parts) {
        alphabets_.push_back(b.levels.empty() ? nullptr : std::make_unique<kvx::level_alphabets>(b.plan, b.levels));
      }
    }
  }

  const kvx::calibration& of() const { return calibration_; }
  const kvx::scale_tables& tables() const { return tables_; }
  kvx::span_model model(std::size_t span, bool is_key) const {
    const kvx::span_basis& b = (is_key ? calibration_.keys : calibration_.values)[span];
    const auto& alphabets = alphabets_[span + (is_key ? 0 : calibration_.spans.size())];
    kvx::span_model m;
    m.basis = b.view();
    m.scales = b.scales.data();
    m.tables = &tables_;
    m.plan = &b.plan;
    if (alphabets) m.levels = alphabets->model();
    return m;
  }

 private:
  const kvx::calibration& calibration_;
  kvx::scale_tables tables_;
  std::vector<std::unique_ptr<kvx::level_alphabets>> alphabets_;
};

/// Bits of a chunk's symbols under the alphabets of its components, escapes with their bytes.
inline double entropy_bits(const kvx::host& exec, const kvx::span_model& model, const kvx::tensor_view<const float, 2>& rows,
                           int log2_step) {
  const std::int64_t components = kvx::coded_components(model.scales, model.basis.rank, log2_step), tokens = rows.extents[0];
  std::vector<float> x(static_cast<std::size_t>(components * tokens));
  if (!kvx::pca_project(exec, kvx::eigen_products(), model.basis, rows, components, x.data(), tokens)) return 0;
  double bits = 0;
  for (std::int64_t c = 0; c < components; ++c) {
    const kvx::symbol_lookup& table = model.tables->lookup(kvx::table_of_scale(model.scales[c], log2_step));
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float at = x[static_cast<std::size_t>(c * tokens + t)];
      const std::int32_t v = kvx::quantised(at, kvx::power_of_code(-log2_step), model.tables->rounding());
      const kvx::symbol_of_value symbol = kvx::find_symbol(table, v);
      bits += kvx::rans_bits - std::log2(static_cast<double>(table.frequencies[symbol.symbol])) + table.raw_bits;
      if (symbol.escaped) bits += kvx::escape_code(symbol.distance) < 255 ? 8 : 24;
    }
  }
  return bits;
}

/// Codes rows in chunks of 256 tokens and a span, and decodes them again unless `bytes_only`.
///
/// errors      std::runtime_error where a chunk does not come back
template <class Codec>
coded_rows code_rows(const kvx::host& exec, const Codec& codec, const ready_calibration& ready, const context_rows& rows, int log2_step,
                     bool bytes_only) {
  constexpr std::int64_t chunk = 256;
  const kvx::calibration& c = ready.of();
  const std::int64_t heads = c.shape.kv_heads;
  coded_rows result;
  if (!bytes_only) {
    result.keys.resize(rows.keys.size());
    result.values.resize(rows.values.size());
  }
  struct task {
    std::int64_t first = 0;
    std::size_t span = 0;
    bool is_key = false;
    std::int64_t bytes = 0;
    double error = 0;
    double entropy = 0;
  };
  std::vector<task> tasks;
  for (std::int64_t t = 0; t < rows.tokens; t += chunk) {
    for (std::size_t s = 0; s < c.spans.size(); ++s) {
      tasks.push_back({t, s, true});
      tasks.push_back({t, s, false});
    }
  }
  const kvx::host alone{.threads = 1};
  const auto product = kvx::eigen_products();
  kvx::for_each_task(exec, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t number) {
    task& work = tasks[static_cast<std::size_t>(number)];
    const kvx::feature_span& span = c.spans[work.span];
    const kvx::span_basis& basis = (work.is_key ? c.keys : c.values)[work.span];
    const std::int64_t dim = work.is_key ? c.shape.key_dim : c.shape.value_dim, n = std::min(chunk, rows.tokens - work.first);
    const std::int64_t features = basis.features(), row = heads * dim, all = c.shape.layers * row;
    std::vector<std::int64_t> positions(static_cast<std::size_t>(n));
    for (std::int64_t t = 0; t < n; ++t) positions[static_cast<std::size_t>(t)] = rows.first_position + work.first + t;
    std::vector<kvx::rope_turns> turns;
    for (const kvx::rope& r : c.turns) turns.emplace_back(r, positions);
    const auto& source = work.is_key ? rows.keys : rows.values;
    const auto turn = [&](row_matrix& x, bool forwards) {
      for (std::int64_t t = 0; work.is_key && t < n; ++t) {
        for (std::size_t h = 0; h < static_cast<std::size_t>(span.rows()); ++h) {
          const auto layer = static_cast<std::size_t>(span.layers[h / static_cast<std::size_t>(span.heads)]);
          const kvx::rope_turns& of = turns[c.turn_of_layer[layer]];
          kvx::turn_key(x.row(t).data() + static_cast<std::int64_t>(h) * dim, of.pairs(), of.of(t), of.magnitude(), forwards);
        }
      }
    };
    row_matrix x(n, features);
    for (std::int64_t t = 0; t < n; ++t) {
      std::vector<float> token(static_cast<std::size_t>(all));
      for (std::int64_t i = 0; i < all; ++i) {
        token[static_cast<std::size_t>(i)] = kvx::to_float(source[static_cast<std::size_t>((work.first + t) * all + i)]);
      }
      kvx::gather_features(span, token.data(), heads, dim, x.row(t).data());
    }
    turn(x, false);
    const kvx::token_predictor& predictor = work.is_key ? c.key_predictor : c.value_predictor;
    row_matrix prediction;
    if (!predictor.empty()) {
      const std::int64_t width = 2 * predictor.embedding;
      const Eigen::Map<const row_matrix> z(rows.inputs.data() + work.first * width, n, width);
      prediction = z * floats(predictor.inputs, width, predictor.rank) * floats(basis.outputs, predictor.rank, features);
      x -= prediction;
    }
    const kvx::span_model model = ready.model(work.span, work.is_key);
    std::vector<std::byte> bytes(static_cast<std::size_t>(kvx::chunk_bound<float>(n, features)));
    const kvx::tensor_view<const float, 2> in(x.data(), n, features);
    if (!kvx::encode_chunk<Codec, float>(alone, product, codec, model, in, {}, log2_step, bytes, work.bytes).ok()) work.bytes = -1;
    if (bytes_only || work.bytes < 0) return;
    if constexpr (std::same_as<Codec, kvx::kvtc_entropy>) work.entropy = entropy_bits(alone, model, in, log2_step);
    kvx::opened_chunk<float> opened;
    const auto written = std::span(bytes).first(static_cast<std::size_t>(work.bytes));
    if (!kvx::open_chunk<Codec, float>(alone, codec, model, written, n, features, opened).ok()) {
      work.bytes = -1;
      return;
    }
    row_matrix back(n, features);
    kvx::restore_rows<float>(alone, product, model, opened, {}, 0, kvx::tensor_view<float, 2>(back.data(), n, features));
    work.error = static_cast<double>((back - x).squaredNorm());
    if (!predictor.empty()) back += prediction;
    turn(back, true);
    auto& out = work.is_key ? result.keys : result.values;
    for (std::int64_t t = 0; t < n; ++t) {
      const float* from = back.row(t).data();
      for (const std::int32_t l : span.layers) {
        kvx::bf16* const to = out.data() + (work.first + t) * all + (l * heads + span.first_head) * dim;
        for (std::int64_t i = 0; i < span.heads * dim; ++i) to[i] = kvx::round_to<kvx::bf16>(*from++);
      }
    }
  });
  for (const task& t : tasks) {
    if (t.bytes < 0) throw std::runtime_error("a chunk did not come back from the codec");
    result.bytes += t.bytes + static_cast<std::int64_t>(sizeof(kvx::frame_section));
    result.stream_bytes += t.bytes - static_cast<std::int64_t>(sizeof(kvx::chunk_header));
    result.cross_entropy_bits += t.entropy;
    (t.is_key ? result.key_error : result.value_error) += t.error / static_cast<double>(rows.tokens);
  }
  if (c.predicted()) result.bytes += 4 * rows.tokens;
  return result;
}

/// Bytes of the rows in bf16 over those that were written.
inline double ratio_of(const context_rows& rows, const coded_rows& coded) {
  return 2 * static_cast<double>(rows.keys.size() + rows.values.size()) / static_cast<double>(coded.bytes);
}

}  // namespace quality
