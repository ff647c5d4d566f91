#pragma once
// Nine contexts of three kinds of text: what a model computes for each, and how far its next predictions move when rows are replaced.

#include "coded_rows.hpp"
#include "command_line.hpp"
#include "scores.hpp"

#include <any_cache.hpp>
#include <forward_pass.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace quality {

/// Tokens after a context that are scored, and the rows of a context that are not coded.
inline constexpr std::size_t window_scored = 128;
inline constexpr std::int64_t window_sinks = 4, window_recent = 128;

/// A context with the rows of its middle, and the dense reference's log-probabilities of what follows.
struct window {
  std::string text;
  std::vector<decode_loop::token_id> ids;                               // the context and the scored tokens
  std::size_t context = 0;
  context_rows all;                                                     // every row of the context
  context_rows coded;                                                   // those between the sinks and the newest
  std::vector<float> log_p;                                             // (scored, vocabulary)
};

/// Contexts of 1,024, 1,536 and 2,048 tokens of each text, one behind the other, run dense in fp32.
std::vector<window> run_windows(decode_loop::forward_pass& pass, const kvx::host& exec, std::span<const named_text> texts,
                                const decode_loop::tokenizer& words);

/// The scored tokens behind a context whose middle rows are these, in a cache of bf16: KL, agreement and surprise of each; of the surprise
/// one less, since nothing follows the last.
scores score_window(decode_loop::forward_pass& pass, const kvx::host& exec, const window& w, const coded_rows& rows);

/// The dense reference's own surprise at the scored tokens.
std::vector<double> dense_surprise(const window& w);

}  // namespace quality
