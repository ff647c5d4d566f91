// A file store survives a crash at any point: the old bytes or the new, never a mixture; a system that refuses is reported.

#include <support/temporary_folder.hpp>

#include <kvx/codec/frame.hpp>
#include <kvx/store/file_store.hpp>

#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace kvx;
using namespace kvx::test;

namespace {

const digest key = field_digest().add("key", 1).finish();

/// A frame that says its version, and whose length and bytes follow from it.
std::vector<std::byte> version(std::uint32_t n) {
  frame_header h;
  h.first_token = n;
  frame_writer writer(h, 1);
  std::mt19937 random(n);
  std::vector<std::byte> payload(random() % 200000);
  std::memset(payload.data(), static_cast<int>(n & 255), payload.size());
  writer.add({}, payload);
  return writer.finish();
}

/// The version that a folder holds; checks that it is whole.
std::uint32_t version_in(const file_store& s) {
  std::vector<std::byte> bytes;
  REQUIRE(read_all(s, key, 1 << 20, bytes).ok());
  frame_view view;
  const status checked = check_frame(bytes, view);
  REQUIRE_MESSAGE(checked.ok(), message(checked));
  const auto n = static_cast<std::uint32_t>(view.header.first_token);
  CHECK(bytes == version(n));
  return n;
}

std::size_t partial_files(const std::filesystem::path& folder) {
  std::size_t n = 0;
  for (const auto& f : std::filesystem::directory_iterator(folder)) n += f.path().extension() == ".partial";
  return n;
}

/// Calls of the system that fail, or end the process's part in it, from a certain one on.
struct script {
  int calls = 0;
  int stop_at = -1;       ///< this call and all later ones do nothing: the process is dead
  int fail_at = -1;       ///< this call fails once
  bool short_writes = false;
  std::vector<std::string> log;
} now;

struct crash {};

bool refused(const char* name) {
  if (now.calls == now.stop_at) throw crash();
  now.log.emplace_back(name);
  if (now.calls++ != now.fail_at) return false;
  errno = ENOSPC;
  return true;
}

const file_calls scripted = {
    [](const char* path, int flags, mode_t mode) { return refused("open") ? -1 : ::open(path, flags, mode); },
    [](int file, const void* bytes, std::size_t count) -> ssize_t {
      if (refused("write")) return -1;
      return ::write(file, bytes, now.short_writes && count > 1 ? count / 2 : count);
    },
    [](int file) { return refused("fsync") ? -1 : ::fsync(file); },
    [](const char* from, const char* to) { return refused("rename") ? -1 : std::rename(from, to); },
    [](const char* path) { return refused("unlink") ? -1 : ::unlink(path); },
};

}  // namespace

TEST_CASE("the order of calls: the file is on the disk before it has its name, and the folder before put returns") {
  temporary_folder folder;
  now = {};
  file_store s(folder.path(), true, scripted);
  REQUIRE(s.put(key, version(1)).ok());
  CHECK(now.log == std::vector<std::string>{"open", "write", "fsync", "rename", "open", "fsync"});
}

TEST_CASE("a process that dies before any call leaves the old version or the new; its file goes when it is looked for") {
  for (int stop = 0; stop < 7; ++stop) {
    CAPTURE(stop);
    temporary_folder folder;
    file_store sound(folder.path(), false);
    REQUIRE(sound.put(key, version(1)).ok());
    now = {};
    now.stop_at = stop;
    file_store s(folder.path(), true, scripted);
    bool died = false;
    try {
      died = !s.put(key, version(2)).ok();
    } catch (const crash&) {
      died = true;
    }
    CHECK(died == (stop < 6));
    CHECK(version_in(sound) == (stop <= 3 ? 1 : 2));  // the fourth call renames
    CHECK(partial_files(folder.path()) == (stop >= 1 && stop <= 3 ? 1 : 0));
    std::vector<digest> keys;
    CHECK(sound.list(keys).ok());
    CHECK(keys.size() == 1);
    CHECK(sound.remove_leftovers().ok());
    CHECK(partial_files(folder.path()) == 0);
  }
}

