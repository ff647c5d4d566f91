#pragma once
// Which rows of a token are transformed together: a span of layers and KV heads, whose dims make one feature vector.

#include <kvx/core/check.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Layers ascending; in each the heads [first_head, first_head + heads); in each the dims.
struct feature_span {
  std::vector<std::int32_t> layers;
  std::int32_t first_head = 0;
  std::int32_t heads = 0;

  std::int64_t rows() const { return static_cast<std::int64_t>(layers.size()) * heads; }
  std::int64_t features(std::int64_t dim) const { return rows() * dim; }
  friend bool operator==(const feature_span&, const feature_span&) = default;
};

/// Consecutive layers in `blocks` spans of almost equal length; the default of entropy-first streams is three.
///
/// errors      usage_error: no layers or heads, more blocks than layers
inline std::vector<feature_span> blocks_of_layers(int layers, int heads, int blocks = 3, call_site where = call_site::here()) {
  require_range("layers", layers, 1, 1 << 16, where);
  require_range("KV heads", heads, 1, 1 << 16, where);
  require_range("blocks of layers", blocks, 1, layers, where);
  std::vector<feature_span> spans(static_cast<std::size_t>(blocks));
  for (int b = 0; b < blocks; ++b) {
    feature_span& s = spans[static_cast<std::size_t>(b)];
    s.heads = heads;
    for (int l = layers * b / blocks; l < layers * (b + 1) / blocks; ++l) s.layers.push_back(l);
  }
  return spans;
}

/// All layers in one span: the paper's.
inline std::vector<feature_span> whole_model(int layers, int heads, call_site where = call_site::here()) {
  return blocks_of_layers(layers, heads, 1, where);
}

/// A span a layer.
inline std::vector<feature_span> single_layers(int layers, int heads, call_site where = call_site::here()) {
  return blocks_of_layers(layers, heads, layers, where);
}

/// A span for every class of layers, in the order of class numbers: layers that differ in kind (window and full) share no basis.
///
/// shapes      class_of (layers); a negative class: the layer is left out
inline std::vector<feature_span> classes_of_layers(std::span<const int> class_of, int heads, call_site where = call_site::here()) {
  require_range("KV heads", heads, 1, 1 << 16, where);
  const int most = class_of.empty() ? -1 : *std::max_element(class_of.begin(), class_of.end());
  require_range("classes of layers", most + 1, 1, 1 << 16, where);
  std::vector<feature_span> spans(static_cast<std::size_t>(most + 1));
  for (std::size_t l = 0; l < class_of.size(); ++l) {
    if (class_of[l] >= 0) spans[static_cast<std::size_t>(class_of[l])].layers.push_back(static_cast<std::int32_t>(l));
  }
  std::erase_if(spans, [](const feature_span& s) { return s.layers.empty(); });
  for (feature_span& s : spans) s.heads = heads;
  return spans;
}

/// The same layers, some of their heads: what one rank of a tensor-parallel model holds.
inline std::vector<feature_span> with_heads(std::vector<feature_span> spans, int first, int count, call_site where = call_site::here()) {
  for (feature_span& s : spans) {
    require_range("first head", first, 0, s.heads - 1, where);
    require_range("heads", count, 1, s.heads - first, where);
    s.first_head += first;
    s.heads = count;
  }
  return spans;
}

/// Rows of a token, all layers and heads one after the other, as the features of a span.
///
/// shapes      token (layers, heads, dim) of the whole model; out (span.features(dim))
inline void gather_features(const feature_span& span, const float* token, std::int64_t heads, std::int64_t dim, float* out) {
  for (const std::int32_t l : span.layers) {
    out = std::copy_n(token + (l * heads + span.first_head) * dim, span.heads * dim, out);
  }
}

/// Features of a span back to their places.
inline void scatter_features(const feature_span& span, const float* features, std::int64_t heads, std::int64_t dim, float* token) {
  for (const std::int32_t l : span.layers) {
    std::copy_n(features, span.heads * dim, token + (l * heads + span.first_head) * dim);
    features += span.heads * dim;
  }
}

}  // namespace kvx
