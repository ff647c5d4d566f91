#pragma once
// The weights of a Llama-family model: shapes checked against the file's metadata, values as floats.

#include "gguf.hpp"
#include "rope.hpp"

#include <kvx/sketch/balance.hpp>

#include <cstddef>
#include <vector>

namespace decode_loop {

/// The numbers that give a model its form. E embedding, F feed-forward, L layers, Q query heads, H KV heads, D head dimension.
struct model_shape {
  std::size_t layers = 0;
  std::size_t embedding = 0;
  std::size_t feed_forward = 0;
  std::size_t query_heads = 0;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t vocabulary = 0;
  std::size_t context = 0;                                              // tokens it was trained for
  double rope_base = 10000;
  float epsilon = 1e-5F;                                                // of RMSNorm
  rope_pairs pairs = rope_pairs::interleaved;

  /// What a cache is told of the rotary embedding.
  kvx::rope_pairs turned_pairs() const {
    using order = kvx::rope_pairs::order;
    return {pairs == rope_pairs::interleaved ? order::interleaved : order::halves, static_cast<int>(head_dim)};
  }

  /// Multiplications and additions of the matrix products of one token, without the output embedding.
  double product_operations() const;
};

/// Weights of one layer, each (out, in) row by row.
struct model_layer {
  std::vector<float> attention_norm;                                    // (E)
  std::vector<float> query, key, value;                                 // (Q D, E) (H D, E) (H D, E)
  std::vector<float> query_bias, key_bias, value_bias;                  // (Q D) (H D) (H D), empty where the model has none
  std::vector<float> output;                                            // (E, Q D)
  std::vector<float> feed_norm;                                         // (E)
  std::vector<float> gate, up, down;                                    // (F, E) (F, E) (E, F)
};

/// A model, read only after it is made.
///
/// what        architecture "llama" (weights permuted for interleaved pairs) or "qwen2" (half-split pairs, biases); the embedding is
///             the output matrix where the file holds none of its own
/// errors      file_error that names the key or tensor: another architecture, scaled RoPE, shapes that do not fit together
/// cost        four bytes a weight
struct model {
  model() = default;
  explicit model(const gguf& file);

  model_shape shape;
  std::vector<float> embedding;                                         // (vocabulary, E)
  std::vector<model_layer> layers;
  std::vector<float> output_norm;                                       // (E)
  std::vector<float> own_output;                                        // (vocabulary, E), empty: tied to the embedding

  const std::vector<float>& output() const { return own_output.empty() ? embedding : own_output; }
};

}  // namespace decode_loop
