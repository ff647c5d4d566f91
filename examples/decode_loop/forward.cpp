#include "forward.hpp"

#include <algorithm>
#include <chrono>

namespace decode_loop {

std::span<const float> forward(forward_pass& pass, any_cache& cache, std::span<const token_id> ids, std::size_t scored,
                               const layer_watch& watch, bool keep_k0) {
  pass.embed(ids, cache.length());
  cache.begin(static_cast<std::int64_t>(ids.size()));
  for (std::size_t layer = 0; layer < pass.weights().shape.layers; ++layer) {
    const layer_rows rows = pass.project(layer, keep_k0);
    cache.append(static_cast<int>(layer), rows.k.data(), rows.v.data());
    cache.attend(static_cast<int>(layer), rows.q.data(), rows.out.data());
    if (watch) watch(layer, rows);
    pass.mix(layer);
  }
  cache.commit();
  return pass.logits(scored);
}

std::span<const float> run_prompt(forward_pass& pass, any_cache& cache, std::span<const token_id> ids, const prompt_options& options) {
  const layer_watch watch = [&](std::size_t layer, const layer_rows& rows) {
    for (any_cache* copy : options.copies) {
      copy->append(static_cast<int>(layer), rows.k.data(), rows.v.data());
      copy->observe(static_cast<int>(layer), rows.q.data());
    }
    if (options.watch) options.watch(layer, rows);
  };
  std::span<const float> logits;
  for (std::size_t done = 0; done < ids.size();) {
    const std::size_t count = std::min(pass.most_tokens(), ids.size() - done);
    const bool last = done + count == ids.size();
    for (any_cache* copy : options.copies) copy->begin(static_cast<std::int64_t>(count));
    logits = forward(pass, cache, ids.subspan(done, count), last ? options.scored : 0, watch, options.keep_k0);
    for (any_cache* copy : options.copies) copy->commit();
    done += count;
    if (options.progress) options.progress(done);
  }
  return logits;
}

decode_time decode(forward_pass& pass, any_cache& cache, std::span<const token_id> ids,
                   const std::function<void(std::size_t i, std::span<const float> logits)>& visit) {
  decode_time time;
  cache.take_attention_seconds();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    const auto logits = forward(pass, cache, ids.subspan(i, 1));
    time.all += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    visit(i, logits);
  }
  time.attention = cache.take_attention_seconds();
  return time;
}

}  // namespace decode_loop
