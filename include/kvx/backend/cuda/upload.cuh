#pragma once
// Small pieces of host memory, brought to addresses of the device by one launch: what a host plans for the kernels that follow.

#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/pinned.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvx {

/// Bytes that are to lie at an address of the device. Multiples of 4, both addresses and the size.
struct upload_piece {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
};

/// What one block brings: words [from, from + words) of the staging buffer.
struct upload_chunk {
  std::uint32_t* to = nullptr;
  std::int64_t from = 0;
  std::int64_t words = 0;
};

inline constexpr int upload_threads = 128;
inline constexpr std::int64_t upload_chunk_words = 1024;

/// staged      page-locked: first the chunks (grid.x), then their words
template <int Threads>
__global__ void __launch_bounds__(Threads) upload_chunks(const std::uint32_t* staged) {
  const upload_chunk chunk = reinterpret_cast<const upload_chunk*>(staged)[blockIdx.x];
  for (std::int64_t i = threadIdx.x; i < chunk.words; i += Threads) chunk.to[i] = staged[chunk.from + i];
}

/// Staging buffers that take turns.
///
/// what        pieces are copied before the call returns, and reach the device in the order of the stream
/// cost        one launch; a buffer is not touched before its last upload is done, so a host that runs more uploads ahead than there are
///             buffers waits here. A buffer that is too small is allocated anew
/// errors      usage_error while the stream is captured: a graph would bring the same words for ever; cuda_error. Nothing has been
///             enqueued then
class upload_ring {
 public:
  static constexpr std::size_t buffers = 4;

  void enqueue(const device& exec, std::span<const upload_piece> pieces) {
    std::int64_t chunks = 0, words = 0;
    for (const upload_piece& p : pieces) {
      chunks += ceil_div(p.bytes / 4, upload_chunk_words);
      words += p.bytes / 4;
    }
    if (chunks == 0) return;
    require_uncaptured(exec);
    const std::int64_t head = chunks * static_cast<std::int64_t>(sizeof(upload_chunk)) / 4;
    buffer& next = ring_[turn_];
    if (!next.ready) next = {{}, event(exec.ordinal), true};
    next.done.synchronize();
    const std::int64_t bytes = 4 * (head + words);
    if (bytes > next.memory.size()) next.memory = pinned_block(exec.ordinal, round_up(bytes + bytes / 2, 4096));
    auto* chunk = reinterpret_cast<upload_chunk*>(next.memory.data());
    std::int64_t at = head;
    for (const upload_piece& p : pieces) {
      if (p.bytes == 0) continue;
      std::memcpy(next.memory.data() + 4 * at, p.from, static_cast<std::size_t>(p.bytes));
      for (std::int64_t done = 0; done < p.bytes / 4; done += upload_chunk_words) {
        const std::int64_t left = p.bytes / 4 - done;
        *chunk++ = {static_cast<std::uint32_t*>(p.to) + done, at + done, left < upload_chunk_words ? left : upload_chunk_words};
      }
      at += p.bytes / 4;
    }
    launch(exec, {.grid = dim3(static_cast<unsigned>(chunks)), .threads = upload_threads}, upload_chunks<upload_threads>,
           reinterpret_cast<const std::uint32_t*>(next.memory.data()));
    next.done.record(exec);
    turn_ = (turn_ + 1) % buffers;
  }

  ~upload_ring() {
    for (const buffer& b : ring_) {
      try {
        b.done.synchronize();
      } catch (...) {  // the device is lost: nothing reads the buffer any more
      }
    }
  }
  upload_ring() = default;
  upload_ring(upload_ring&&) = default;
  upload_ring& operator=(upload_ring&&) = default;

 private:
  struct buffer {
    pinned_block memory;
    event done;
    bool ready = false;
  };
  buffer ring_[buffers];
  std::size_t turn_ = 0;
};

}  // namespace kvx
