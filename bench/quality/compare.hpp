#pragma once
// One prompt and one run of teacher-forced decode steps, through the dense reference and all methods side by side.

#include "method.hpp"

#include <forward_pass.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace quality {

/// progress(what, done, of)
using progress_report = std::function<void(const char* what, std::size_t done, std::size_t of)>;

/// Scores of the reference itself (KL 0), then of each method.
///
/// what        the first `prompt` tokens run once, dense in fp32, and every cache takes the rows; each of the next `scored` tokens is then
///             one decode step of every cache, on its own hidden state. A step of all caches is one pass of the model, one row a cache, so
///             that the weights are read once
/// shapes      ids: at least prompt + scored + 1
/// exactness   logits fp32, everything after them double
/// errors      kvx::usage_error for too few ids, or a pass that holds fewer tokens than there are caches
std::vector<scores> compare(decode_loop::forward_pass& pass, const kvx::host& exec, std::span<const method* const> methods,
                            std::span<const decode_loop::token_id> ids, std::size_t prompt, std::size_t scored,
                            const progress_report& progress);

/// The text with the last `count` of its first `prompt` tokens replaced by what the model itself says there: temperature .8, seed 1, dense.
std::vector<decode_loop::token_id> with_own_tail(decode_loop::forward_pass& pass, const kvx::host& exec,
                                                 std::vector<decode_loop::token_id> ids, std::size_t prompt, std::size_t count,
                                                 const progress_report& progress);

}  // namespace quality
