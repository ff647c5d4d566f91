#pragma once
// One forward pass over a ragged batch: rows reserved at begin, committed or undone as a whole.

#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/learned_balance.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// What is planned of a step: what its rows are, and what it learns.
///
/// workers     host: that scratch was sized for
/// of_backend  what a backend keeps for the step beside this; dropped with it
struct step_plan {
  reservation reserved;
  std::vector<std::vector<batch_item>> items;  // (groups, entries), under page ids of the cache
  std::vector<batch_item> external;            // (entries), under page ids of the caller
  std::vector<learning_entry> learning;        // (entries), empty where nothing is learned
  std::vector<const float*> balances;          // (entries), null for none; empty where nothing is learned
  int workers = 1;
  std::shared_ptr<void> of_backend;

  /// The batch as the loops over one group's rows take it.
  std::span<const batch_item> rows(int group) const {
    if (!external.empty()) return external;
    return items[static_cast<std::size_t>(group)];
  }
};

/// A planned step. Moves; dropped without `commit`, it leaves no trace in the cache.
///
/// Rows of q, k, v and out belong to the new tokens of the batch, entry after entry: entry i owns rows [first, first + tokens).
class step {
 public:
  step(step&&) noexcept = default;  // the moved-from pointer is null: that step is not open
  step& operator=(step other) noexcept {
    std::swap(book_, other.book_);
    std::swap(plan_, other.plan_);
    std::swap(appended_, other.appended_);
    return *this;
  }
  ~step() { undo(); }

  /// False after commit, or when moved from.
  bool open() const { return book_ != nullptr; }

  /// N: new tokens over all entries.
  std::int64_t tokens() const { return plan_.reserved.tokens; }

  /// The entries in the order given to begin: committed length before the step, new tokens, first row.
  std::span<const reservation::part> entries() const { return plan_.reserved.parts; }

 private:
  template <class Backend, class Spec>
  friend class cache;

  step(std::shared_ptr<sequence_book> book, std::span<const advance> batch, int own_group, const sequence_book::own_units& own,
       call_site where)
      : book_(std::move(book)) {
    plan_.reserved = book_->begin(batch, own_group, own, where);
  }

  void undo() noexcept {
    if (!book_) return;
    plan_.of_backend.reset();  // nothing reads the tables any more
    std::exchange(book_, nullptr)->roll_back(plan_.reserved);
  }

  std::shared_ptr<sequence_book> book_;
  step_plan plan_;
  std::vector<bool> appended_;  // (layers)
};

}  // namespace kvx
