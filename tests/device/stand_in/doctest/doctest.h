#pragma once
// What the tests of tests/device use of doctest, for a GPU machine that has no doctest (tests/device.sh): cases, checks, one line a
// failure.
//
// CAPTURE says nothing here: who needs the values runs the test with doctest.

#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

namespace doctest {

struct stopped {};

struct test_case {
  const char* name;
  void (*run)();
};
inline std::vector<test_case>& cases() {
  static std::vector<test_case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
inline int add(const char* name, void (*run)()) {
  cases().push_back({name, run});
  return 0;
}
inline void fail(const char* what, const char* file, int line) {
  ++failures();
  std::printf("%s:%d: FAILED: %s\n", file, line, what);
}

class Approx {
 public:
  explicit Approx(double value) : value_(value) {}
  Approx& epsilon(double relative) {
    epsilon_ = relative;
    return *this;
  }
  friend bool operator==(double x, const Approx& a) {
    return std::fabs(x - a.value_) < a.epsilon_ * (1 + std::fmax(std::fabs(x), std::fabs(a.value_)));
  }

 private:
  double value_, epsilon_ = 1.1920929e-5;
};

/// Runs all cases; the number that the program ends with.
inline int run_all() {
  for (const test_case& c : cases()) {
    const int before = failures();
    try {
      c.run();
    } catch (const stopped&) {
    } catch (const std::exception& e) {
      fail(e.what(), c.name, 0);
    }
    if (failures() > before) std::printf("in the case: %s\n", c.name);
  }
  std::printf("%zu cases, %d failures\n", cases().size(), failures());
  return failures() == 0 && !cases().empty() ? 0 : 1;
}

}  // namespace doctest

#define DOCTEST_JOIN_(a, b) a##b
#define DOCTEST_JOIN(a, b) DOCTEST_JOIN_(a, b)
#define DOCTEST_CASE(name, f, added)                               \
  static void f();                                                 \
  [[maybe_unused]] static const int added = doctest::add(name, f); \
  static void f()
#define TEST_CASE(name) DOCTEST_CASE(name, DOCTEST_JOIN(doctest_case_, __LINE__), DOCTEST_JOIN(doctest_added_, __LINE__))
#define DOCTEST_TEMPLATE(name, T, f, add_all, added, ...)           \
  template <class T>                                                \
  static void f();                                                  \
  template <class... Ts>                                            \
  static int add_all() {                                            \
    return (doctest::add(name, f<Ts>) + ...);                       \
  }                                                                 \
  [[maybe_unused]] static const int added = add_all<__VA_ARGS__>(); \
  template <class T>                                                \
  static void f()
#define TEST_CASE_TEMPLATE(name, T, ...)                                                                 \
  DOCTEST_TEMPLATE(name, T, DOCTEST_JOIN(doctest_case_, __LINE__), DOCTEST_JOIN(doctest_add_, __LINE__), \
                   DOCTEST_JOIN(doctest_added_, __LINE__), __VA_ARGS__)

#define CHECK(...)                                                                        \
  do {                                                                                    \
    if (!static_cast<bool>(__VA_ARGS__)) doctest::fail(#__VA_ARGS__, __FILE__, __LINE__); \
  } while (false)
#define CHECK_FALSE(...) CHECK(!(__VA_ARGS__))
#define REQUIRE(...)                                   \
  do {                                                 \
    if (!static_cast<bool>(__VA_ARGS__)) {             \
      doctest::fail(#__VA_ARGS__, __FILE__, __LINE__); \
      throw doctest::stopped{};                        \
    }                                                  \
  } while (false)
#define FAIL(...)                              \
  do {                                         \
    doctest::fail("FAIL", __FILE__, __LINE__); \
    throw doctest::stopped{};                  \
  } while (false)
#define CHECK_THROWS_AS(expression, ...)                                    \
  do {                                                                      \
    bool thrown = false;                                                    \
    try {                                                                   \
      static_cast<void>(expression);                                        \
    } catch (const __VA_ARGS__&) {                                          \
      thrown = true;                                                        \
    }                                                                       \
    if (!thrown) doctest::fail("throws: " #expression, __FILE__, __LINE__); \
  } while (false)
#define CHECK_NOTHROW(...)                         \
  do {                                             \
    try {                                          \
      static_cast<void>(__VA_ARGS__);              \
    } catch (const std::exception& e) {            \
      doctest::fail(e.what(), __FILE__, __LINE__); \
    }                                              \
  } while (false)
#define CAPTURE(x) static_cast<void>(x)
#define INFO(...) static_cast<void>(0)

#if defined(DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN)
int main() { return doctest::run_all(); }
#endif
