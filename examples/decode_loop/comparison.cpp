#include "comparison.hpp"

#include "divergence.hpp"
#include "sampler.hpp"

#include <chrono>
#include <utility>

namespace decode_loop {
namespace {

using held = std::vector<std::unique_ptr<any_cache>>;

held make_all(const kvx::host& exec, const cache_request& request, std::span<const cache_choice* const> choices) {
  held caches;
  for (const cache_choice* choice : choices) caches.push_back(choice->make(exec, request));
  return caches;
}

/// The prompt through the reference; the same rows into the others.
void fill(forward_pass& pass, any_cache& reference, const held& others, std::span<const token_id> ids) {
  std::vector<any_cache*> copies;
  for (const auto& cache : others) copies.push_back(cache.get());
  progress bar("prompt", ids.size());
  run_prompt(pass, reference, ids, {.scored = 0, .copies = copies, .progress = [&](std::size_t done) { bar(done); }});
}

double per_token(std::int64_t bytes, const any_cache& cache) { return static_cast<double>(bytes) / static_cast<double>(cache.length()); }

}  // namespace

cache_request request_for(const model_shape& shape, std::size_t tokens, std::size_t step_tokens, std::int64_t keep) {
  return {.layers = static_cast<int>(shape.layers),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .query_heads = static_cast<int>(shape.query_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .max_tokens = static_cast<std::int64_t>(tokens),
          .max_step_tokens = static_cast<std::int64_t>(step_tokens),
          .keep = keep,
          .rope = shape.turned_pairs()};
}

compared compare(forward_pass& pass, const kvx::host& exec, std::span<const token_id> ids, std::size_t context,
                 std::span<const cache_choice* const> choices, std::int64_t keep, const codec_files* codecs) {
  const model_shape& shape = pass.weights().shape;
  cache_request request = request_for(shape, ids.size(), pass.most_tokens(), keep);
  request.codecs = codecs;
  const auto reference = make_reference(exec, request);
  const held caches = make_all(exec, request, choices);
  const auto start = std::chrono::steady_clock::now();
  fill(pass, *reference, caches, ids.first(context));
  const double prompt_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  table stored{{"stored", "tokens", "bytes", "times smaller", "save s", "restore s", "prompt s"}, {}};
  const double rows = 4 * static_cast<double>(context * shape.layers * shape.kv_heads * shape.head_dim);
  for (std::size_t c = 0; c < caches.size(); ++c) {
    const auto cost = caches[c]->store(ids.first(context));
    if (!cost) continue;
    stored.rows.push_back({std::string(choices[c]->name), std::to_string(context), std::to_string(cost->bytes),
                           number(rows / static_cast<double>(cost->bytes), 1), number(cost->save_seconds, 2),
                           number(cost->restore_seconds, 2), number(prompt_seconds, 2)});
  }

  const auto fed = ids.subspan(context, ids.size() - context - 1);
  std::vector<float> expected;                                          // (fed, vocabulary)
  progress reference_bar("reference, fp32", fed.size());
  decode(pass, *reference, fed, [&](std::size_t i, std::span<const float> logits) {
    expected.insert(expected.end(), logits.begin(), logits.end());
    reference_bar(i + 1);
  });

  table result{
      {"cache", "context", "near B/token", "all B/token", "attention ms", "tokens/s", "KL mean", "KL median", "top-1", "perplexity"}, {}};
  for (std::size_t c = 0; c < caches.size(); ++c) {
    any_cache& cache = *caches[c];
    divergence measured;
    progress bar(choices[c]->name, fed.size());
    const auto time = decode(pass, cache, fed, [&](std::size_t i, std::span<const float> logits) {
      measured.add(std::span(expected).subspan(i * shape.vocabulary, shape.vocabulary), logits, ids[context + i + 1]);
      bar(i + 1);
    });
    const auto stats = cache.stats();
    const double steps = static_cast<double>(fed.size());
    result.rows.push_back({std::string(choices[c]->name), std::to_string(context), number(per_token(stats.near_bytes(), cache), 0),
                           number(per_token(stats.near_bytes() + stats.far_bytes, cache), 0), number(1e3 * time.attention / steps, 2),
                           number(steps / time.all, 1), number(measured.kl_mean(), 4), number(measured.kl_median(), 4),
                           number(measured.top1(), 3), number(measured.perplexity(), 3)});
  }
  return {std::move(result), std::move(stored)};
}

table ask_passkey(forward_pass& pass, const kvx::host& exec, const tokenizer& words, std::span<const token_id> prose,
                  std::span<const cache_choice* const> choices, std::int64_t keep) {
  constexpr std::size_t length = 2100;                                  // tokens of the whole prompt
  constexpr std::string_view key = " 71432";
  const auto told = words.encode("\nThe pass key is 71432. Remember it: the pass key is 71432.\n");
  const auto asked = words.encode("\nThe pass key is");
  const std::size_t around = std::min(prose.size(), length - told.size() - asked.size());
  const std::size_t depth = around / 2;

  std::vector<token_id> prompt(prose.begin(), prose.begin() + static_cast<std::ptrdiff_t>(depth));
  prompt.insert(prompt.end(), told.begin(), told.end());
  prompt.insert(prompt.end(), prose.begin() + static_cast<std::ptrdiff_t>(depth), prose.begin() + static_cast<std::ptrdiff_t>(around));
  prompt.insert(prompt.end(), asked.begin(), asked.end());

  const std::size_t answer_tokens = words.encode(key).size();
  const cache_request request = request_for(pass.weights().shape, prompt.size() + answer_tokens, pass.most_tokens(), keep);
  const auto reference = make_reference(exec, request);
  const held caches = make_all(exec, request, choices);
  fill(pass, *reference, caches, std::span(prompt).first(prompt.size() - 1));

  table result{{"cache", "context", "pass key", "answer"}, {}};
  for (std::size_t c = 0; c < caches.size(); ++c) {
    std::string answer;
    token_id next = prompt.back();
    for (std::size_t i = 0; i < answer_tokens; ++i) {
      next = most_likely(forward(pass, *caches[c], std::span(&next, 1)));
      answer += words.decode(next);
    }
    for (char& letter : answer) letter = letter == '\n' ? ' ' : letter;
    result.rows.push_back({std::string(choices[c]->name), std::to_string(prompt.size()), answer == key ? "right" : "wrong", answer});
  }
  return result;
}

}  // namespace decode_loop
