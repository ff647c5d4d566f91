#pragma once
// One pass of tokens through the model, cut at the attention: the caller's loop stands between `project` and `mix`.

#include "model.hpp"
#include "tokenizer.hpp"

#include <kvx/backend/host.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decode_loop {

/// What attention gets and gives in one layer, N tokens.
struct layer_rows {
  std::span<const float> q;                                             // (N, Q, D) after RoPE
  std::span<const float> k;                                             // (N, H, D) after RoPE
  std::span<const float> v;                                             // (N, H, D)
  std::span<const float> k0;                                            // (N, H, D) before RoPE, empty unless asked for
  std::span<float> out;                                                 // (N, Q, D)
};

/// The activations of a pass; reused from pass to pass, so that a decode step allocates nothing.
///
///   pass.embed(ids, position);
///   for (layer ...) { auto rows = pass.project(layer); <append rows.k, rows.v; attend rows.q into rows.out> pass.mix(layer); }
///   auto logits = pass.logits(1);
///
/// shapes      at most `most_tokens` tokens a pass
/// threads     those of `exec`, whose number must be set; the model must outlive the pass
/// errors      kvx::usage_error for a token outside the vocabulary or too many tokens
/// exactness   float; sums of products in Eigen's order
class forward_pass {
 public:
  forward_pass(const model& weights, const kvx::host& exec, std::size_t most_tokens);

  /// Starts a pass of tokens at positions [position, position + ids.size()).
  void embed(std::span<const token_id> ids, std::int64_t position);

  /// Starts a pass of tokens each at a position of its own: a batch of sequences, one token each.
  void embed(std::span<const token_id> ids, std::span<const std::int64_t> positions);

  /// RMSNorm, the three products, RoPE of q and k.
  layer_rows project(std::size_t layer, bool keep_k0 = false);

  /// Adds the output product of what attention left in `out`, then RMSNorm and the SwiGLU block.
  void mix(std::size_t layer);

  /// Logits of the last `count` tokens (count, vocabulary), valid until the next pass.
  std::span<const float> logits(std::size_t count);

  /// The residual stream (N, E): after the last layer that was mixed.
  std::span<const float> residual() const { return {x_.data(), tokens_ * model_.shape.embedding}; }

  std::size_t most_tokens() const { return most_tokens_; }
  const model& weights() const { return model_; }

 private:
  void normalise(const std::vector<float>& weight, std::size_t first_token);

  const model& model_;
  kvx::host exec_;
  std::size_t most_tokens_;
  std::size_t tokens_ = 0;                                              // N of the pass
  std::vector<std::int64_t> positions_;                                 // (N)
  rope_table rope_;
  std::vector<float> x_, normal_;                                       // (N, E)
  std::vector<float> q_, out_;                                          // (N, Q, D)
  std::vector<float> k_, v_, k0_;                                       // (N, H, D)
  std::vector<float> gate_, up_;                                        // (N, F)
  std::vector<float> logits_;                                           // (count, vocabulary)
};

}  // namespace decode_loop
