#pragma once
// The loop: forward passes of a model over a kvx cache, for a prompt and for one token after the other.

#include "any_cache.hpp"
#include "forward_pass.hpp"

#include <cstddef>
#include <functional>
#include <span>

namespace decode_loop {

/// Called after each layer's attention.
using layer_watch = std::function<void(std::size_t layer, const layer_rows& rows)>;

/// Runs `ids` behind what the cache holds; the tokens are part of it afterwards.
///
/// what        for each layer: products and RoPE, append, attend, output product and feed-forward
/// scored      logits of the last so many tokens are returned (scored, vocabulary), valid until the next pass
/// keep_k0     rows.k0 is filled for `watch`
/// errors      kvx::usage_error, kvx::capacity_error; the cache is then as before
std::span<const float> forward(forward_pass& pass, any_cache& cache, std::span<const token_id> ids, std::size_t scored = 1,
                               const layer_watch& watch = {}, bool keep_k0 = false);

/// What else happens while a prompt runs.
///
/// scored      logits wanted of the last so many tokens, all in the last chunk
/// copies      caches that take the same rows and see the same queries, without attention
/// progress    progress(tokens done) after every chunk
struct prompt_options {
  std::size_t scored = 1;
  std::span<any_cache* const> copies = {};
  layer_watch watch = {};
  bool keep_k0 = false;
  std::function<void(std::size_t done)> progress = {};
};

/// Runs a prompt in chunks of pass.most_tokens().
std::span<const float> run_prompt(forward_pass& pass, any_cache& cache, std::span<const token_id> ids, const prompt_options& options = {});

/// What a run of decode steps took, seconds.
struct decode_time {
  double all = 0;
  double attention = 0;
};

/// Feeds ids one at a time, whatever the model would have said; visit(i, logits) sees what it says after ids[i]. Its time is not counted.
decode_time decode(forward_pass& pass, any_cache& cache, std::span<const token_id> ids,
                   const std::function<void(std::size_t i, std::span<const float> logits)>& visit);

}  // namespace decode_loop
