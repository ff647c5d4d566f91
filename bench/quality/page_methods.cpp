// The methods that attend to semantic pages, and those that they are measured against.

#include "quest.hpp"
#include "table.hpp"

namespace quality {
namespace {

using decode_loop::any_cache;

template <class Spec, int Keep, int Pages = 0>
std::unique_ptr<any_cache> retrieve_pages(const kvx::host& exec, const kvx::geometry& geometry) {
  return std::make_unique<decode_loop::held_cache<Spec>>(exec, Spec{}, geometry,
                                                         kvx::attend_options{.keep = Keep, .pages = {.pages = Pages}});
}

std::unique_ptr<any_cache> quest(const kvx::host& exec, const kvx::geometry& geometry) {
  return std::make_unique<quest_cache>(exec, geometry);
}

using ice_cache = kvx::ice_cache<kvx::bf16, head_dim>;
using faithful = kvx::ice_cache_faithful<kvx::bf16, head_dim>;
using tokens = kvx::ice_cache_tokens<kvx::bf16, head_dim>;
using tiered = kvx::ice_cache_tiered<kvx::bf16, head_dim>;

template <kvx::dci_shape Shape>
using ice = kvx::spec<ice_cache::layout_type, kvx::dci_tree<Shape>>;

using metric = kvx::dci_shape::metric;
using ranking = kvx::dci_shape::ranking;
using packing = kvx::dci_shape::packing;

constexpr page_zones places{ice_cache::zones, ice_cache::layout_type::shape.tokens};
constexpr kvx::layer_kind retrieving = kvx::layer_kind::retrieve();

/// As many rows as 12 pages, sinks and recent ones are on average.
constexpr kvx::layer_kind window = kvx::layer_kind::window(32 + 192 + 32 + 128 - 4, 4);

const method table[] = {
    {"ice_default", false, retrieving, retrieve_pages<ice_cache, 192>, print_divergence, 192, places},
    {"ice_faithful", false, retrieving, retrieve_pages<faithful, 192>, print_divergence, 192, places},
    {"ice_tokens", false, retrieving, retrieve_pages<tokens, 192>, print_divergence, 192, places},
    {"ice_tiered", false, retrieving, retrieve_pages<tiered, 32>, print_divergence, 32, places},
    {"sweep_ice_tiered_0", true, retrieving, retrieve_pages<tiered, 0>, print_divergence, 0, places},
    {"sweep_ice_tiered_20", true, retrieving, retrieve_pages<tiered, 32, 74>, print_divergence, 32, places},  // of 368 pages
    {"ice_tree", false, retrieving, retrieve_pages<ice<{.by = metric::diagonal, .rank = ranking::best_member}>, 192>, print_divergence, 192,
     places},
    {"ice_coded", false, retrieving, retrieve_pages<ice<{.by = metric::diagonal, .rank = ranking::coded_member}>, 192>, print_divergence,
     192, places},
    {"ice_keys", false, retrieving, retrieve_pages<ice<{.by = metric::keys}>, 192>, print_divergence, 192, places},
    {"ice_positional", false, retrieving, retrieve_pages<ice<{.pack = packing::positional, .by = metric::keys}>, 192>, print_divergence,
     192, places},
    {"quest", false, retrieving, quest, print_divergence, 192, places},
    {"window", false, window, hold<kvx::full<kvx::bf16, head_dim>>, print_divergence},
};

}  // namespace

std::span<const method> page_methods() { return table; }

}  // namespace quality