TEST_CASE("a system that refuses any call: io, which call, and the old version stays until the rename") {
  for (int fail = 0; fail < 6; ++fail) {
    CAPTURE(fail);
    temporary_folder folder;
    file_store sound(folder.path(), false);
    REQUIRE(sound.put(key, version(1)).ok());
    now = {};
    now.fail_at = fail;
    file_store s(folder.path(), true, scripted);
    const status result = s.put(key, version(2));
    CHECK(result == status::code::io);
    CHECK(version_in(sound) == (fail <= 3 ? 1 : 2));
    CHECK(partial_files(folder.path()) == 0);
    if (fail == 1) CHECK(message(result) == "input and output: store: no space on the device");
  }
}

TEST_CASE("writes that are taken in part are continued") {
  temporary_folder folder;
  now = {};
  now.short_writes = true;
  file_store s(folder.path(), true, scripted);
  REQUIRE(s.put(key, version(5)).ok());
  CHECK(version_in(s) == 5);
}

TEST_CASE("the file of a writer at work is no leftover") {
  temporary_folder folder;
  now = {};
  static file_store* other;
  file_store cleaner(folder.path(), false);
  other = &cleaner;
  file_calls calls = scripted;
  calls.fsync = [](int file) {
    CHECK(other->remove_leftovers().ok());
    return ::fsync(file);
  };
  file_store s(folder.path(), true, calls);
  REQUIRE(s.put(key, version(6)).ok());
  CHECK(version_in(s) == 6);
}

TEST_CASE("a file that is taken for a leftover before its writer has locked it is written under another name") {
  temporary_folder folder;
  now = {};
  static file_store* other;
  static int created;
  file_store cleaner(folder.path(), false);
  other = &cleaner;
  created = 0;
  file_calls calls = scripted;
  calls.open = [](const char* path, int flags, mode_t mode) {
    const int file = ::open(path, flags, mode);
    if ((flags & O_CREAT) != 0 && created++ < 3) CHECK(other->remove_leftovers().ok());
    return file;
  };
  file_store s(folder.path(), false, calls);
  REQUIRE(s.put(key, version(6)).ok());
  CHECK(created == 4);
  CHECK(version_in(s) == 6);
  CHECK(partial_files(folder.path()) == 0);
}

TEST_CASE("a writer killed at random moments leaves a whole version, none older than the last that it confirmed") {
  temporary_folder folder;
  file_store s(folder.path(), true);
  REQUIRE(s.put(key, version(0)).ok());
  std::mt19937 random(7);
  std::uint32_t last = 0;
  int interrupted = 0;
  for (int round = 0; round < 40; ++round) {
    int pipe_ends[2];
    REQUIRE(pipe(pipe_ends) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(pipe_ends[0]);
      for (std::uint32_t n = last + 1;; ++n) {
        if (!s.put(key, version(n)).ok() || write(pipe_ends[1], &n, sizeof n) != static_cast<ssize_t>(sizeof n)) _exit(1);
      }
    }
    close(pipe_ends[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 15000));
    kill(child, SIGKILL);
    int outcome = 0;
    REQUIRE(waitpid(child, &outcome, 0) == child);
    CHECK(WIFSIGNALED(outcome));
    std::uint32_t confirmed = last, n = 0;
    while (read(pipe_ends[0], &n, sizeof n) == static_cast<ssize_t>(sizeof n)) confirmed = n;
    close(pipe_ends[0]);
    const std::uint32_t found = version_in(s);
    CHECK(found >= confirmed);
    CHECK(found <= confirmed + 1);
    last = found;
    interrupted += partial_files(folder.path()) > 0;
    CHECK(s.remove_leftovers().ok());
    CHECK(partial_files(folder.path()) == 0);
  }
  MESSAGE(last, " versions, ", interrupted, " of 40 writers died in the middle of one");
}
