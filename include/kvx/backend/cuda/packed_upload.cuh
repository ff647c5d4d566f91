#pragma once
// Arrays of the host that are brought to the device together: one block of memory, one copy.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace kvx {

/// Gathers arrays, each on a multiple of 64 bytes, and places them in device memory.
///
/// use         `add` every array, `place` them once, then `at` their addresses; `put` what holds addresses itself; `bring` the bytes over
/// cost        one allocation and one copy, waited for: not for a stream that is captured
class packed_upload {
 public:
  /// Where an array will lie; none where it is empty.
  template <class T>
  struct array {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  /// from        (count); null: no array, whatever the count
  template <class T>
  array<T> add(const T* from, std::int64_t count) {
    const array<T> to = room_for<T>(from != nullptr ? count : 0);
    put(to, from);
    return to;
  }
  template <class T>
  array<T> add(const std::vector<T>& from) {
    return add(from.data(), std::ssize(from));
  }

  /// Room for values that are not known before `place`.
  template <class T>
  array<T> room_for(std::int64_t count) {
    const array<T> to{std::ssize(bytes_), count};
    bytes_.resize(static_cast<std::size_t>(to.first + round_up(count * static_cast<std::int64_t>(sizeof(T)), 64)));
    return to;
  }
  template <class T>
  void put(const array<T>& to, const T* from) {
    if (to.count > 0) std::memcpy(bytes_.data() + to.first, from, static_cast<std::size_t>(to.count) * sizeof(T));
  }

  device_block place(const device& exec) {
    device_block memory = allocate(exec, std::ssize(bytes_));
    there_ = memory.data();
    return memory;
  }
  template <class T>
  const T* at(const array<T>& of) const {
    return of.count > 0 ? reinterpret_cast<const T*>(there_ + of.first) : nullptr;
  }
  void bring(const device& exec, call_site where = call_site::here()) const {
    copy_in_and_wait(exec, there_, bytes_.data(), std::ssize(bytes_), where);
  }

 private:
  std::vector<std::byte> bytes_;
  std::byte* there_ = nullptr;
};

}  // namespace kvx
