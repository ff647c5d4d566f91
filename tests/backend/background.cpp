// The thread beside the caller: few jobs wait, one kind is waited for alone, what is called off is never done, and stopping does not hang.

#include <kvx/backend/background.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using kvx::background;

/// Jobs wait here until it is opened.
class gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// Time in which whoever does not wait would have gone on.
void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

}  // namespace

TEST_CASE("background: jobs are done in their order; whoever pushes one too many waits") {
  gate shut;
  std::vector<int> done;
  std::atomic<int> pushed{0};
  background by(2);
  std::thread caller([&] {
    for (int i = 0; i < 5; ++i) {
      by.push(&by, i, [&, i] {
        shut.pass();
        done.push_back(i);
      });
      ++pushed;
    }
  });
  while (pushed < 2) std::this_thread::yield();
  wait_a_little();
  CHECK(pushed == 2);
  shut.open();
  caller.join();
  by.finish();
  CHECK(done == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("background: jobs of one tag or owner are waited for alone") {
  gate first, second;
  std::atomic<int> done{0};
  int a = 0, b = 0;
  background by(4);
  by.push(&a, 1, [&] { first.pass(), ++done; });
  by.push(&b, 2, [&] { second.pass(), ++done; });
  by.finish_tag(7);
  by.finish_owner(&done);
  CHECK(done == 0);
  first.open();
  by.finish_tag(1);
  by.finish_owner(&a);
  CHECK(done == 1);
  second.open();
  by.finish_tag(2);
  CHECK(done == 2);
  CHECK(by.times().busy > 0);
}

TEST_CASE("background: what is called off or stopped is never begun with, and whoever waits to push goes on") {
  gate shut;
  std::atomic<int> done{0};
  std::atomic<bool> begun{false};
  int a = 0, b = 0;
  background by(2);
  by.push(&a, 0, [&] {
    begun = true;
    shut.pass();
    ++done;
  });
  while (!begun) std::this_thread::yield();
  by.push(&b, 0, [&] { done += 10; });
  by.call_off(&b);
  by.push(&b, 0, [&] { done += 100; });
  std::thread caller([&] { by.push(&b, 0, [&] { done += 1000; }); });
  std::thread opener([&] {
    wait_a_little();
    shut.open();
  });
  by.stop();
  caller.join();
  opener.join();
  CHECK(done == 1);
  by.push(&a, 0, [&] { done += 10000; });
  by.finish();
  CHECK(done == 1);
}
