#pragma once
// Cache types on a CUDA device: the model runs on the host, its rows and queries are copied to the device and back.

#include "caches.hpp"

#include <span>

namespace decode_loop {

/// Lines for --backend device; none where the program was built without CUDA or finds no device.
std::span<const cache_choice> device_caches();

}  // namespace decode_loop
