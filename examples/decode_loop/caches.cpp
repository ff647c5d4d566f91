#include "caches.hpp"

#include <kvx/layout/contiguous.hpp>

#include <stdexcept>
#include <type_traits>

namespace decode_loop {
namespace {

using kinds = std::vector<kvx::layer_kind>;

/// The policy's default: the first layers dense, the others retrieving.
kinds retrieving(const cache_request& r) {
  kinds all(static_cast<std::size_t>(r.layers), kvx::layer_kind::retrieve());
  std::fill_n(all.begin(), std::min(r.layers, r.dense_layers), kvx::layer_kind::dense());
  return all;
}

/// As many tokens as a retrieving cache attends to, all of them the latest: keep + 256, sink and all.
template <int Numerator = 1, int Denominator = 1>
kinds windows(const cache_request& r) {
  kinds all(static_cast<std::size_t>(r.layers), kvx::layer_kind::window(r.keep * Numerator / Denominator + 256, 4));
  std::fill_n(all.begin(), std::min(r.layers, r.dense_layers), kvx::layer_kind::dense());
  return all;
}

template <class Spec>
std::unique_ptr<any_cache> hold(const kvx::host& exec, Spec spec, const cache_request& r, kinds layer_kinds) {
  const kvx::geometry geometry{.layers = r.layers,
                               .kv_heads = r.kv_heads,
                               .query_heads = r.query_heads,
                               .max_tokens = r.max_tokens,
                               .kinds = std::move(layer_kinds),
                               .max_step_tokens = std::min(r.max_step_tokens, r.max_tokens)};
  return std::make_unique<held_cache<Spec>>(exec, spec, geometry, kvx::attend_options{.keep = r.keep});
}

/// A line whose spec is made by spec_of(dim), dim() being the head dimension at compile time.
template <class SpecOf>
cache_choice line(std::string_view name, std::string_view what, bool by_default, SpecOf spec_of, kinds (*kinds_of)(const cache_request&)) {
  return {name, what, by_default, [=](const kvx::host& exec, const cache_request& r) -> std::unique_ptr<any_cache> {
            switch (r.head_dim) {
              case 64: return hold(exec, spec_of(std::integral_constant<int, 64>()), r, kinds_of(r));
              case 128: return hold(exec, spec_of(std::integral_constant<int, 128>()), r, kinds_of(r));
              default: throw std::runtime_error("head dimension " + std::to_string(r.head_dim) + ": caches.cpp instantiates 64 and 128");
            }
          }};
}

constexpr bool shown = true, hidden = false;

constexpr auto full_bf16 = [](auto dim) { return kvx::full<kvx::bf16, dim()>{}; };
constexpr auto full_half = [](auto dim) { return kvx::full<kvx::half, dim()>{}; };
constexpr auto full_float = [](auto dim) { return kvx::full<float, dim()>{}; };
constexpr auto slab_bf16 = [](auto dim) {
  return kvx::spec<kvx::contiguous<kvx::bf16, kvx::page_shape{.tokens = 64, .key_dim = dim(), .value_dim = dim()}>>{};
};

const cache_choice table[] = {
    line("full", "every row in bf16, every row attended to", shown, full_bf16, retrieving),
    line("window", "the latest keep + 256 rows and 4 sinks, two dense layers", shown, full_bf16, windows),
    line("full-half", "full, in half", hidden, full_half, retrieving),
    line("full-float", "full, in float", hidden, full_float, retrieving),
    line("full-contiguous", "full, one slab a sequence", hidden, slab_bf16, retrieving),
    line("window-half", "window of half the keep", hidden, full_bf16, windows<1, 2>),
    line("window-double", "window of twice the keep", hidden, full_bf16, windows<2>),
};

}  // namespace

std::span<const cache_choice> all_caches() { return table; }

const cache_choice* find_cache(std::string_view name) {
  for (const cache_choice& choice : table) {
    if (choice.name == name) return &choice;
  }
  return nullptr;
}

std::unique_ptr<any_cache> make_reference(const kvx::host& exec, const cache_request& request) {
  return find_cache("full-float")->make(exec, request);
}

}  // namespace decode_loop
