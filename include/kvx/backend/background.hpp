#pragma once
// A thread that does jobs one after the other beside the caller's, few of which wait.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace kvx {

/// What a background has done, in seconds since it was made: at work, and while somebody waited for it.
struct background_times {
  double busy = 0;
  double waited_for = 0;
};

/// One thread and a bounded queue. Jobs never throw; they run in the order in which they came.
///
/// owner       whose jobs may be called off together; tag: by which they are waited for
/// threads     every call from any thread, but no call from a job
class background {
 public:
  /// most        jobs that wait or run; `push` waits while there are so many
  explicit background(int most) : most_(static_cast<std::size_t>(most)), thread_([this] { serve(); }) {}
  background(const background&) = delete;
  background& operator=(const background&) = delete;
  ~background() { stop(); }

  /// After `stop` nothing is done any more.
  void push(const void* owner, std::int64_t tag, std::function<void()> work) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return queue_.size() < most_ || stopped_; });
    if (stopped_) return;
    queue_.push_back({owner, tag, std::move(work)});
    changed_.notify_all();
  }

  void finish() {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return queue_.empty(); });
  }
  void finish_tag(std::int64_t tag) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return none([&](const job& j) { return j.tag == tag; }); });
  }
  void finish_owner(const void* owner) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return none([&](const job& j) { return j.owner == owner; }); });
  }

  /// Jobs of an owner that have not begun are dropped; returns when none runs.
  void call_off(const void* owner) noexcept {
    std::unique_lock lock(mutex_);
    for (std::size_t i = queue_.size(); i-- > (running_ ? 1u : 0u);) {
      if (queue_[i].owner == owner) queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return none([&](const job& j) { return j.owner == owner; }); });
  }

  /// The same for all owners, for good.
  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      while (queue_.size() > (running_ ? 1u : 0u)) queue_.pop_back();
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  background_times times() const {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  using clock = std::chrono::steady_clock;
  struct job {
    const void* owner = nullptr;
    std::int64_t tag = 0;
    std::function<void()> work;
  };
  template <class Which>
  bool none(const Which& which) const {
    for (const job& j : queue_) {
      if (which(j)) return false;
    }
    return true;
  }
  static double since(clock::time_point start) { return std::chrono::duration<double>(clock::now() - start).count(); }

  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, const Done& done) {
    if (done()) return;
    const clock::time_point start = clock::now();
    changed_.wait(lock, done);
    times_.waited_for += since(start);
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
      if (queue_.empty()) return;
      running_ = true;
      const std::function<void()> work = std::move(queue_.front().work);
      lock.unlock();
      const clock::time_point start = clock::now();
      work();
      const double took = since(start);
      lock.lock();
      times_.busy += took;
      queue_.pop_front();  // it stood there while it ran
      running_ = false;
      changed_.notify_all();
    }
  }

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<job> queue_;
  bool running_ = false;  // the first of the queue
  bool stopped_ = false;
  background_times times_;
  std::thread thread_;  // begins when all else is there
};

}  // namespace kvx
