#pragma once
// A store in memory.

#include <kvx/store/store.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Frames in this process's memory. Any number of threads may call it at once.
class memory_store {
 public:
  class reader {
   public:
    std::uint64_t size() const { return bytes_ == nullptr ? 0 : bytes_->size(); }
    status read(std::uint64_t offset, std::span<std::byte> out) const {
      if (offset > size() || out.size() > size() - offset) return {status::code::truncated, "store: bytes beyond the end"};
      if (!out.empty()) std::memcpy(out.data(), bytes_->data() + offset, out.size());
      return {};
    }

   private:
    friend memory_store;
    std::shared_ptr<const std::vector<std::byte>> bytes_;
  };

  status put(const digest& key, std::span<const std::byte> bytes) {
    auto copy = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
    const std::unique_lock lock(mutex_);
    std::swap(entries_[key], copy);
    return {};
  }

  status open(const digest& key, reader& r) const {
    const std::shared_lock lock(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end()) return {status::code::not_found, ""};
    r.bytes_ = at->second;
    return {};
  }

  status erase(const digest& key) {
    const std::unique_lock lock(mutex_);
    return entries_.erase(key) > 0 ? status{} : status{status::code::not_found, ""};
  }

  status list(std::vector<digest>& keys) const {
    const std::shared_lock lock(mutex_);
    keys.clear();
    for (const auto& [key, bytes] : entries_) keys.push_back(key);
    return {};
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<digest, std::shared_ptr<const std::vector<std::byte>>> entries_;
};
static_assert(store<memory_store>);

}  // namespace kvx
