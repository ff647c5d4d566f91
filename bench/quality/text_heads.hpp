#pragma once
// Made-up heads whose keys and queries lie like those of a text, to be measured beside a model's.

#include "head_rows.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace quality {

/// `count` heads of 64 channels in groups of three, by text_stream of the benches.
///
/// positions   of the queries that are measured
std::vector<head_rows> text_heads(int count, std::int64_t tokens, std::span<const std::int64_t> positions);

}  // namespace quality
