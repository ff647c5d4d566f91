#include "drift_on.hpp"

#include "caches.hpp"
#include "comparison.hpp"
#include "forward.hpp"

#include <kvx/codec/token_predictor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace decode_loop {

kvx::drift_report drift_on(forward_pass& pass, const kvx::host& exec, std::span<const std::vector<token_id>> passages,
                           const kvx::calibration& calibration, const std::function<void(std::string_view what, double done)>& progress) {
  const model_shape& s = pass.weights().shape;
  const std::size_t row = s.kv_heads * s.head_dim, all = s.layers * row, width = s.embedding;
  const auto sinks = static_cast<std::size_t>(calibration.sinks);
  std::size_t longest = 0, tokens = 0;
  for (const auto& p : passages) {
    longest = std::max(longest, p.size());
    tokens += p.size() - std::min(p.size(), sinks);
  }
  std::vector<float> keys(tokens * all), values(tokens * all), inputs(calibration.predicted() ? tokens * 2 * width : 0);
  const auto cache = make_reference(exec, request_for(s, longest, pass.most_tokens(), 0));
  std::size_t first = 0;                                                // of the passage's rows among all
  for (std::size_t p = 0; p < passages.size(); ++p) {
    const auto& ids = passages[p];
    cache->clear();
    progress("passages", static_cast<double>(p) / static_cast<double>(passages.size()));
    std::size_t done = 0;
    const auto watch = [&](std::size_t layer, const layer_rows& r) {
      for (std::size_t t = 0; t < r.v.size() / row; ++t) {
        if (done + t < sinks) continue;
        const std::size_t at = (first + done + t - sinks) * all + layer * row;
        std::copy_n(r.k0.data() + t * row, row, keys.data() + at);
        std::copy_n(r.v.data() + t * row, row, values.data() + at);
      }
    };
    run_prompt(pass, *cache, ids,
               {.scored = 0, .copies = {}, .watch = watch, .keep_k0 = true, .progress = [&](std::size_t end) { done = end; }});
    for (std::size_t t = sinks; t < ids.size(); ++t, ++first) {
      if (inputs.empty()) continue;
      const auto embedding = [&](std::size_t i) {
        return i == 0 ? nullptr : pass.weights().embedding.data() + static_cast<std::size_t>(ids[i - 1]) * width;
      };
      float* const z = inputs.data() + first * 2 * width;
      kvx::normed_embedding(embedding(t + 1), static_cast<std::int64_t>(width), z);
      kvx::normed_embedding(embedding(t), static_cast<std::int64_t>(width), z + width);
    }
  }
  progress("done", 1);
  return kvx::measure_drift(exec, calibration, {keys, values, inputs});
}

}  // namespace decode_loop
