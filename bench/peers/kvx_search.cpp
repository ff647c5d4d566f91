// kvx as a peer of vector indexes: the bench world's keys of one KV head, and a search for the best inner products, behind C functions.

#include "../support/world.hpp"

#include <kvx/index/host/sign_buckets.hpp>
#include <kvx/rerank/host/exact.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/sketch/host/key_code.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace kvx;

constexpr int dim = 128;
constexpr page_shape page{bench::world<bf16>::page_tokens, dim, dim};
constexpr key_sketch sketch;
constexpr bucket_scoring scoring;
constexpr rsq_ip<4> codes;

/// Keys of one KV head and their codes; a search on one thread.
class kvx_search {
 public:
  kvx_search(std::int64_t tokens, std::int64_t most)
      : tokens_(tokens), world_(1, dim, tokens), item_(world_.item(tokens, 1)), encoder_(make_key_encoder<bf16, sketch.bits>(sketch, dim)) {
    const auto columns = sketch_columns(sketch, page);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      memory_[c] = memory_block(lazy_pages(), columns[c].pitch() * tokens / page.tokens);
      columns_[c] = {memory_[c].data(), columns[c].pitch(), 1};
    }
    const auto n = static_cast<std::size_t>(tokens);
    ids_.resize(n);
    logits_.resize(n);
    places_.resize(static_cast<std::size_t>(most));
    scratch_ = memory_block(lazy_pages(), std::max({search_bytes(sketch, scoring, page, 1, tokens), rerank_scratch(exec_, codes, dim, 1),
                                                    rerank_scratch(exec_, exact{}, dim, 1)}));
  }

  void rows(float* keys, float* queries, std::int64_t count) const {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const bf16* const key = world_.rows().key.at(t / page.tokens, 0, t % page.tokens);
      for (int d = 0; d < dim; ++d) keys[t * dim + d] = to_float(key[d]);
    }
    std::ranges::copy(world_.queries(count, 1), queries);
  }

  void insert() {
    for (std::int64_t p = 0; p < tokens_ / page.tokens; ++p) {
      encode_page(encoder_, world_.rows().key.at(p, 0, 0), world_.rows().key.slot_stride, page.tokens, nullptr,
                  code_of<true>(columns_, p, 0));
    }
  }

  /// The k best of `fraction` of the keys by their codes; where `looks` > k, of the `looks` best by their rows.
  std::int64_t search(const float* query, std::int64_t k, double fraction, std::int64_t looks, std::int32_t* best) {
    std::array<float, dim> turned;
    std::copy_n(query, dim, turned.data());
    rotate(turned.data(), dim, sketch.seed);
    const tensor_view<const float, 2> plain(query, 1, dim), rotated(static_cast<const float*>(turned.data()), 1, dim);
    const group_queries queries{plain, rotated, 1};
    const bucket_zone zone{page, columns_, 0, item_.pages, 0, tokens_};
    const std::int64_t kept = std::max(k, looks);
    const search_breadth breadth{.fraction = fraction, .per_kept = 1};
    const std::int64_t wanted = candidate_count(breadth, scoring, tokens_, kept);
    std::int64_t found =
        search_buckets(exec_, sketch, scoring, zone, {rotated, plain, nullptr, 1}, breadth, wanted, ids_.data(), scratch());
    found = keep_best(codes, queries, found, kept);
    if (looks > k) found = keep_best(exact{}, queries, found, k);
    std::copy_n(ids_.begin(), found, best);
    return found;
  }

 private:
  std::span<std::byte> scratch() const { return {scratch_.data(), static_cast<std::size_t>(scratch_.size())}; }

  /// Of the first `count` ids the k best by a policy, in place.
  template <class Policy>
  std::int64_t keep_best(const Policy& policy, const group_queries& queries, std::int64_t count, std::int64_t k) {
    const auto n = static_cast<std::size_t>(count);
    rerank(exec_, policy, sketch, head_view<bf16>{world_.rows(), columns_, item_.pages, 0}, queries,
           std::span<const std::int32_t>(ids_).first(n), tensor_view<float, 2>(logits_.data(), 1, count), scratch());
    const std::int64_t taken = top_k<std::int32_t>(exec_, {logits_.data(), n}, k, places_).taken;
    for (std::size_t i = 0; i < static_cast<std::size_t>(taken); ++i) ids_[i] = ids_[static_cast<std::size_t>(places_[i])];
    return taken;
  }

  host exec_{.threads = 1};
  std::int64_t tokens_;
  bench::world<bf16> world_;
  attend_item item_;
  key_encoder<bf16> encoder_;
  std::array<memory_block, sketch_column_count> memory_;
  key_columns columns_;
  std::vector<std::int32_t> ids_;                                       // (C)
  std::vector<float> logits_;                                           // (C)
  std::vector<std::int32_t> places_;                                    // (k)
  memory_block scratch_;
};

}  // namespace

extern "C" {

void* kvx_open(std::int64_t tokens, std::int64_t most) { return new kvx_search(tokens, most); }
void kvx_close(void* search) { delete static_cast<kvx_search*>(search); }
void kvx_rows(const void* search, float* keys, float* queries, std::int64_t count) {
  static_cast<const kvx_search*>(search)->rows(keys, queries, count);
}
void kvx_insert(void* search) { static_cast<kvx_search*>(search)->insert(); }
std::int64_t kvx_find(void* search, const float* query, std::int64_t k, double fraction, std::int64_t looks, std::int32_t* best) {
  return static_cast<kvx_search*>(search)->search(query, k, fraction, looks, best);
}
}
