#pragma once
// The one thing the codec asks of a linear algebra library on the device: products of tokens with a basis of halves.

#include <kvx/core/element.hpp>

#include <cstdint>

namespace kvx {

struct device;  // of backend/device.cuh

/// A matrix whose numbers are sums of two halves, row-major: 22 bits of a float, which tensor cores multiply without rounding.
struct two_halves {
  half* high = nullptr;
  half* low = nullptr;
  std::int64_t pitch = 0;
};

/// A borrowed product of float precision, enqueued on the stream of `exec`; sums are floats.
///
/// project     out (n, m): out_ji = sum over k of x_ik b_jk, with x (m, k) and b (n, k)
/// restore     out (m, n): out_ij = sum over k of x_ki b_kj, with x (k, m) and b (k, n)
/// shapes      m tokens; all row-major with pitches in numbers; k may be 0, and out is 0 then
/// exactness   the same bits on every run
/// context     handed to run as it is; it must outlive every call that takes the struct
struct half_product {
  enum class direction : std::uint8_t { project, restore };
  struct shape {
    direction way = direction::project;
    std::int64_t m = 0, n = 0, k = 0;
  };
  void (*run)(void* context, const device& exec, const shape& s, const two_halves& x, const half* b, std::int64_t b_pitch, float* out,
              std::int64_t out_pitch) = nullptr;
  void* context = nullptr;
};

}  // namespace kvx
