// Semantic pages as a peer of vector indexes: keys packed into pages of sixteen, searched by means and spreads, behind C functions.

#include <kvx/backend/memory.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/host/page_search.hpp>
#include <kvx/layout/host/row_logits.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace {

using namespace kvx;

constexpr int page_tokens = 16;
constexpr dci_shape shape{.by = dci_shape::metric::keys};

/// Keys of one KV head in whole blocks; a search on one thread.
class pages_of_keys {
 public:
  pages_of_keys(int dim, std::int64_t tokens, std::int64_t most)
      : page_{page_tokens, dim, dim}, tokens_(tokens / shape.block * shape.block), keys_(lazy_pages(), tokens_ * dim * 2) {
    const auto columns = dci_columns(shape, page_);
    ids_.resize(static_cast<std::size_t>(tokens_ / page_tokens));
    std::iota(ids_.begin(), ids_.end(), 0);
    const auto place = [&](const column& c) {
      memory_.emplace_back(lazy_pages(), c.pitch() * tokens_ / page_tokens);
      return column_array{memory_.back().data(), c.pitch(), 1, 0};
    };
    head_.members = place(columns[column_members]);
    head_.means = place(columns[column_member_means]);
    head_.codes = place(columns[column_mean_codes]);
    head_.rows.key = {rows(), std::int64_t{page_tokens} * dim, 0, dim};
    head_.rows.value = head_.rows.key;
    head_.rows.heads = 1;
    head_.rows.page_tokens = page_tokens;
    head_.rows.key_dim = head_.rows.value_dim = dim;
    head_.pages = head_.column_pages = ids_.data();
    found_.resize(static_cast<std::size_t>(most));
    places_.resize(found_.size());
    seen_.resize(found_.size() * page_tokens);
    logits_.resize(seen_.size());
    scratch_ = memory_block(lazy_pages(), std::max(index_blocks_bytes(shape, page_tokens, dim, tokens_),
                                                   search_pages_bytes(page_, 1, tokens_, {.pages = static_cast<int>(most)})));
    query_ = memory_block(lazy_pages(), row_query_pitch(dim) * 4);
  }

  void insert(const float* keys) {
    for (std::int64_t i = 0; i < tokens_ * page_.key_dim; ++i) rows()[i] = round_to<bf16>(keys[i]);
    index_blocks(exec_, shape, head_, 0, tokens_ / shape.block, {}, scratch());
  }

  /// The k best keys among the members of the k best pages, `probes` of which were looked into.
  std::int64_t search(const float* query, std::int64_t k, std::int64_t probes, std::int32_t* best) {
    const tensor_view<const float, 2> q(query, 1, page_.key_dim);
    // The logit itself: a softmax of products that are not scaled is 0 for most pages.
    const page_search options{.pages = static_cast<int>(k), .probes = static_cast<int>(probes), .rule = {group_rule::kind::mean}};
    const std::int64_t pages = search_pages(exec_, shape, head_, {}, {q, nullptr, 1, 0, tokens_}, options, found_, scratch()).found;
    const std::int64_t count =
        tokens_of(shape, head_, std::span<const std::int32_t>(found_).first(static_cast<std::size_t>(pages)), seen_.data());
    row_logits<bf16>(
        prepare_row_queries<bf16>(q, 1, reinterpret_cast<float*>(query_.data())), 0, count,
        [&](std::int64_t i) { return head_.key(seen_[static_cast<std::size_t>(i)]); }, tensor_view<float, 2>(logits_.data(), 1, count));
    const std::int64_t taken =
        top_k<std::int32_t>(exec_, std::span<const float>(logits_).first(static_cast<std::size_t>(count)), k, places_).taken;
    for (std::int64_t i = 0; i < taken; ++i) best[i] = seen_[static_cast<std::size_t>(places_[static_cast<std::size_t>(i)])];
    return taken;
  }

 private:
  bf16* rows() const { return reinterpret_cast<bf16*>(keys_.data()); }
  std::span<std::byte> scratch() const { return {scratch_.data(), static_cast<std::size_t>(scratch_.size())}; }

  host exec_{.threads = 1};
  page_shape page_;
  std::int64_t tokens_;
  memory_block keys_, scratch_, query_;
  std::vector<memory_block> memory_;
  std::vector<std::int32_t> ids_, found_, places_, seen_;
  std::vector<float> logits_;
  dci_head<bf16> head_;
};

}  // namespace

extern "C" {

void* kvx_pages_open(std::int64_t dim, std::int64_t tokens, std::int64_t most) {
  return new pages_of_keys(static_cast<int>(dim), tokens, most);
}
void kvx_pages_close(void* search) { delete static_cast<pages_of_keys*>(search); }
void kvx_pages_insert(void* search, const float* keys) { static_cast<pages_of_keys*>(search)->insert(keys); }
std::int64_t kvx_pages_find(void* search, const float* query, std::int64_t k, std::int64_t probes, std::int32_t* best) {
  return static_cast<pages_of_keys*>(search)->search(query, k, probes, best);
}
}
