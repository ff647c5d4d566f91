// Cache types on a CUDA device, each with one sequence and memory for the rows of a step.

#include "device_caches.hpp"

#include "cache_lines.hpp"

#include <kvx/kvx.cuh>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace decode_loop {
namespace {

using kvx::check;

/// A stream for as long as a cache lives.
struct own_order {
  cudaStream_t stream = nullptr;
  own_order() { check("cudaStreamCreate", cudaStreamCreate(&stream)); }
  own_order(const own_order&) = delete;
  own_order& operator=(const own_order&) = delete;
  ~own_order() { (void)cudaStreamDestroy(stream); }
};

/// A cache of this spec on the device, one sequence open in it, and memory for the rows of a step.
template <class Spec>
class held_device_cache final : private own_order, public one_sequence<kvx::device, Spec> {
 public:
  using base = one_sequence<kvx::device, Spec>;

  held_device_cache(const kvx::geometry& geometry, const kvx::attend_options& how)
      : base({.stream = own_order::stream}, {}, geometry, how),
        first_(allocate(exec_, bytes(geometry.step_tokens() * geometry.query_heads))),
        second_(allocate(exec_, bytes(geometry.step_tokens() * geometry.query_heads))),
        lse_(allocate(exec_, geometry.step_tokens() * geometry.query_heads * 4)) {}

  void append(int layer, const float* k, const float* v) override {
    const std::int64_t size = bytes(step_->tokens() * cache_.geometry().kv_heads);
    copy(first_.data(), k, size, cudaMemcpyHostToDevice);
    copy(second_.data(), v, size, cudaMemcpyHostToDevice);
    cache_.append(exec_, *step_, layer, floats(first_), floats(second_));
  }
  void observe(int layer, const float* q) override {
    copy(first_.data(), q, bytes(step_->tokens() * cache_.geometry().query_heads), cudaMemcpyHostToDevice);
    cache_.observe(exec_, *step_, layer, floats(first_));
  }
  void attend(int layer, const float* q, float* out, float* lse, kvx::attention_audit* audit) override {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t heads = step_->tokens() * cache_.geometry().query_heads;
    copy(first_.data(), q, bytes(heads), cudaMemcpyHostToDevice);
    how_.lse = lse != nullptr ? reinterpret_cast<float*>(lse_.data()) : nullptr;
    how_.audit = audit;
    cache_.attend(exec_, *step_, layer, floats(first_), reinterpret_cast<float*>(second_.data()), how_);
    copy(out, second_.data(), bytes(heads), cudaMemcpyDeviceToHost);
    if (lse != nullptr) copy(lse, lse_.data(), heads * 4, cudaMemcpyDeviceToHost);
    base::attention_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  using base::cache_, base::exec_, base::how_, base::step_;

  static std::int64_t bytes(std::int64_t heads) { return heads * Spec::layout_type::shape.key_dim * 4; }
  static const float* floats(const kvx::device_block& block) { return reinterpret_cast<const float*>(block.data()); }
  void copy(void* to, const void* from, std::int64_t size, cudaMemcpyKind kind) const {
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<std::size_t>(size), kind, exec_.stream));
    check("cudaStreamSynchronize", cudaStreamSynchronize(exec_.stream));
  }

  kvx::device_block first_, second_, lse_;
};

template <class Spec>
std::unique_ptr<any_cache> hold_on_device(const cache_request& r) {
  constexpr bool far = kvx::offloads<typename Spec::layout_type>();
  const kvx::geometry geometry{.layers = r.layers,
                               .kv_heads = r.kv_heads,
                               .query_heads = r.query_heads,
                               .max_tokens = r.max_tokens,
                               .kinds = retrieving(r),
                               .max_step_tokens = std::min(r.max_step_tokens, r.max_tokens),
                               .rope = r.rope,
                               .near_tokens = far ? std::min(r.max_tokens, r.max_tokens / 4 + r.max_step_tokens + 1536) : 0};
  return std::make_unique<held_device_cache<Spec>>(geometry, kvx::attend_options{.keep = r.keep});
}

template <template <int> class SpecOf>
cache_choice device_line(std::string_view name, std::string_view what, bool retrieves) {
  return {name, what, true, retrieves, [](const kvx::host&, const cache_request& r) {
            if (r.head_dim == 64) return hold_on_device<typename SpecOf<64>::type>(r);
            if (r.head_dim == 128) return hold_on_device<typename SpecOf<128>::type>(r);
            throw std::runtime_error("head dimension " + std::to_string(r.head_dim) + ": the decode loop instantiates 64 and 128");
          }};
}

template <int D>
struct full {
  using type = kvx::full<kvx::bf16, D>;
};
template <int D>
struct paris {
  using type = kvx::paris_kv<kvx::bf16, D>;
};
template <int D>
struct ice {
  using type = kvx::ice_cache<kvx::bf16, D>;
};
template <int D>
struct ice_tiered {
  using type = kvx::ice_cache_tiered<kvx::bf16, D>;
};
template <int D>
struct paris_far {
  using type = kvx::paris_kv<kvx::bf16, D, D, kvx::placement::offload_uva>;
};

}  // namespace

std::span<const cache_choice> device_caches() {
  static const std::vector<cache_choice> table = [] {
    std::vector<cache_choice> lines;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return lines;
    lines.push_back(device_line<full>("device-full", "every row, on the device", false));
    lines.push_back(device_line<paris>("device-paris_kv", "paris_kv on the device", true));
    lines.push_back(device_line<paris_far>("device-paris_kv-far", "the same with most rows in host memory", true));
    lines.push_back(device_line<ice>("device-ice_cache", "ice_cache on the device", true));
    lines.push_back(device_line<ice_tiered>("device-ice_cache_tiered", "ice_cache_tiered on the device", true));
    return lines;
  }();
  return table;
}

}  // namespace decode_loop
