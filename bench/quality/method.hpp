#pragma once
// The registry of methods whose predictions are compared with the dense reference.

#include "scores.hpp"

#include <any_cache.hpp>

#include <kvx/kvx.hpp>

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

namespace quality {

/// Where the retrieval zone of a method lies.
struct page_zones {
  kvx::zones zones;
  std::int64_t page_tokens = 64;
};

/// One way of keeping a sequence. A new method is one line of the table in methods.cpp.
struct method {
  std::string_view name;                                                // printed as kl_<name>, top1_<name>, ...
  bool on_request = false;                                              // runs only where a filter names it
  kvx::layer_kind kind;                                                 // of the layers behind the dense ones
  std::unique_ptr<decode_loop::any_cache> (*make)(const kvx::host& exec, const kvx::geometry& geometry);
  void (*print)(std::ostream& out, const method& self, std::string_view text, const scores& got);
  std::int64_t keep = 0;                                                // tokens that a retrieving layer selects
  page_zones places = {kvx::paris_kv<kvx::bf16, 64>::zones, 64};
};

/// Layers that are dense in every method but `full`, which is dense throughout.
inline constexpr int dense_layers = 2;

/// Head dimension that the methods are instantiated for.
inline constexpr int head_dim = 64;

std::span<const method> all_methods();

/// The mean KL of one method over that of another: printed where both ran.
struct quotient {
  std::string_view name, above, below;
};
std::span<const quotient> all_quotients();

/// The full cache in fp32.
std::unique_ptr<decode_loop::any_cache> make_reference(const kvx::host& exec, kvx::geometry geometry);

/// Whether a filter asks for the method: an empty one for all but those on request, another for names that contain it.
bool wanted(const method& candidate, std::string_view filter);

/// Kinds of all layers of a method.
std::vector<kvx::layer_kind> kinds_of(const method& chosen, int layers);

/// Rows that a layer behind the dense ones attends to for the last of n tokens.
std::int64_t attended(const method& m, std::int64_t n);

/// Prints name, value; name.se, its standard error. `text` is appended to the name with a dot unless it is empty.
void print_value(std::ostream& out, std::string_view name, std::string_view text, const summary& value);

}  // namespace quality
