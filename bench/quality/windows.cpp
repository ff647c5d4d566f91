#include "windows.hpp"

#include "scores.hpp"

#include <caches.hpp>
#include <comparison.hpp>
#include <divergence.hpp>
#include <forward.hpp>
#include <sampler.hpp>

#include <kvx/codec/token_predictor.hpp>

#include <algorithm>
#include <cmath>

namespace quality {
namespace {

using decode_loop::token_id;

/// The rows [first, end) of a context.
context_rows middle(const context_rows& all, std::int64_t first, std::int64_t end) {
  context_rows part;
  part.tokens = end - first;
  part.first_position = first;
  const auto cut = [&](const auto& x) {
    const auto row = static_cast<std::ptrdiff_t>(x.size()) / all.tokens;
    return std::vector(x.begin() + first * row, x.begin() + end * row);
  };
  part.keys = cut(all.keys);
  part.values = cut(all.values);
  part.inputs = cut(all.inputs);
  return part;
}

}  // namespace

std::vector<window> run_windows(decode_loop::forward_pass& pass, const kvx::host& exec, std::span<const named_text> texts,
                                const decode_loop::tokenizer& words) {
  const decode_loop::model_shape& s = pass.weights().shape;
  const std::size_t row = s.kv_heads * s.head_dim, all = s.layers * row;
  std::vector<window> windows;
  for (const named_text& text : texts) {
    constexpr std::size_t contexts[] = {1024, 1536, 2048};
    const auto ids = read_tokens(text, words, 1024 + 1536 + 2048 + 3 * window_scored);
    std::size_t first = 0;
    for (const std::size_t context : contexts) {
      window& w = windows.emplace_back();
      w.text = text.name;
      w.context = context;
      w.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(first),
                   ids.begin() + static_cast<std::ptrdiff_t>(first + context + window_scored));
      first += w.ids.size();
      w.all.tokens = static_cast<std::int64_t>(context);
      w.all.keys.resize(context * all);
      w.all.values.resize(context * all);
      w.all.inputs.resize(context * 2 * s.embedding);
      const auto cache = decode_loop::make_reference(exec, decode_loop::request_for(s, w.ids.size(), pass.most_tokens(), 0));
      std::size_t done = 0;
      decode_loop::run_prompt(pass, *cache, std::span(w.ids).first(context),
                              {.scored = 0,
                               .copies = {},
                               .watch =
                                   [&](std::size_t layer, const decode_loop::layer_rows& r) {
                                     for (std::size_t i = 0; i < r.k.size(); ++i) {
                                       const std::size_t at = (done + i / row) * all + layer * row + i % row;
                                       w.all.keys[at] = kvx::round_to<kvx::bf16>(r.k[i]);
                                       w.all.values[at] = kvx::round_to<kvx::bf16>(r.v[i]);
                                     }
                                   },
                               .keep_k0 = false,
                               .progress = [&](std::size_t end) { done = end; }});
      const auto embedding = [&](std::size_t t) {
        return pass.weights().embedding.data() + static_cast<std::size_t>(w.ids[t]) * s.embedding;
      };
      const auto width = static_cast<std::int64_t>(s.embedding);
      for (std::size_t t = 0; t < context; ++t) {
        float* const z = w.all.inputs.data() + t * 2 * s.embedding;
        kvx::normed_embedding(embedding(t), width, z);
        kvx::normed_embedding(t > 0 ? embedding(t - 1) : nullptr, width, z + width);
      }
      const auto logits = decode_loop::forward(pass, *cache, std::span(w.ids).subspan(context), window_scored);
      for (std::size_t t = 0; t < window_scored; ++t) {
        for (const double p : decode_loop::log_probabilities(logits.subspan(t * s.vocabulary, s.vocabulary))) {
          w.log_p.push_back(static_cast<float>(p));
        }
      }
      w.coded = middle(w.all, window_sinks, static_cast<std::int64_t>(context) - window_recent);
      show_progress("windows", windows.size(), 3 * texts.size());
    }
  }
  return windows;
}

scores score_window(decode_loop::forward_pass& pass, const kvx::host& exec, const window& w, const coded_rows& rows) {
  const decode_loop::model_shape& s = pass.weights().shape;
  const std::size_t row = s.kv_heads * s.head_dim, all = s.layers * row;
  const auto cache =
      decode_loop::find_cache("full")->make(exec, decode_loop::request_for(s, w.ids.size(), std::max(w.context, window_scored), 0));
  cache->begin(static_cast<std::int64_t>(w.context));
  std::vector<float> k(w.context * row), v(k.size());
  for (std::size_t layer = 0; layer < s.layers; ++layer) {
    for (std::size_t t = 0; t < w.context; ++t) {
      const auto position = static_cast<std::int64_t>(t);
      const bool coded = position >= window_sinks && position < static_cast<std::int64_t>(w.context) - window_recent;
      const std::size_t at = (coded ? t - static_cast<std::size_t>(window_sinks) : t) * all + layer * row;
      for (std::size_t i = 0; i < row; ++i) {
        k[t * row + i] = kvx::to_float(coded ? rows.keys[at + i] : w.all.keys[at + i]);
        v[t * row + i] = kvx::to_float(coded ? rows.values[at + i] : w.all.values[at + i]);
      }
    }
    cache->append(static_cast<int>(layer), k.data(), v.data());
  }
  cache->commit();
  const auto logits = decode_loop::forward(pass, *cache, std::span(w.ids).subspan(w.context), window_scored);
  scores got;
  for (std::size_t t = 0; t < window_scored; ++t) {
    const auto said = logits.subspan(t * s.vocabulary, s.vocabulary);
    const auto log_q = decode_loop::log_probabilities(said);
    const auto reference = std::span(w.log_p).subspan(t * s.vocabulary, s.vocabulary);
    const std::vector<double> log_p(reference.begin(), reference.end());
    got.kl.push_back(kl(log_p, log_q));
    got.agrees.push_back(decode_loop::most_likely(said) == decode_loop::most_likely(reference) ? 1 : 0);
    if (t + 1 < window_scored) got.surprise.push_back(-log_q[static_cast<std::size_t>(w.ids[w.context + t + 1])]);
  }
  return got;
}

std::vector<double> dense_surprise(const window& w) {
  const std::size_t vocabulary = w.log_p.size() / window_scored;
  std::vector<double> surprise;
  for (std::size_t t = 0; t + 1 < window_scored; ++t) {
    surprise.push_back(-static_cast<double>(w.log_p[t * vocabulary + static_cast<std::size_t>(w.ids[w.context + t + 1])]));
  }
  return surprise;
}

}  // namespace quality
