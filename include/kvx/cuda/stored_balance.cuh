#pragma once
// What a sequence on the device has learned, to the host and back.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/copy_out.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/backend/host.hpp>
#include <kvx/core/element.hpp>
#include <kvx/cuda/learned_balance.cuh>
#include <kvx/learned_balance.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvx {

/// A copy in host memory.
///
/// cost        waits for the stream
inline learned_balance on_host(const device& exec, const learning_rules& r, const learned_balance& from) {
  learned_balance copy;
  const std::vector<std::shared_ptr<query_sample>> samples = make_samples(host{}, r, std::ssize(from.samples));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    copy_out(exec, samples[i]->energies.get(), from.samples[i]->energies.get(), static_cast<std::int64_t>(r.values() * sizeof(bf16)));
    samples[i]->seen = from.samples[i]->seen;
    copy.samples.push_back(samples[i]);
  }
  wait_for(exec);
  if (from.balance == nullptr) return copy;
  const std::shared_ptr<balance_table> table = make_balance_table(host{}, r);
  copy_out_and_wait(exec, table->diagonals.get(), from.balance->diagonals.get(), static_cast<std::int64_t>(r.values() * sizeof(float)));
  copy_out_and_wait(exec, table->seen.data(), seen_on_device(r, *from.balance), std::ssize(table->seen));
  copy.balance = table;
  return copy;
}

/// See stored_access.hpp.
inline void take_samples(const device& exec, const learning_rules& r, std::vector<std::shared_ptr<query_sample>>&& samples,
                         learning_entry& entry) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    copy_in_and_wait(exec, entry.samples[i]->energies.get(), samples[i]->energies.get(),
                     static_cast<std::int64_t>(r.values() * sizeof(bf16)));
    entry.samples[i]->seen = std::move(samples[i]->seen);
  }
}
inline std::shared_ptr<balance_table> take_table(const device& exec, const learning_rules& r, std::shared_ptr<balance_table>&& from) {
  std::shared_ptr<balance_table> table = make_balance_table(exec, r);
  copy_in_and_wait(exec, table->diagonals.get(), from->diagonals.get(), static_cast<std::int64_t>(r.values() * sizeof(float)));
  copy_in_and_wait(exec, seen_on_device(r, *table), from->seen.data(), std::ssize(from->seen));
  table->seen = std::move(from->seen);
  return table;
}

}  // namespace kvx
