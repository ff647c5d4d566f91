#include "device_caches.hpp"

namespace decode_loop {

std::span<const cache_choice> device_caches() { return {}; }

}  // namespace decode_loop
