#pragma once
// The comparison: one long prompt, then the same tokens decoded through every cache type, against the full cache in fp32.

#include "caches.hpp"
#include "forward.hpp"
#include "report.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace decode_loop {

/// What a cache for this model needs to hold `tokens` tokens.
cache_request request_for(const model_shape& shape, std::size_t tokens, std::size_t step_tokens, std::int64_t keep);

/// What a comparison shows.
///
/// decoded     cache · context · near bytes per token (columns, resident rows, slots) · bytes in all per token · attention ms per token ·
///             tokens/s · KL to the reference, mean and median, nats · top-1 agreement · perplexity
/// stored      of caches whose prompt went through a file: bytes · rows of the prompt in 16 bits over them · seconds to save and restore ·
///             seconds of the prompt, which filled all caches; no rows where no cache was stored
struct compared {
  table decoded;
  table stored;
};

/// The prompt of `context` tokens, run once; its rows are in every cache, in some by way of a store. Then ids[context ...] are fed to each.
///
/// what        ids holds the prompt, the tokens that are fed, and one more: the last is predicted only
compared compare(forward_pass& pass, const kvx::host& exec, std::span<const token_id> ids, std::size_t context,
                 std::span<const cache_choice* const> choices, std::int64_t keep, const codec_files* codecs = nullptr);

/// A question about one sentence of a long text, answered through every cache: a row of cache, answer, right or wrong.
table ask_passkey(forward_pass& pass, const kvx::host& exec, const tokenizer& words, std::span<const token_id> prose,
                  std::span<const cache_choice* const> choices, std::int64_t keep);

}  // namespace decode_loop
