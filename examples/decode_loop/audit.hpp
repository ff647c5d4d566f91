#pragma once
// The audit: which layers of a model lose too much when they retrieve, on the user's own text.

#include "caches.hpp"
#include "forward.hpp"
#include "report.hpp"

#include <kvx/attend/audit.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace decode_loop {

/// A layer that captures less of dense attention, or whose output is further from the dense one, should attend densely. Of the means over
/// tokens and heads.
constexpr double least_mass = .8;
constexpr double most_error = .15;
constexpr bool should_be_dense(const kvx::attention_audit& layer) {
  return layer.mean_mass() < least_mass || layer.mean_error() > most_error;
}

/// What one cache type made of each layer.
struct audited_cache {
  std::string name;
  std::vector<kvx::attention_audit> layers;
};

/// Attention of ids[context ...], one token each, in every layer of every cache: dense_layers of the request is 0.
///
/// what        the model runs on dense attention in fp32, so a layer is judged by itself, not by what layers before it lost
std::vector<audited_cache> audit_layers(forward_pass& pass, const kvx::host& exec, std::span<const token_id> ids, std::size_t context,
                                        std::span<const cache_choice* const> choices, std::int64_t keep);

/// The same as a table: cache · layer · mass, mean and least · output error, mean and worst · dense or retrieve.
table audit_table(std::span<const audited_cache> caches);

/// One line for each cache: the layers that should be dense.
std::string audit_verdict(std::span<const audited_cache> caches);

}  // namespace decode_loop
