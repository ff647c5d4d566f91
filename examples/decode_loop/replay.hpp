#pragma once
// Without a model: attention through every cache over a recorded trace, against exact attention.

#include "caches.hpp"
#include "report.hpp"
#include "trace.hpp"

#include <span>
#include <string>
#include <vector>

namespace decode_loop {

/// What one cache made of one layer, as means over queries and heads.
struct replayed {
  std::string cache;
  std::size_t layer;
  double error;                                                         // |out - exact| / |exact|
  double mass;                                                          // attention on the tokens attended to: exp(lse - exact lse)
  double milliseconds;                                                  // of attention, a token
  double near_bytes;                                                    // a token
};

/// Decodes the trace's queries, one token each, layer by layer through caches of one layer.
///
/// exactness   exact attention in double over the trace's rows
std::vector<replayed> replay_layers(trace_reader& trace, const kvx::host& exec, std::span<const cache_choice* const> choices,
                                    std::int64_t keep);

/// The same as a table: cache · layer · tokens · output error · mass · attention ms · near B/token.
table replay(trace_reader& trace, const kvx::host& exec, std::span<const cache_choice* const> choices, std::int64_t keep);

}  // namespace decode_loop
