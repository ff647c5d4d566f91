#include "model_heads.hpp"

#include "method.hpp"

#include <forward.hpp>

#include <kvx/core/element.hpp>

#include <algorithm>

namespace quality {
namespace {

bool learned_from(std::int64_t position) { return position >= sink && position < 1024 && position % 8 == 7; }

void append(std::vector<float>& to, const float* row, int count) { to.insert(to.end(), row, row + count); }

}  // namespace

std::vector<std::int64_t> spread(std::int64_t first, std::int64_t last, std::int64_t count) {
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < count; ++i) positions.push_back(first + i * (last - first) / std::max<std::int64_t>(count - 1, 1));
  return positions;
}

std::vector<head_rows> heads_of(decode_loop::forward_pass& pass, const kvx::host& exec, std::span<const decode_loop::token_id> ids,
                                std::span<const std::int64_t> positions, const std::function<void(std::size_t done)>& progress) {
  const decode_loop::model_shape& s = pass.weights().shape;
  head_rows empty;
  empty.dim = static_cast<int>(s.head_dim);
  empty.group = static_cast<int>(s.query_heads / s.kv_heads);
  empty.pairs = s.turned_pairs();
  empty.positions.assign(positions.begin(), positions.end());
  std::vector<head_rows> heads((s.layers - std::min(s.layers, first_measured_layer)) * s.kv_heads, empty);
  for (head_rows& head : heads) head.keys.reserve(ids.size() * s.head_dim);
  const int rows_of_group = empty.group * empty.dim;

  const auto watch = [&](std::size_t layer, const decode_loop::layer_rows& rows) {
    if (layer < first_measured_layer) return;
    const std::size_t tokens = rows.k.size() / (s.kv_heads * s.head_dim);
    for (std::size_t h = 0; h < s.kv_heads; ++h) {
      head_rows& head = heads[(layer - first_measured_layer) * s.kv_heads + h];
      for (std::size_t t = 0; t < tokens; ++t) {
        const std::int64_t position = head.tokens();
        const float* const key = rows.k.data() + (t * s.kv_heads + h) * s.head_dim;
        const float* const queries = rows.q.data() + t * s.query_heads * s.head_dim + h * static_cast<std::size_t>(rows_of_group);
        for (std::size_t d = 0; d < s.head_dim; ++d) head.keys.push_back(kvx::to_float(kvx::round_to<kvx::bf16>(key[d])));
        if (position % 8 == 7) append(head.eighth_queries, queries, rows_of_group);
        if (learned_from(position)) append(head.early_queries, queries, rows_of_group);
        if (std::binary_search(positions.begin(), positions.end(), position)) append(head.queries, queries, rows_of_group);
      }
    }
  };
  const kvx::geometry geometry{.layers = static_cast<int>(s.layers),
                               .kv_heads = static_cast<int>(s.kv_heads),
                               .query_heads = static_cast<int>(s.query_heads),
                               .max_tokens = static_cast<std::int64_t>(ids.size()),
                               .max_step_tokens = static_cast<std::int64_t>(pass.most_tokens())};
  const auto cache = make_reference(exec, geometry);
  decode_loop::run_prompt(pass, *cache, ids, {.scored = 0, .watch = watch, .progress = progress});
  return heads;
}

}  // namespace quality
