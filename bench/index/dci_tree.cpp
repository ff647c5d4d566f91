// Semantic pages: what indexing costs against a product of all keys with the tree's first level, and a search against reading the keys.
//
// usage: dci_tree [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Keys and queries lie like those of a text (text_stream.hpp).
//
// ice_build_vs_gemm             index of 131,072 keys of 8 heads as by default, blocks of 256 in the query metric, over Eigen's product of
//                               the keys with as many points as the first level has (p0 .03)
// ice_build_tree_vs_gemm        the same with links of the tree
// ice_search_keys, ice_search_vs_keys_read   inner products a token and KV head of a search; its time over a plain read of all keys
// ice_beam_keys, ice_beam_vs_keys_read       the same of a beam through the tree

#include "../support/machine.hpp"
#include "../support/text_stream.hpp"
#include "../support/timing.hpp"

#include <kvx/index/dci_lists.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/host/page_search.hpp>

#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = 8, group = 4, dim = 128, page_tokens = 16;
constexpr std::int64_t tokens = 131072, sink = 32, pages = tokens / page_tokens;

/// Keys of one layer, head after head.
struct layer_keys {
  memory_block memory{lazy_pages(), tokens* heads* dim * 2};
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(pages);
  std::vector<float> values = std::vector<float>(heads * dim), queries;
  std::vector<query_metric> metrics;  // one a head

  layer_keys() {
    std::iota(ids.begin(), ids.end(), 0);
    bf16 value[dim];
    for (int h = 0; h < heads; ++h) {
      bench::text_stream stream(h, dim);
      for (std::int64_t t = 0; t < tokens; ++t) stream.next(keys() + (h * tokens + t) * dim, value);
    }
    queries = bench::text_queries(heads, group, dim, 1);
    for (int h = 0; h < heads; ++h) {
      query_moments moments(dim, false);
      for (int g = 0; g < group; ++g) moments.add(query(h) + g * dim);
      metrics.push_back(moments.write(values.data() + h * dim));
    }
  }
  bf16* keys() const { return reinterpret_cast<bf16*>(memory.data()); }
  const float* query(std::int64_t h) const { return queries.data() + h * group * dim; }
  row_view<const bf16> rows() const {
    const row_array<const bf16> all{keys(), page_tokens * dim, tokens * dim, dim};
    return {all, all, heads, page_tokens, dim, dim};
  }
};

/// One index of the layer.
class layer_index {
 public:
  layer_index(const layer_keys& keys, const dci_shape& shape) : keys_(keys), shape_(shape) {
    const auto columns = dci_columns(shape, {page_tokens, dim, dim});
    const auto place = [&](const column& c) {
      memory_.emplace_back(lazy_pages(), c.pitch() * pages * heads);
      return column_array{memory_.back().data(), c.pitch(), heads, c.pitch() * pages};
    };
    members_ = place(columns[column_members]);
    means_ = place(columns[column_member_means]);
    links_ = place(columns[column_links]);
    if (codes_means(shape, page_tokens)) codes_ = place(columns[column_mean_codes]);
    const std::int64_t scratch =
        std::max(index_blocks_bytes(shape, page_tokens, dim, tokens), search_pages_bytes({page_tokens, dim, dim}, group, tokens, {}));
    for (int h = 0; h < heads; ++h) scratch_.emplace_back(lazy_pages(), scratch);
  }

  void build() {
    for_each_task(exec_, heads, [&](std::int64_t h) {
      const std::vector<query_metric> metrics(static_cast<std::size_t>(tokens / shape_.block), keys_.metrics[static_cast<std::size_t>(h)]);
      index_blocks(exec_, shape_, head(h), 0, tokens / shape_.block, metrics, scratch(h));
    });
    for (std::int64_t h = 0; h < heads && keeps_links(shape_); ++h) lists_[h].sync(head(h), 0, tokens);
  }

  void search() {
    for_each_task(exec_, heads, [&](std::int64_t h) {
      std::int32_t found[12];
      const page_query query{tensor_view<const float, 2>(keys_.query(h), group, dim), nullptr, 0, sink, tokens};
      results_[h] = search_pages(exec_, shape_, head(h), lists_[h].cells(), query, {}, found, scratch(h));
    });
  }

  /// Inner products a token of the last search.
  double products() const {
    std::int64_t sum = 0;
    for (const page_search_result& r : results_) sum += r.keys + r.means;
    return static_cast<double>(sum) / static_cast<double>(heads * (tokens - sink));
  }

 private:
  dci_head<bf16> head(std::int64_t h) const {
    return {keys_.rows(), members_, means_, links_, keys_.ids.data(), keys_.ids.data(), h, sink, false, {}, codes_};
  }
  std::span<std::byte> scratch(std::int64_t h) const {
    const memory_block& block = scratch_[static_cast<std::size_t>(h)];
    return {block.data(), static_cast<std::size_t>(block.size())};
  }

  const layer_keys& keys_;
  dci_shape shape_;
  host exec_;
  std::vector<memory_block> memory_, scratch_;
  column_array members_, means_, links_, codes_;
  dci_lists lists_[heads];
  page_search_result results_[heads];
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  std::printf("# %d threads, kernels: %s, Eigen %s\n", bench::cores(), name_of(simd_level().used), bench::eigen_version().c_str());
  const layer_keys keys;
  layer_index by_default(keys, {}), tree(keys, {.rank = dci_shape::ranking::best_member});
  const auto points = promoted_counts({}, 0, tokens);
  constexpr int rows = 4096;
  const auto product = [&] {
    for (std::int64_t i = 0; i < heads * tokens / rows; ++i) bench::eigen_product(rows, static_cast<int>(points[1]), dim);
  };
  const auto build = bench::alternate({product, [&] { by_default.build(); }, [&] { tree.build(); }}, 3);
  std::uint64_t sum = 0;
  const auto search = bench::alternate(
      {[&] { sum += bench::read_bytes(keys.memory.data(), keys.memory.size()); }, [&] { by_default.search(); }, [&] { tree.search(); }},
      15);
  std::printf("# product %.2f s, index %.2f s, with links %.2f s; read %.0f us (%llx), search %.0f us, beam %.0f us\n", build[0], build[1],
              build[2], search[0] * 1e6, static_cast<unsigned long long>(sum & 15), search[1] * 1e6, search[2] * 1e6);
  const auto print = [&](const std::string& name, double value) {
    if (name.find(filter) != std::string::npos) std::printf("%s %.3f\n", name.c_str(), value);
  };
  print("ice_build_vs_gemm", build[1] / build[0]);
  print("ice_build_tree_vs_gemm", build[2] / build[0]);
  print("ice_search_keys", by_default.products());
  print("ice_search_vs_keys_read", search[1] / search[0]);
  print("ice_beam_keys", tree.products());
  print("ice_beam_vs_keys_read", search[2] / search[0]);
}
