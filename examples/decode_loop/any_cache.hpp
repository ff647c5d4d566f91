#pragma once
// One sequence in a kvx cache whose type is chosen at run time: what lets one program compare many cache types.

#include <kvx/attend/audit.hpp>
#include <kvx/kvx.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace decode_loop {

/// What it took to store a prompt and to get it back.
struct storing_cost {
  std::int64_t bytes = 0;                                               // of the file
  double save_seconds = 0;
  double restore_seconds = 0;
};

/// The calls of a forward pass on one sequence; see forward.hpp. A program with one cache type calls kvx::cache itself.
class any_cache {
 public:
  virtual ~any_cache() = default;

  virtual void begin(std::int64_t tokens) = 0;
  virtual void append(int layer, const float* k, const float* v) = 0;                            // k (N, H, D)   v (N, H, D)
  virtual void observe(int layer, const float* q) = 0;                                           // q (N, Q, D), where nobody attends
  virtual void attend(int layer, const float* q, float* out, float* lse = nullptr,               // q, out (N, Q, D)   lse (N, Q)
                      kvx::attention_audit* audit = nullptr) = 0;
  virtual void commit() = 0;

  virtual std::int64_t length() const = 0;
  virtual void clear() = 0;                                             // a new, empty sequence
  virtual kvx::cache_stats stats() const = 0;

  /// The prompt of these tokens is complete: a cache whose prompts are stored does so, and goes on with what comes back.
  virtual std::optional<storing_cost> store(std::span<const std::int32_t> /*ids*/) { return {}; }

  /// Time spent in `attend` since the last call, seconds.
  double take_attention_seconds() { return std::exchange(attention_seconds_, 0.0); }

 protected:
  double attention_seconds_ = 0;
};

/// A cache of this spec, and one sequence open in it: what looks at no row.
template <class Backend, class Spec>
class one_sequence : public any_cache {
 public:
  one_sequence(const Backend& exec, Spec spec, const kvx::geometry& geometry, const kvx::attend_options& how)
      : exec_(exec), how_(how), cache_(exec, spec, geometry), sequence_(cache_.open(exec)) {}

  void begin(std::int64_t tokens) override { step_.emplace(cache_.begin(exec_, {{sequence_, tokens}})); }
  void commit() override { cache_.commit(exec_, *step_); }
  std::int64_t length() const override { return cache_.length(sequence_); }
  void clear() override {
    step_.reset();
    cache_.close(exec_, sequence_);
    sequence_ = cache_.open(exec_);
  }
  kvx::cache_stats stats() const override { return cache_.stats(); }

 protected:
  Backend exec_;
  kvx::attend_options how_;
  kvx::cache<Backend, Spec> cache_;
  kvx::sequence sequence_;
  std::optional<kvx::step> step_;
};

/// The same on the host, whose rows the model has at hand.
template <class Spec>
class held_cache : public one_sequence<kvx::host, Spec> {
 public:
  using base = one_sequence<kvx::host, Spec>;
  using base::base;

  void append(int layer, const float* k, const float* v) override { base::cache_.append(base::exec_, *base::step_, layer, k, v); }
  void observe(int layer, const float* q) override { base::cache_.observe(base::exec_, *base::step_, layer, q); }
  void attend(int layer, const float* q, float* out, float* lse, kvx::attention_audit* audit) override {
    const auto start = std::chrono::steady_clock::now();
    base::how_.lse = lse;
    base::how_.audit = audit;
    base::cache_.attend(base::exec_, *base::step_, layer, q, out, base::how_);
    base::attention_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

}  // namespace decode_loop
