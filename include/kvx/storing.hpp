#pragma once
// Saving and restoring the sequences of a cache: the members that cache.hpp declares. For a cache on a device, include
// kvx/cuda/storing.cuh.

#include <kvx/cache.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/contested_units.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>
#include <kvx/index/full_scan.hpp>
#include <kvx/plan_batch.hpp>
#include <kvx/restore_columns.hpp>
#include <kvx/save_sequence.hpp>
#include <kvx/spec.hpp>
#include <kvx/store/key.hpp>
#include <kvx/store/prefix_index.hpp>
#include <kvx/store/store.hpp>
#include <kvx/store_options.hpp>
#include <kvx/stored_access.hpp>
#include <kvx/stored_sections.hpp>
#include <kvx/stored_sequence.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvx {

/// Compositions whose columns of one layer follow from the rows of that layer alone, and are all that a search of it reads.
template <class Spec>
inline constexpr bool decodes_apart = std::same_as<typename Spec::index_type, full_scan> || reads_sketch<typename Spec::index_type>;

/// A sequence that is being restored layer by layer.
///
/// use         after restore_layers, where ok(): of() has its length and may be in a step; attend and append of layers before ready() work,
///             `decode_layer` makes the next one ready. The sequence is like any other when all are; until then it cannot be committed to,
///             cut, forked or saved, but closed. Where columns follow from rows of all layers (a balance that the frame does not hold, an
///             index of semantic pages), one call decodes all, before a step of the sequence is begun
/// errors      state() of the last call; a layer that cannot be decoded stays unready: close the sequence
/// dropped     at any time: layers that are not ready stay so
template <class Backend, class Spec, class Store>
class restoring {
 public:
  const status& state() const { return state_; }
  bool ok() const { return state_.ok(); }
  sequence of() const { return of_; }
  std::int64_t tokens() const { return tokens_; }
  int ready() const { return ready_; }
  bool done() const { return ready_ == layers_; }

 private:
  template <class B, class S>
  friend class cache;
  using writer = decltype(make_writer(std::declval<Backend>(), std::declval<cache_parts<Spec>>(), std::span<const std::int32_t>()));

  status state_;
  sequence of_;
  std::int64_t tokens_ = 0;
  int ready_ = 0, layers_ = 0;
  bool columns_stored_ = false, together_ = false;
  stored_sequence<Spec, Store> stored_;
  std::optional<writer> writer_;
  step_plan plan_;
};

template <class Backend, class Spec>
digest cache<Backend, Spec>::family(std::string_view salt) const {
  return family_digest(family_of(header_of(parts_), salt));
}

template <class Backend, class Spec>
template <class Store>
status cache<Backend, Spec>::save(const Backend& exec, sequence s, Store& to, const digest& key, const save_options& options,
                                  call_site where) const {
  static_assert(store<Store>, "save: a store satisfies kvx::store");
  require_waits(exec, where);
  const sequence_book::slot& slot = parts_.book->find(s, where);
  const std::span<const std::int32_t> outside = layout::owns_rows ? std::span<const std::int32_t>() : options.pages;
  auto reader = make_reader(exec, parts_, runner_, slot, outside);
  std::vector<std::byte> frame;
  [[maybe_unused]] const auto held = runner_.hold(parts_, s.slot, where);
  const status made =
      sequence_saver<Spec, decltype(reader)>(coding_threads(exec), parts_, slot, std::move(reader), options, where).make(frame);
  return made.ok() ? to.put(key, frame) : made;
}

template <class Backend, class Spec>
template <class Store>
restoring<Backend, Spec, Store> cache<Backend, Spec>::restore_layers(const Backend& exec, const Store& from, const digest& key,
                                                                     const restore_options& options, call_site where) {
  static_assert(store<Store>, "restore: a store satisfies kvx::store");
  require_waits(exec, where);
  require_writable(parts_, where);
  restoring<Backend, Spec, Store> of;
  of.layers_ = geometry().layers;
  of.writer_.emplace(make_writer(exec, parts_, layout::owns_rows ? std::span<const std::int32_t>() : options.pages));
  of.state_ = of.stored_.open(coding_threads(exec), parts_, from, key, options, where);
  if (of.ok()) of.state_ = of.stored_.check(options.check_first);
  if (!of.ok()) return of;
  // Rows are reserved as those of a sequence of its length, none of whose layers are ready.
  const std::int64_t first = of.stored_.first_token();
  if (first > (options.after ? length(*options.after, where) : 0)) {
    of.state_ = {status::code::mismatch, "frame: its first token: it continues a sequence that is not here"};
    return of;
  }
  if (options.after) {
    of.of_ = fork(exec, *options.after, first, where);
  } else {
    of.of_ = open(exec, where);
  }
  try {
    const advance entry{of.of_, of.stored_.tokens(), options.pages, of.stored_.sections().first_kept()};
    kvx::step step(parts_.book, {&entry, 1}, parts_.retrieving_group(), contested_units<Spec>(parts_), where);
    plan_batch(exec, parts_, {&entry, 1}, step.plan_, where);
    runner_.place(exec, parts_, step.plan_, where);
    runner_.copy(exec, parts_, step.plan_.reserved.copies, where);
    runner_.forget_queries(exec, parts_, step.plan_);
    count_copies(step.plan_.reserved.copies);
    std::shared_ptr<balance_table> balance;
    if (!step.plan_.learning.empty()) of.state_ = read_balance(exec, of.stored_, parts_, step.plan_.learning[0], balance);
    if (of.ok()) of.state_ = has_columns(of.stored_, parts_, first + of.stored_.tokens(), of.columns_stored_);
    const bool own = balance != nullptr;
    of.columns_stored_ = of.columns_stored_ && (own || !parts_.balances.on());
    if (own) {
      learned_balance learned{{}, std::move(balance)};
      learned.samples.reserve(static_cast<std::size_t>(parts_.balances.rules().samples(parts_.balances.rules().tokens)));
      parts_.balances.assign(of.of_.slot, std::move(learned));
    }
    parts_.book->commit(step.plan_.reserved, {});
    parts_.book->set_ready(of.of_.slot, 0);
    of.plan_ = std::move(step.plan_);
    step.book_ = nullptr;
    of.tokens_ = first + of.stored_.tokens();
    of.together_ = !decodes_apart<Spec> || (parts_.balances.on() && parts_.balances.diagonals(of.of_.slot) == nullptr &&
                                            of.tokens_ >= parts_.balances.rules().tokens);
  } catch (...) {
    close(exec, of.of_, where);
    throw;
  }
  if (!of.ok()) close(exec, std::exchange(of.of_, {}), where);
  return of;
}

