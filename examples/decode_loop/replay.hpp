#pragma once
// Without a model: attention through every cache over a recorded trace, against exact attention.

#include "caches.hpp"
#include "report.hpp"
#include "trace.hpp"

#include <span>

namespace decode_loop {

/// Decodes the trace's queries, one token each, layer by layer through caches of one layer.
///
/// columns     cache · layer · tokens · output error (|out - exact| / |exact|, mean over queries and heads) · mass (attention that falls on
///             the tokens attended to, exp(lse - exact lse), mean) · attention ms per token · near bytes per token
/// exactness   exact attention in double over the trace's rows
table replay(trace_reader& trace, const kvx::host& exec, std::span<const cache_choice* const> choices, std::int64_t keep);

}  // namespace decode_loop
