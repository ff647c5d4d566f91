#pragma once
// What the consumer's other translation unit offers.

#include <kvx/kvx.hpp>

using other_cache = kvx::cache<kvx::host, kvx::full<float, 24>>;

/// Decodes `tokens` tokens whose values are all `value` through a new cache of floats; returns the first component of the last output.
float decode_floats(int tokens, float value);
