#include "caches.hpp"

#include "cache_lines.hpp"
#include "device_caches.hpp"

#include <algorithm>

namespace decode_loop {

std::span<const cache_choice> all_caches() {
  static const std::vector<cache_choice> table = [] {
    std::vector<cache_choice> lines = dense_caches();
    for (cache_choice& line : paris_caches()) lines.push_back(std::move(line));
    for (cache_choice& line : ice_caches()) lines.push_back(std::move(line));
    for (cache_choice& line : stored_caches()) lines.push_back(std::move(line));
    std::stable_partition(lines.begin(), lines.end(), [](const cache_choice& line) { return line.by_default; });
    return lines;
  }();
  return table;
}

const cache_choice* find_cache(std::string_view name) {
  for (const std::span<const cache_choice> table : {all_caches(), device_caches()}) {
    for (const cache_choice& choice : table) {
      if (choice.name == name) return &choice;
    }
  }
  return nullptr;
}

std::unique_ptr<any_cache> make_reference(const kvx::host& exec, const cache_request& request) {
  return find_cache("full-float")->make(exec, request);
}

}  // namespace decode_loop
