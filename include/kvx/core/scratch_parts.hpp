#pragma once
// Parts of one block of scratch memory, handed out one after the other.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Hands out parts of a block of memory, each at a multiple of 64 bytes. Without a block it counts what they take.
struct scratch_parts {
  std::byte* data = nullptr;
  std::int64_t used = 0;

  template <class T>
  KVX_HD T* take(std::int64_t count) {
    T* const part = data != nullptr ? reinterpret_cast<T*>(data + used) : nullptr;
    used += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return part;
  }
};

}  // namespace kvx
