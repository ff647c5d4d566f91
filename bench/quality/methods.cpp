// The table of methods, and what is printed of each.

#include "method.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace quality {
namespace {

using decode_loop::any_cache;
using decode_loop::held_cache;

template <class Spec>
std::unique_ptr<any_cache> hold(const kvx::host& exec, const kvx::geometry& geometry) {
  return std::make_unique<held_cache<Spec>>(exec, Spec{}, geometry, kvx::attend_options{});
}

void print_divergence(std::ostream& out, const method& self, std::string_view text, const scores& got) {
  const std::string name(self.name);
  const summary kl = summarise(got.kl);
  print_value(out, "kl_" + name, text, kl);
  out << "kl_" << name << (text.empty() ? "" : ".") << text << ".median " << kl.median << '\n';
  print_value(out, "top1_" + name, text, summarise(got.agrees));
  print_value(out, "perplexity_" + name, text, exponential(summarise(got.surprise)));
  out << "attended_" << name << (text.empty() ? "" : ".") << text << ' ' << summarise(got.attended).mean << '\n';
}

template <class E>
using full = kvx::full<E, head_dim>;

/// The window that, with its sinks, attends to `rows` rows.
constexpr kvx::layer_kind window_of(std::int64_t rows) { return kvx::layer_kind::window(rows - 4, 4); }

constexpr kvx::layer_kind dense = kvx::layer_kind::dense();
constexpr bool always = false, on_request = true;

const method table[] = {
    {"full_bf16", always, dense, hold<full<kvx::bf16>>, print_divergence},
    {"full_half", always, dense, hold<full<kvx::half>>, print_divergence},
    {"window_256", always, window_of(516), hold<full<kvx::bf16>>, print_divergence},  // as many rows as keep 256 attends to
    {"sweep_window_128", on_request, window_of(128), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_256", on_request, window_of(256), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_512", on_request, window_of(512), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_1024", on_request, window_of(1024), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_2048", on_request, window_of(2048), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_4096", on_request, window_of(4096), hold<full<kvx::bf16>>, print_divergence},
};

}  // namespace

std::span<const method> all_methods() { return table; }

std::unique_ptr<any_cache> make_reference(const kvx::host& exec, kvx::geometry geometry) {
  geometry.kinds.assign(static_cast<std::size_t>(geometry.layers), dense);
  return hold<full<float>>(exec, geometry);
}

bool wanted(const method& candidate, std::string_view filter) {
  if (filter.empty()) return !candidate.on_request;
  const std::string name(candidate.name);
  for (const char* what : {"kl_", "top1_", "perplexity_", "attended_"}) {
    if ((what + name).find(filter) != std::string::npos) return true;
  }
  return false;
}

std::vector<kvx::layer_kind> kinds_of(const method& chosen, int layers) {
  std::vector<kvx::layer_kind> kinds(static_cast<std::size_t>(layers), chosen.kind);
  std::fill_n(kinds.begin(), std::min(layers, dense_layers), dense);
  return kinds;
}

std::int64_t attended(kvx::layer_kind kind, std::int64_t n) {
  return kind.sees == kvx::layer_kind::attention::window ? std::min(n, kind.tokens + kind.sink) : n;
}

void print_value(std::ostream& out, std::string_view name, std::string_view text, const summary& value) {
  const std::string full_name = text.empty() ? std::string(name) : std::string(name) + '.' + std::string(text);
  out << full_name << ' ' << value.mean << '\n' << full_name << ".se " << value.error << '\n';
}

}  // namespace quality