template <class Backend, class Spec>
template <class Store>
status cache<Backend, Spec>::decode_layer(const Backend& exec, restoring<Backend, Spec, Store>& of, call_site where) {
  require(of.ok(), "decode_layer: the sequence cannot be restored, see its state", where);
  const sequence_book::slot& slot = parts_.book->find(of.of_, where);
  if (of.done()) return {};
  require_waits(exec, where);
  require(!of.together_ || !slot.in_step, "decode_layer: layers of this sequence are decoded together, before a step of it is begun",
          where);
  for (std::size_t g = 0; g < of.plan_.items.size(); ++g) of.plan_.items[g][0].pages = slot.tables[g].pages.data();  // a step may move it
  for (batch_item& item : of.plan_.external) item.pages = of.writer_->outside().data();
  of.writer_->use(exec, parts_, runner_);
  if (!of.columns_stored_) runner_.place(exec, parts_, of.plan_, where);  // what is to be encoded may have gone far since the last call
  const int end = of.together_ ? of.layers_ : of.ready_ + 1;
  const std::size_t group = static_cast<std::size_t>(parts_.retrieving_group());
  for (int layer = of.ready_; layer < end && of.ok(); ++layer) {
    of.state_ = of.stored_.write_layer(coding_threads(exec), parts_, layer, slot.tables, *of.writer_);
    if (of.ok()) of.writer_->finish(layer, slot.tables);
    if (of.ok() && of.columns_stored_)
      of.state_ = read_columns(of.stored_, parts_, *of.writer_, layer, of.tokens_, slot.tables[group].pages);
  }
  if (!of.ok()) return of.state_;
  if (!of.columns_stored_) {
    [[maybe_unused]] const auto held = runner_.hold(parts_, of.of_.slot, where);  // rows of the sequence that it continues may be far
    runner_.encode(exec, parts_, of.plan_, {}, of.ready_, end - of.ready_, where);
  }
  of.ready_ = end;
  if (of.done() && !of.plan_.learning.empty())
    parts_.balances.accept(of.plan_.learning[0], of.plan_.reserved.parts[0], of.plan_.reserved.tokens);
  parts_.book->set_ready(of.of_.slot, of.done() ? sequence_book::all_layers : of.ready_);
  return {};
}

template <class Backend, class Spec>
template <class Store>
restored cache<Backend, Spec>::restore(const Backend& exec, const Store& from, const digest& key, const restore_options& options,
                                       call_site where) {
  restore_options at_once = options;
  at_once.check_first = false;
  restoring<Backend, Spec, Store> all = restore_layers(exec, from, key, at_once, where);
  if (!all.ok()) return {all.state(), {}, 0};
  try {
    while (all.ok() && !all.done()) (void)decode_layer(exec, all, where);
  } catch (...) {
    close(exec, all.of(), where);
    throw;
  }
  if (all.ok()) return {{}, all.of(), all.tokens()};
  close(exec, all.of(), where);
  return {all.state(), {}, 0};
}

template <class Backend, class Spec>
template <class Store>
restored cache<Backend, Spec>::restore_prefix(const Backend& exec, const Store& from, const prefix_index& prefixes,
                                              std::span<const std::int32_t> token_ids, const restore_options& options, call_site where) {
  restored result{{status::code::not_found, "no stored sequence begins like this"}, {}, 0};
  const digest of = family(options.salt);
  const auto attempt = [&](const prefix_match& match, std::int64_t tokens) {
    restore_options part = options;
    part.tokens = tokens;
    part.token_ids = token_ids;
    result = restore(exec, from, match.key, part, where);
    return result.ok();
  };
  const std::optional<prefix_match> longest = prefixes.longest(of, token_ids);
  if (!longest || attempt(*longest, longest->common)) return result;
  const restored of_longest = result;
  const std::vector<prefix_match> all = prefixes.all(of, token_ids);
  for (const prefix_match& match : all) {
    if ((match.key != longest->key || match.common != longest->common) && attempt(match, match.common)) return result;
  }
  std::int64_t sink = longest->common;  // a length that windows see whole
  for (const layer_group& group : parts_.plan.groups) sink = group.rules.window > 0 ? std::min(sink, group.rules.sink) : sink;
  for (const prefix_match& match : all) {
    if (sink > 0 && sink < match.common && attempt(match, sink)) return result;
  }
  return of_longest;
}

}  // namespace kvx
