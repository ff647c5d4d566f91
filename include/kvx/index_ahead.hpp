#pragma once
// Indexing of a step's layers beside the caller: a layer's columns are filled while later layers of the step compute.

#include <kvx/backend/background.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/cache_stats.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/step.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace kvx {

/// Layers of one step that are indexed ahead of its commit. Kept with the step, and called off with it.
template <class Spec>
class step_ahead {
 public:
  step_ahead(std::shared_ptr<background> by, const cache_parts<Spec>& of, const step_plan& step)
      : by_(std::move(by)), of_(of), step_(step), ready_(of.layers.size()), has_rows_(of.layers.size()) {}
  step_ahead(const step_ahead&) = delete;
  step_ahead& operator=(const step_ahead&) = delete;
  ~step_ahead() { by_->call_off(this); }

  /// The caller works on a layer: the one before it is left, and its columns are begun with where its rows are there.
  ///
  /// rows        those of this layer are there now
  /// encode      encode(exec, parts, step, layer) fills the columns of a layer for all tokens of the step; it may throw
  template <class Encode>
  void enter(int layer, bool rows, const Encode& encode) {
    rethrow();
    if (rows) has_rows_[static_cast<std::size_t>(layer)] = 1;
    {
      const std::lock_guard lock(mutex_);
      ready_[static_cast<std::size_t>(layer)] = 0;  // more of its rows or queries may come
    }
    const int left = std::exchange(entered_, layer);
    if (left >= 0 && left != layer && of_.layer(left).retrieves && has_rows_[static_cast<std::size_t>(left)] != 0) start(left, encode);
  }

  bool ready(int layer) const {
    const std::lock_guard lock(mutex_);
    return ready_[static_cast<std::size_t>(layer)] != 0;
  }

  void finish() const { by_->finish_owner(this); }

  /// Throws what a job has met, once.
  void rethrow() {
    std::exception_ptr failed;
    {
      const std::lock_guard lock(mutex_);
      failed = std::exchange(failed_, nullptr);
    }
    if (failed) std::rethrow_exception(failed);
  }

 private:
  template <class Encode>
  void start(int layer, const Encode& encode) {
    by_->push(this, layer, [this, layer, encode] {
      std::exception_ptr failed;
      try {
        encode(host{.threads = 1, .parallel = serial()}, of_, step_, layer);
      } catch (...) {
        failed = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (failed) {
        failed_ = failed;
      } else {
        ready_[static_cast<std::size_t>(layer)] = 1;
      }
    });
  }

  std::shared_ptr<background> by_;
  const cache_parts<Spec> of_;  // the cache may move
  step_plan step_;              // and so may the step; what its entries learn is shared with it
  mutable std::mutex mutex_;
  std::vector<std::uint8_t> ready_;     // (layers)
  std::vector<std::uint8_t> has_rows_;  // (layers) the caller's alone
  std::exception_ptr failed_;
  int entered_ = -1;
};

/// The thread of one cache. Goes when the cache goes: what a step that outlives it has asked for is dropped.
template <class Spec>
class index_ahead {
 public:
  using ahead = step_ahead<Spec>;

  explicit index_ahead(const host& exec) : by_(exec.index_ahead > 0 ? std::make_shared<background>(exec.index_ahead) : nullptr) {}
  index_ahead(index_ahead&&) noexcept = default;
  index_ahead& operator=(index_ahead other) noexcept {
    std::swap(by_, other.by_);
    return *this;
  }
  ~index_ahead() {
    if (by_) by_->stop();
  }

  /// Nothing runs any more: rows, columns and tables may change.
  void finish() const {
    if (by_) by_->finish();
  }

  /// A step is planned. Where none of its tokens can enter the retrieval zone there is nothing to begin with, and nothing may be begun with
  /// while rows of one of its sequences are still to be restored.
  void plan(const cache_parts<Spec>& of, step_plan& step) const {
    if (!by_) return;
    for (const reservation::part& p : step.reserved.parts) {
      if (!of.book->slots()[p.slot].whole()) return;
    }
    for (const reservation::part& p : step.reserved.parts) {
      constexpr std::int64_t tokens = Spec::layout_type::shape.tokens;
      if (edge(Spec::zones, p.length, tokens) == edge(Spec::zones, p.length + p.tokens, tokens)) continue;
      step.of_backend = std::make_shared<ahead>(by_, of, step);
      return;
    }
  }

  /// What a step has begun with, or null.
  ahead* of(const step_plan& step) const { return by_ ? static_cast<ahead*>(step.of_backend.get()) : nullptr; }

  /// A step works on a layer: what was begun of this layer, by any step, is waited for; others go on.
  template <class Encode>
  void enter(const step_plan& step, int layer, bool rows, const Encode& encode) const {
    if (!by_) return;
    by_->finish_tag(layer);
    if (ahead* const begun = of(step)) begun->enter(layer, rows, encode);
  }

  void count(cache_stats& to) const {
    if (!by_) return;
    const background_times times = by_->times();
    to.index_seconds += times.busy;
    to.index_waited_seconds += times.waited_for;
  }

 private:
  std::shared_ptr<background> by_;  // null: off
};

}  // namespace kvx
