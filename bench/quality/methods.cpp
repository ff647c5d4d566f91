// The table of methods, and what is printed of each.

#include "table.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace quality {
namespace {

using decode_loop::any_cache;
using decode_loop::held_cache;

/// A retrieving cache: `Percent` of the zone as candidates (0: the policy's default), `Keep` of them attended to.
template <class Spec, int Keep, int Percent, kvx::group_rule::kind Rule = kvx::group_rule::kind::softmax_sum>
std::unique_ptr<any_cache> retrieve(const kvx::host& exec, const kvx::geometry& geometry) {
  Spec spec;
  spec.reranker.rule.by = Rule;
  const kvx::search_breadth breadth{.fraction = Percent / 100.0, .per_kept = Percent > 0 ? 0 : 5};
  return std::make_unique<held_cache<Spec>>(exec, spec, geometry, kvx::attend_options{.keep = Keep, .breadth = breadth});
}

/// The KV heads of a layer share their rows.
template <class Spec, int Keep, int Percent>
std::unique_ptr<any_cache> retrieve_pooled(const kvx::host& exec, const kvx::geometry& geometry) {
  const kvx::search_breadth breadth{.fraction = Percent / 100.0, .per_kept = 0};
  return std::make_unique<held_cache<Spec>>(
      exec, Spec{}, geometry, kvx::attend_options{.keep = Keep, .breadth = breadth, .budget = {kvx::retrieve_budget::kind::layer}});
}

/// The same with tiers: which of them take part.
template <class Spec, int Keep, int Percent, bool Coded = true, bool Tail = true>
std::unique_ptr<any_cache> retrieve_tiers(const kvx::host& exec, const kvx::geometry& geometry) {
  const kvx::search_breadth breadth{.fraction = Percent / 100.0, .per_kept = 0};
  return std::make_unique<held_cache<Spec>>(
      exec, Spec{}, geometry, kvx::attend_options{.keep = Keep, .breadth = breadth, .others = {.coded = Coded, .tail = Tail}});
}

template <class E>
using full = kvx::full<E, head_dim>;

using paris_kv = kvx::paris_kv<kvx::bf16, head_dim>;
using paris_kv_faithful = kvx::paris_kv_faithful<kvx::bf16, head_dim>;

/// Candidates from the mean of the group's queries.
using mean_query_buckets = kvx::sign_buckets<kvx::key_sketch{}, kvx::bucket_scoring{.of = kvx::bucket_scoring::query::mean_query}>;
using paris_kv_mean_query = kvx::spec<paris_kv::layout_type, mean_query_buckets, kvx::rsq_ip<4>>;

template <class Index, int ValueBits>
using tiered = kvx::spec<paris_kv::layout_type, Index, kvx::rsq_ip<4, kvx::tiers{.value_bits = ValueBits, .tail = true}>>;
using tiered_4 = tiered<kvx::sign_buckets<>, 4>;
using tiered_2 = tiered<kvx::sign_buckets<>, 2>;
using tiered_mean_query = tiered<mean_query_buckets, 0>;
using tiered_4_mean_query = tiered<mean_query_buckets, 4>;

/// One weight a key and two bits a coordinate of V: 57 bytes a token at D 64.
using tiered_small = tiered<kvx::sign_buckets<kvx::key_sketch{.weights = kvx::key_sketch::weighting::key}>, 2>;

/// The window that, with its sinks, attends to `rows` rows.
constexpr kvx::layer_kind window_of(std::int64_t rows) { return kvx::layer_kind::window(rows - 4, 4); }

constexpr kvx::layer_kind dense = kvx::layer_kind::dense();
constexpr kvx::layer_kind retrieving = kvx::layer_kind::retrieve();
constexpr bool always = false, on_request = true;

const method table[] = {
    {"full_bf16", always, dense, hold<full<kvx::bf16>>, print_divergence},
    {"full_half", always, dense, hold<full<kvx::half>>, print_divergence},
    {"window_256", always, window_of(516), hold<full<kvx::bf16>>, print_divergence},  // as many rows as keep 256 attends to
    {"paris_128", always, retrieving, retrieve<paris_kv_mean_query, 128, 10>, print_divergence, 128},
    {"paris_256", always, retrieving, retrieve<paris_kv_mean_query, 256, 10>, print_divergence, 256},
    {"paris_256_20", always, retrieving, retrieve<paris_kv_mean_query, 256, 20>, print_divergence, 256},
    {"headaware_256", always, retrieving, retrieve<paris_kv, 256, 10>, print_divergence, 256},
    {"votes_256", always, retrieving, retrieve<paris_kv_faithful, 256, 0, kvx::group_rule::kind::mean>, print_divergence, 256},
    {"tiered_128", always, retrieving, retrieve_tiers<tiered_4, 128, 10>, print_divergence, 128},
    {"tiered_32", always, retrieving, retrieve_tiers<tiered_4, 32, 10>, print_divergence, 32},
    {"tiered_32_v2", always, retrieving, retrieve_tiers<tiered_2, 32, 10>, print_divergence, 32},
    {"tiered_5", always, retrieving, retrieve_tiers<tiered_4, 128, 5>, print_divergence, 128},
    {"coded_only", always, retrieving, retrieve_tiers<tiered_4, 0, 10>, print_divergence, 0},
    {"tail_128", always, retrieving, retrieve_tiers<tiered_mean_query, 128, 10>, print_divergence, 128},
    {"coded_128", always, retrieving, retrieve_tiers<tiered_4, 128, 10, true, false>, print_divergence, 128},
    {"headaware_128", always, retrieving, retrieve<paris_kv, 128, 10>, print_divergence, 128},
    {"pooled_128", always, retrieving, retrieve_pooled<paris_kv, 128, 10>, print_divergence, 128},
    {"candidates_exact", always, retrieving, retrieve<paris_kv, 1000, 10>, print_divergence, 1000},
    {"tiered_32_7", always, retrieving, retrieve_tiers<tiered_4, 32, 7>, print_divergence, 32},  // those whose speed is measured
    {"tiered_32_4", always, retrieving, retrieve_tiers<tiered_4, 32, 4>, print_divergence, 32},
    {"tiered_32_small", always, retrieving, retrieve_tiers<tiered_small, 32, 10>, print_divergence, 32},
    {"sweep_window_128", on_request, window_of(128), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_256", on_request, window_of(256), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_512", on_request, window_of(512), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_1024", on_request, window_of(1024), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_2048", on_request, window_of(2048), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_window_4096", on_request, window_of(4096), hold<full<kvx::bf16>>, print_divergence},
    {"sweep_hard_headaware_2", on_request, retrieving, retrieve<paris_kv, 256, 2>, print_divergence, 256},
    {"sweep_hard_headaware_5", on_request, retrieving, retrieve<paris_kv, 256, 5>, print_divergence, 256},
    {"sweep_hard_headaware_10", on_request, retrieving, retrieve<paris_kv, 256, 10>, print_divergence, 256},
    {"sweep_hard_headaware_20", on_request, retrieving, retrieve<paris_kv, 256, 20>, print_divergence, 256},
    {"sweep_hard_mean_2", on_request, retrieving, retrieve<paris_kv_mean_query, 256, 2>, print_divergence, 256},
    {"sweep_hard_mean_5", on_request, retrieving, retrieve<paris_kv_mean_query, 256, 5>, print_divergence, 256},
    {"sweep_hard_mean_10", on_request, retrieving, retrieve<paris_kv_mean_query, 256, 10>, print_divergence, 256},
    {"sweep_hard_mean_20", on_request, retrieving, retrieve<paris_kv_mean_query, 256, 20>, print_divergence, 256},
    {"sweep_tiered_headaware_2", on_request, retrieving, retrieve_tiers<tiered_4, 32, 2>, print_divergence, 32},
    {"sweep_tiered_headaware_5", on_request, retrieving, retrieve_tiers<tiered_4, 32, 5>, print_divergence, 32},
    {"sweep_tiered_headaware_10", on_request, retrieving, retrieve_tiers<tiered_4, 32, 10>, print_divergence, 32},
    {"sweep_tiered_headaware_20", on_request, retrieving, retrieve_tiers<tiered_4, 32, 20>, print_divergence, 32},
    {"sweep_tiered_mean_2", on_request, retrieving, retrieve_tiers<tiered_4_mean_query, 32, 2>, print_divergence, 32},
    {"sweep_tiered_mean_5", on_request, retrieving, retrieve_tiers<tiered_4_mean_query, 32, 5>, print_divergence, 32},
    {"sweep_tiered_mean_10", on_request, retrieving, retrieve_tiers<tiered_4_mean_query, 32, 10>, print_divergence, 32},
    {"sweep_tiered_mean_20", on_request, retrieving, retrieve_tiers<tiered_4_mean_query, 32, 20>, print_divergence, 32},
};

}  // namespace

void print_divergence(std::ostream& out, const method& self, std::string_view text, const scores& got) {
  const std::string name(self.name);
  const summary kl = summarise(got.kl);
  print_value(out, "kl_" + name, text, kl);
  out << "kl_" << name << (text.empty() ? "" : ".") << text << ".median " << kl.median << '\n';
  print_value(out, "top1_" + name, text, summarise(got.agrees));
  print_value(out, "perplexity_" + name, text, exponential(summarise(got.surprise)));
  out << "attended_" << name << (text.empty() ? "" : ".") << text << ' ' << summarise(got.attended).mean << '\n';
}

std::span<const method> all_methods() {
  static const std::vector<method> all = [] {
    std::vector<method> lines(std::begin(table), std::end(table));
    for (const method& m : page_methods()) lines.push_back(m);
    return lines;
  }();
  return all;
}

std::span<const quotient> all_quotients() {
  static constexpr quotient list[] = {{"tail_gain", "tail_128", "paris_128"},
                                      {"coded_vs_exact", "coded_128", "candidates_exact"},
                                      {"pooled_gain", "pooled_128", "headaware_128"}};
  return list;
}

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
  if (name == "tiered_32" && std::string_view("kl_tiered_32_drift").find(filter) != std::string_view::npos) return true;
  for (const quotient& q : all_quotients()) {  // they need two methods
    if ((q.above == name || q.below == name) && q.name.find(filter) != std::string_view::npos) return true;
  }
  return false;
}

std::vector<kvx::layer_kind> kinds_of(const method& chosen, int layers) {
  std::vector<kvx::layer_kind> kinds(static_cast<std::size_t>(layers), chosen.kind);
  std::fill_n(kinds.begin(), std::min(layers, dense_layers), dense);
  return kinds;
}

std::int64_t attended(const method& m, std::int64_t n) {
  if (m.kind.sees == kvx::layer_kind::attention::window) return std::min(n, m.kind.tokens + m.kind.sink);
  if (m.kind.sees == kvx::layer_kind::attention::dense) return n;
  const kvx::zones zones = m.places.zones;
  if (n < kvx::dense_below(zones, m.keep)) return n;
  const std::int64_t end = kvx::edge(zones, n - 1, m.places.page_tokens);  // a step uses the edge before it
  return zones.sink + std::min<std::int64_t>(m.keep, end - zones.sink) + n - end;
}

void print_value(std::ostream& out, std::string_view name, std::string_view text, const summary& value) {
  const std::string full_name = text.empty() ? std::string(name) : std::string(name) + '.' + std::string(text);
  out << full_name << ' ' << value.mean << '\n' << full_name << ".se " << value.error << '\n';
}

}  // namespace quality
