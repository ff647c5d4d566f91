#pragma once
// A range cut into one share a thread.

#include <kvx/backend/host.hpp>

#include <algorithm>
#include <cstdint>

namespace decode_loop {

/// body(first, last) for shares that together are [0, count), side by side on the threads of `exec`, whose number must be set.
template <class Body>
void for_each_share(const kvx::host& exec, std::int64_t count, const Body& body) {
  const std::int64_t shares = std::min<std::int64_t>(count, std::max(exec.threads, 1));
  kvx::for_each_task(exec, shares, [&](std::int64_t i) { body(count * i / shares, count * (i + 1) / shares); });
}

}  // namespace decode_loop
