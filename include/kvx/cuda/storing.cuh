#pragma once
// Saving and restoring the sequences of a cache on the device: `save`, `restore` and their kin are those of storing.hpp.

#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/core/check.hpp>
#include <kvx/cuda/device_runner.cuh>
#include <kvx/cuda/stored_balance.cuh>
#include <kvx/cuda/stored_reader.cuh>
#include <kvx/cuda/stored_writer.cuh>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/storing.hpp>

#include <cstdint>
#include <span>

namespace kvx {

inline host coding_threads(const device&) { return {}; }
inline void require_waits(const device& exec, call_site where) { require_uncaptured(exec, where); }

template <class Spec>
device_reader<Spec> make_reader(const device& exec, const cache_parts<Spec>& of, const device_runner<Spec>& runner,
                                const sequence_book::slot& s, std::span<const std::int32_t>) {
  return {exec, of, runner, s};
}

template <class Spec>
device_writer<Spec> make_writer(const device&, const cache_parts<Spec>&, std::span<const std::int32_t>) {
  return {};
}

}  // namespace kvx
