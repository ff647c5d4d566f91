#pragma once
// A store in a folder: one file a key, replaced as a whole.

#include <kvx/backend/file_handle.hpp>
#include <kvx/store/file_calls.hpp>
#include <kvx/store/store.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace kvx {

/// Frames in the files <key in hexadecimal>.kvx of a folder, readable by their owner alone. Any number of processes and threads may use one
/// folder at once.
///
/// what        put writes a file of another name, waits until it is on the disk, renames it, and waits until the folder is on the disk: a
///             crash at any point, of the process or the machine, leaves the old bytes or the new
/// synced      false: does not wait for the disk. A crash of the process is then survived, one of the machine leaves what the file system
///             makes of it; the frame's checksums tell
/// errors      io, what names the call, or says that files of this process may not become so long; not_found
class file_store {
 public:
  explicit file_store(std::filesystem::path folder, bool synced = true, file_calls calls = {})
      : folder_(std::move(folder)), synced_(synced), calls_(calls) {}

  class reader {
   public:
    std::uint64_t size() const { return size_; }
    status read(std::uint64_t offset, std::span<std::byte> out) const {
      if (offset > size_ || out.size() > size_ - offset) return {status::code::truncated, "store: bytes beyond the end"};
      while (!out.empty()) {
        const ssize_t n = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return {status::code::io, "store: read"};
        if (n == 0) return {status::code::truncated, "store: the file became shorter"};
        out = out.subspan(static_cast<std::size_t>(n));
        offset += static_cast<std::uint64_t>(n);
      }
      return {};
    }

   private:
    friend file_store;
    file_handle file_;
    std::uint64_t size_ = 0;
  };

  status put(const digest& key, std::span<const std::byte> bytes) {
    if (!may_grow_to(bytes.size())) return {status::code::io, "store: longer than files may become"};
    std::error_code failed;
    std::filesystem::create_directories(folder_, failed);
    if (failed) return {status::code::io, "store: create the folder"};
    std::string name;
    file_handle file;
    const status made = create(key, name, file);
    if (!made.ok()) return made;
    const status written = write_all(file.get(), bytes);
    if (!written.ok()) return abandon(name, written);
    if (synced_ && calls_.fsync(file.get()) != 0) return abandon(name, {status::code::io, "store: fsync of the file"});
    if (calls_.rename(name.c_str(), path_of(key).c_str()) != 0) return abandon(name, {status::code::io, "store: rename"});
    return sync_folder();
  }

  status open(const digest& key, reader& r) const {
    reader opened;
    opened.file_ = file_handle(calls_.open(path_of(key).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0));  // a pipe would wait for a writer
    if (!opened.file_.ok()) return errno == ENOENT ? status{status::code::not_found, ""} : status{status::code::io, "store: open"};
    struct stat about = {};
    if (::fstat(opened.file_.get(), &about) != 0) return {status::code::io, "store: fstat"};
    if (!S_ISREG(about.st_mode)) return {status::code::io, "store: no regular file"};
    opened.size_ = static_cast<std::uint64_t>(about.st_size);
    r = std::move(opened);
    return {};
  }

  status erase(const digest& key) {
    if (calls_.unlink(path_of(key).c_str()) != 0)
      return errno == ENOENT ? status{status::code::not_found, ""} : status{status::code::io, "store: unlink"};
    return sync_folder();
  }

  status list(std::vector<digest>& keys) const {
    keys.clear();
    return for_each_file([&](const std::filesystem::path& path) {
      digest key;
      if (path.extension() == ".kvx" && from_hex(path.stem().string(), key)) keys.push_back(key);
    });
  }

  /// Removes what writers that died have left; files of writers at work are locked, and stay.
  status remove_leftovers() {
    return for_each_file([&](const std::filesystem::path& path) {
      if (path.extension() != ".partial") return;
      const file_handle file(calls_.open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0));
      if (file.ok() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) calls_.unlink(path.c_str());
    });
  }

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::string path_of(const digest& key) const { return (folder_ / (to_hex(key) + ".kvx")).string(); }

  static bool from_hex(std::string_view text, digest& key) {
    if (text.size() != 2 * key.bytes.size()) return false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto digit = std::string_view("0123456789abcdef").find(text[i]);
      if (digit == std::string_view::npos) return false;
      key.bytes[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? digit << 4 : key.bytes[i / 2] | digit);
    }
    return true;
  }

  template <class F>
  status for_each_file(const F& f) const {
    std::error_code failed;
    std::filesystem::directory_iterator at(folder_, failed);
    if (failed == std::errc::no_such_file_or_directory) return {};
    for (const std::filesystem::directory_iterator end; !failed && at != end; at.increment(failed)) f(at->path());
    return failed ? status{status::code::io, "store: read the folder"} : status{};
  }

  /// A new file that nobody else has, locked while it is written.
  status create(const digest& key, std::string& name, file_handle& file) const {
    static std::atomic<std::uint64_t> serial = 0;
    for (int attempt = 0; attempt < 100; ++attempt) {
      name = (folder_ / (to_hex(key) + "." + std::to_string(::getpid()) + "." + std::to_string(serial++) + ".partial")).string();
      file = file_handle(calls_.open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      if (!file.ok() && errno == EEXIST) continue;  // left by a process that had this number before
      if (!file.ok()) return {status::code::io, "store: create a file"};
      struct stat about = {};
      // Between its creation and its lock somebody may have taken it for a leftover.
      if (::flock(file.get(), LOCK_EX) == 0 && ::fstat(file.get(), &about) == 0 && about.st_nlink > 0) return {};
      calls_.unlink(name.c_str());  // where files cannot be locked, nobody else would remove it
    }
    return {status::code::io, "store: create a file"};
  }

  status write_all(int file, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = calls_.write(file, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return {status::code::io, errno == ENOSPC ? "store: no space on the device" : "store: write"};
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }

  status abandon(const std::string& name, const status& why) const {
    calls_.unlink(name.c_str());
    return why;
  }

  status sync_folder() const {
    if (!synced_) return {};
    const file_handle folder(calls_.open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
    if (!folder.ok() || calls_.fsync(folder.get()) != 0) return {status::code::io, "store: fsync of the folder"};
    return {};
  }

  std::filesystem::path folder_;
  bool synced_;
  file_calls calls_;
};
static_assert(store<file_store>);

}  // namespace kvx
