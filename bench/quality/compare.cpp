#include "compare.hpp"

#include <divergence.hpp>
#include <forward.hpp>
#include <sampler.hpp>

#include <kvx/core/check.hpp>

#include <memory>
#include <utility>

namespace quality {
namespace {

using decode_loop::any_cache;
using decode_loop::forward_pass;
using decode_loop::token_id;

std::int64_t signed_size(std::size_t n) { return static_cast<std::int64_t>(n); }

/// One step of every cache with the same token: row c of the pass belongs to cache c. Returns the logits (caches, vocabulary).
std::span<const float> step_together(forward_pass& pass, const kvx::host& exec, std::span<const std::unique_ptr<any_cache>> caches,
                                     token_id id) {
  const decode_loop::model_shape& s = pass.weights().shape;
  const std::vector<token_id> ids(caches.size(), id);
  const std::vector<std::int64_t> positions(caches.size(), caches.front()->length());
  pass.embed(ids, positions);
  for (const auto& cache : caches) cache->begin(1);
  for (std::size_t layer = 0; layer < s.layers; ++layer) {
    const decode_loop::layer_rows rows = pass.project(layer);
    kvx::for_each_task(exec, signed_size(caches.size()), [&](std::int64_t task) {
      const auto c = static_cast<std::size_t>(task);
      const std::size_t key = c * s.kv_heads * s.head_dim;
      const std::size_t query = c * s.query_heads * s.head_dim;
      caches[c]->append(static_cast<int>(layer), rows.k.data() + key, rows.v.data() + key);
      caches[c]->attend(static_cast<int>(layer), rows.q.data() + query, rows.out.data() + query);
    });
    pass.mix(layer);
  }
  for (const auto& cache : caches) cache->commit();
  return pass.logits(caches.size());
}

/// What the caches of `pass` hold: so many tokens, in all layers.
kvx::geometry geometry_of(const forward_pass& pass, std::size_t tokens) {
  const decode_loop::model_shape& s = pass.weights().shape;
  return {.layers = static_cast<int>(s.layers),
          .kv_heads = static_cast<int>(s.kv_heads),
          .query_heads = static_cast<int>(s.query_heads),
          .max_tokens = signed_size(std::max(tokens, pass.most_tokens())),
          .max_step_tokens = signed_size(pass.most_tokens()),
          .rope = s.turned_pairs()};
}

}  // namespace

std::vector<token_id> with_own_tail(forward_pass& pass, const kvx::host& exec, std::vector<token_id> ids, std::size_t prompt,
                                    std::size_t count, const progress_report& progress) {
  const std::size_t first = prompt - count;
  const auto cache = make_reference(exec, geometry_of(pass, prompt));
  decode_loop::sampler draw(.8, 1);
  auto logits = decode_loop::run_prompt(pass, *cache, std::span(ids).first(first),
                                        {.scored = 1, .progress = [&](std::size_t done) { progress("prompt", done, first); }});
  for (std::size_t i = 0; i < count; ++i) {
    ids[first + i] = draw(logits);
    logits = decode_loop::forward(pass, *cache, std::span<const token_id>(&ids[first + i], 1));
    progress("generate", i + 1, count);
  }
  return ids;
}

std::vector<scores> compare(forward_pass& pass, const kvx::host& exec, std::span<const method* const> methods,
                            std::span<const token_id> ids, std::size_t prompt, std::size_t scored, const progress_report& progress) {
  const auto here = kvx::call_site::here();
  const decode_loop::model_shape& s = pass.weights().shape;
  kvx::require_range("tokens of the text", signed_size(ids.size()), signed_size(prompt + scored + 1), std::int64_t{1} << 40, here);
  kvx::require_range("caches", signed_size(methods.size()) + 1, 1, signed_size(pass.most_tokens()), here);
  kvx::require_range("head dimension", signed_size(s.head_dim), head_dim, head_dim, here);

  kvx::geometry geometry = geometry_of(pass, prompt + scored);
  // The prompt's attention, the reference's alone, uses all threads; a decode step gives each cache to one of them.
  const kvx::host alone{.threads = 1};
  std::vector<std::unique_ptr<any_cache>> caches;
  caches.push_back(make_reference(exec, geometry));
  std::vector<any_cache*> copies;
  for (const method* m : methods) {
    geometry.kinds = kinds_of(*m, geometry.layers);
    copies.push_back(caches.emplace_back(m->make(alone, geometry)).get());
  }

  decode_loop::run_prompt(pass, *caches.front(), ids.first(prompt),
                          {.scored = 0, .copies = copies, .progress = [&](std::size_t done) { progress("prompt", done, prompt); }});

  std::vector<scores> result(caches.size());
  for (std::size_t i = 0; i < scored; ++i) {
    const std::size_t at = prompt + i;
    const auto logits = step_together(pass, exec, caches, ids[at]);
    const auto reference = logits.first(s.vocabulary);
    const auto log_p = decode_loop::log_probabilities(reference);
    const token_id best = decode_loop::most_likely(reference);
    kvx::for_each_task(exec, signed_size(caches.size()), [&](std::int64_t task) {
      const auto c = static_cast<std::size_t>(task);
      const auto said = logits.subspan(c * s.vocabulary, s.vocabulary);
      const auto log_q = decode_loop::log_probabilities(said);
      result[c].kl.push_back(kl(log_p, log_q));
      result[c].agrees.push_back(decode_loop::most_likely(said) == best ? 1 : 0);
      result[c].surprise.push_back(-log_q[static_cast<std::size_t>(ids[at + 1])]);
      const std::int64_t n = signed_size(at) + 1;
      result[c].attended.push_back(static_cast<double>(c == 0 ? n : attended(*methods[c - 1], n)));
    });
    progress("decode", i + 1, scored);
  }
  return result;
}

}  // namespace quality
