#pragma once
// What a layer attends to: everything, what retrieval finds, or a window.

#include <cstdint>

namespace kvx {

/// The kind of one layer, stated by the geometry of a cache.
///
/// retrieve    sink, recent and selected tokens; a policy that finds nothing attends to all
/// dense       all tokens; no columns are kept
/// window      the last `tokens` tokens and the first `sink`; pages that no later query can see are freed at commit
struct layer_kind {
  enum class attention : std::uint8_t { retrieve, dense, window };

  attention sees = attention::retrieve;
  std::int64_t tokens = 0;
  std::int64_t sink = 0;

  static constexpr layer_kind retrieve() { return {}; }
  static constexpr layer_kind dense() { return {attention::dense, 0, 0}; }
  static constexpr layer_kind window(std::int64_t tokens, std::int64_t sink = 0) { return {attention::window, tokens, sink}; }

  friend constexpr bool operator==(const layer_kind&, const layer_kind&) = default;
};

}  // namespace kvx
