#pragma once
// How large a cache is: the model's layers and heads, and the tokens it must hold.

#include <kvx/core/check.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/layout/far_place.hpp>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/layer_kind.hpp>
#include <kvx/sketch/balance.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvx {

/// What a cache is built for.
///
/// layers, kv_heads, query_heads   the model's; query_heads is a multiple of kv_heads
/// max_tokens        tokens of all sequences together; forks that write to a page they share need room for its copy beside it
/// max_sequences     open at the same time
/// kinds             one per layer; empty: the first two dense, the others retrieving
/// max_step_tokens   most new tokens of one step, over all its sequences; window layers hold so many more; 0: max_tokens
/// rope              which channels of keys and queries the model's rotary embedding turns into each other; what is learned of channels is
///                   shared by such pairs. Left out where there is one, retrieval finds less (recall .957 for .983 on our example model)
/// model             a digest of whatever makes the rows, for stores: frames of another one are refused
/// near_tokens, hot_rows   layouts with placement::offload_uva, on a device, or offload_bulk: tokens of all sequences whose rows lie near
///                   in layers that retrieve, at least those of a step, its sinks and recent zones (0: all); slots of each such layer and
///                   KV head for far rows that were selected lately (offload_bulk: so many rows in whole semantic pages, on the host 128
///                   pages at least)
/// far               offload_bulk on the host: the folder of the file that far rows lie in
/// rollback          tokens that `truncate` can always cut off a sequence whose window layers have freed old rows
struct geometry {
  int layers = 0;
  int kv_heads = 0;
  int query_heads = 0;
  std::int64_t max_tokens = 0;
  int max_sequences = 1;
  std::vector<layer_kind> kinds = {};
  std::int64_t max_step_tokens = 0;
  std::int64_t rollback = 64;
  rope_pairs rope = {};
  digest model = {};
  std::int64_t near_tokens = 0;
  int hot_rows = 1024;
  far_place far = {};

  layer_kind kind(int layer) const {
    if (!kinds.empty()) return kinds[static_cast<std::size_t>(layer)];
    return layer < 2 ? layer_kind::dense() : layer_kind::retrieve();
  }
  std::int64_t step_tokens() const { return max_step_tokens > 0 ? max_step_tokens : max_tokens; }
};

/// Throws a usage_error that names the first field out of its limits.
inline void check(const geometry& g, call_site where) {
  require_range("geometry.layers", g.layers, 1, 4096, where);
  require_range("geometry.kv_heads", g.kv_heads, 1, 4096, where);
  require_range("geometry.query_heads", g.query_heads, g.kv_heads, std::int64_t{64} * g.kv_heads, where);
  require(g.query_heads % g.kv_heads == 0, "geometry.query_heads is not a multiple of kv_heads", where);
  require_range("geometry.max_tokens", g.max_tokens, 1, std::int64_t{1} << 40, where);
  require_range("geometry.max_sequences", g.max_sequences, 1, 1 << 20, where);
  require_range("geometry.max_step_tokens", g.max_step_tokens, 0, g.max_tokens, where);
  require_range("geometry.near_tokens", g.near_tokens, 0, g.max_tokens, where);
  require_range("geometry.hot_rows", g.hot_rows, 0, most_hot_rows, where);
  require_range("geometry.rollback", g.rollback, 0, std::int64_t{1} << 40, where);
  require(g.rope.channels == rope_pairs::order::none || g.rope.dims >= 2, "geometry.rope.dims is 0: say how many channels are rotary",
          where);
  if (!g.kinds.empty()) require_range("size of geometry.kinds", static_cast<std::int64_t>(g.kinds.size()), g.layers, g.layers, where);
  for (const layer_kind& kind : g.kinds) {
    if (kind.sees != layer_kind::attention::window) continue;
    require_range("tokens of a window layer", kind.tokens, 1, std::int64_t{1} << 40, where);
    require_range("sink of a window layer", kind.sink, 0, std::int64_t{1} << 40, where);
  }
}

}  // namespace kvx
