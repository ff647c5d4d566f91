#pragma once
// What the files of cache types share: a line of the table from a spec, the kinds of its layers and how it differs from the default.

#include "caches.hpp"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace decode_loop {

using layer_kinds = std::vector<kvx::layer_kind>;

/// The first layers dense, the others of one kind.
inline layer_kinds behind_dense_layers(const cache_request& r, kvx::layer_kind others) {
  layer_kinds all(static_cast<std::size_t>(r.layers), others);
  std::fill_n(all.begin(), std::min(r.layers, r.dense_layers), kvx::layer_kind::dense());
  return all;
}

inline layer_kinds retrieving(const cache_request& r) { return behind_dense_layers(r, kvx::layer_kind::retrieve()); }

/// As many tokens as a retrieving cache attends to, all of them the latest: keep + 256, sink and all.
inline layer_kinds windows(const cache_request& r) { return behind_dense_layers(r, kvx::layer_kind::window(r.keep + 256, 4)); }

/// How a line differs from others of its spec.
struct setting {
  bool by_default = false;
  double keep = 1;                                                      // times the keep that was asked for
  std::int64_t least = 1;  // the smallest keep that it can have: a page, where pages are kept
  std::int64_t rows = -1;  // a keep of its own, whatever was asked for; -1: none
  kvx::search_breadth breadth = {};
};

template <class Spec>
std::unique_ptr<any_cache> hold(const kvx::host& exec, Spec spec, const cache_request& r, layer_kinds kinds, const setting& s) {
  const kvx::geometry geometry{.layers = r.layers,
                               .kv_heads = r.kv_heads,
                               .query_heads = r.query_heads,
                               .max_tokens = r.max_tokens,
                               .kinds = std::move(kinds),
                               .max_step_tokens = std::min(r.max_step_tokens, r.max_tokens),
                               .rope = r.rope};
  return std::make_unique<held_cache<Spec>>(exec, spec, geometry, kvx::attend_options{.keep = r.keep, .breadth = s.breadth});
}

template <class Spec>
constexpr bool searches = kvx::reads_sketch<typename Spec::index_type> || kvx::packs_blocks<typename Spec::index_type>;

/// A line whose spec is made by spec_of(dim), dim() being the head dimension at compile time.
template <class SpecOf>
cache_choice line(std::string_view name, std::string_view what, SpecOf spec_of, layer_kinds (*kinds_of)(const cache_request&),
                  setting s = {}) {
  constexpr bool retrieves = searches<decltype(spec_of(std::integral_constant<int, 64>()))>;
  return {name, what, s.by_default, retrieves, [=](const kvx::host& exec, cache_request r) -> std::unique_ptr<any_cache> {
            r.keep = std::max(s.least, static_cast<std::int64_t>(static_cast<double>(r.keep) * s.keep));
            if (s.rows >= 0) r.keep = s.rows;
            switch (r.head_dim) {
              case 64: return hold(exec, spec_of(std::integral_constant<int, 64>()), r, kinds_of(r), s);
              case 128: return hold(exec, spec_of(std::integral_constant<int, 128>()), r, kinds_of(r), s);
              default:
                throw std::runtime_error("head dimension " + std::to_string(r.head_dim) + ": the decode loop instantiates 64 and 128");
            }
          }};
}

std::vector<cache_choice> dense_caches();  // dense_caches.cpp: full, window
std::vector<cache_choice> paris_caches();  // paris_caches.cpp: ParisKV
std::vector<cache_choice> ice_caches();  // ice_caches.cpp: IceCache
std::vector<cache_choice> stored_caches();  // stored_caches.cpp: KVTC

}  // namespace decode_loop
