#pragma once
// The table of cache types that the loop can decode through: one line each.

#include "any_cache.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace decode_loop {

class codec_files;

/// What a cache is made for.
struct cache_request {
  int layers = 0;
  int kv_heads = 0;
  int query_heads = 0;
  int head_dim = 0;
  std::int64_t max_tokens = 0;
  std::int64_t max_step_tokens = 0;
  std::int64_t keep = 256;                                              // tokens that a retrieving layer may fetch
  kvx::rope_pairs rope = {};
  int dense_layers = 2;                                                 // the first layers, which attend to all
  const codec_files* codecs = nullptr;                                  // of caches that are stored
};

/// A line of the table.
struct cache_choice {
  std::string_view name;
  std::string_view what;
  bool by_default;                                                      // in the table without --all
  bool retrieves;                                                       // attends to rows that it chooses
  std::function<std::unique_ptr<any_cache>(const kvx::host&, const cache_request&)> make;
  std::string_view calibration = {};                                    // file that the codec needs; empty: prompts are not stored
};

/// Every cache type, the systems' defaults first.
std::span<const cache_choice> all_caches();

/// The line of a name, or null.
const cache_choice* find_cache(std::string_view name);

/// The full cache in fp32: what divergence is measured against.
std::unique_ptr<any_cache> make_reference(const kvx::host& exec, const cache_request& request);

}  // namespace decode_loop
