// No cache types on a device: what the program is built with where CUDA is left out.

#include "device_caches.hpp"

namespace decode_loop {

std::span<const cache_choice> device_caches() { return {}; }

}  // namespace decode_loop
