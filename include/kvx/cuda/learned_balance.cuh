#pragma once
// Memory of the device for what sequences learn.

#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/learned_balance.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvx {

/// So many samples in one block of memory; `seen` is the host's, who knows which layers were shown queries.
inline std::vector<std::shared_ptr<query_sample>> make_samples(const device& exec, const learning_rules& r, std::int64_t count) {
  require_uncaptured(exec);
  const std::int64_t pitch = round_up(static_cast<std::int64_t>(r.values() * sizeof(bf16)), 64);
  const auto memory = std::make_shared<device_block>(allocate(exec, count * pitch));
  std::vector<std::shared_ptr<query_sample>> samples;
  for (std::int64_t i = 0; i < count; ++i) {
    samples.push_back(std::make_shared<query_sample>());
    samples.back()->energies = std::shared_ptr<bf16[]>(memory, reinterpret_cast<bf16*>(memory->data() + i * pitch));
    samples.back()->seen.resize(static_cast<std::size_t>(r.layers));
  }
  return samples;
}

/// Behind the diagonals lies what the device knows of `seen`; the table's own, the host's, counts heads whose queries held NaN or infinity
/// all the time, too.
inline std::shared_ptr<balance_table> make_balance_table(const device& exec, const learning_rules& r) {
  const auto memory = std::make_shared<device_block>(
      allocate(exec, static_cast<std::int64_t>(r.values() * sizeof(float)) + std::int64_t{r.layers} * r.heads));
  auto table = std::make_shared<balance_table>();
  table->diagonals = std::shared_ptr<float[]>(memory, reinterpret_cast<float*>(memory->data()));
  table->seen.resize(static_cast<std::size_t>(r.layers) * static_cast<std::size_t>(r.heads));
  return table;
}

/// `seen` (layers, heads) of a table in device memory.
inline std::uint8_t* seen_on_device(const learning_rules& r, const balance_table& table) {
  return reinterpret_cast<std::uint8_t*>(table.diagonals.get() + r.values());
}

}  // namespace kvx
