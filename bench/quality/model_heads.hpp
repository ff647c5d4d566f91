#pragma once
// The heads of a model on a text: what head_rows holds, from one run of the decode loop's prompt.

#include "head_rows.hpp"

#include <forward_pass.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace quality {

/// Layers that are passed over: the library's default keeps them dense.
inline constexpr std::size_t first_measured_layer = 2;

/// `count` positions spread evenly over [first, last].
std::vector<std::int64_t> spread(std::int64_t first, std::int64_t last, std::int64_t count);

/// All KV heads of the layers from first_measured_layer on.
///
/// what        the prompt runs once, dense in fp32; keys are kept rounded to bf16, queries at `positions` and at the positions below 1,024
///             that a cache learns from (p % 8 = 7, behind the sinks) as they are
/// shapes      ids longer than the last of the positions
std::vector<head_rows> heads_of(decode_loop::forward_pass& pass, const kvx::host& exec, std::span<const decode_loop::token_id> ids,
                                std::span<const std::int64_t> positions, const std::function<void(std::size_t done)>& progress);

}  // namespace quality
