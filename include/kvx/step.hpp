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

/// A planned step. Moves; dropped without `commit`, it leaves no trace in the cache.
///
/// Rows of q, k, v and out belong to the new tokens of the batch, entry after entry: entry i owns rows [first, first + tokens).
class step {
 public:
  step(step&&) noexcept = default;  // the moved-from pointer is null: that step is not open
  step& operator=(step other) noexcept {
    std::swap(book_, other.book_);
    std::swap(reserved_, other.reserved_);
    std::swap(items_, other.items_);
    std::swap(external_, other.external_);
    std::swap(appended_, other.appended_);
    std::swap(learning_, other.learning_);
    std::swap(balances_, other.balances_);
    std::swap(workers_, other.workers_);
    return *this;
  }
  ~step() { undo(); }

  /// False after commit, or when moved from.
  bool open() const { return book_ != nullptr; }

  /// N: new tokens over all entries.
  std::int64_t tokens() const { return reserved_.tokens; }

  /// The entries in the order given to begin: committed length before the step, new tokens, first row.
  std::span<const reservation::part> entries() const { return reserved_.parts; }

 private:
  template <class Backend, class Spec>
  friend class cache;

  step(std::shared_ptr<sequence_book> book, std::span<const advance> batch, int own_group, const sequence_book::own_units& own,
       call_site where)
      : book_(std::move(book)), reserved_(book_->begin(batch, own_group, own, where)) {}

  void undo() noexcept {
    if (book_) std::exchange(book_, nullptr)->roll_back(reserved_);
  }

  /// The batch as the loops over one group's rows take it.
  std::span<const batch_item> rows(int group) const {
    if (!external_.empty()) return external_;
    return items_[static_cast<std::size_t>(group)];
  }

  std::shared_ptr<sequence_book> book_;
  reservation reserved_;
  std::vector<std::vector<batch_item>> items_;  // (groups, entries), under page ids of the cache
  std::vector<batch_item> external_;            // (entries), under page ids of the caller
  std::vector<bool> appended_;                  // (layers)
  std::vector<learning_entry> learning_;        // (entries), empty where nothing is learned
  std::vector<const float*> balances_;          // (entries), null for none; empty where nothing is learned
  int workers_ = 1;                             // that scratch was sized for
};

}  // namespace kvx
