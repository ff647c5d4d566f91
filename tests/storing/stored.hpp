#pragma once
// Saving and restoring that must go well, under one key.

#include <kvx/storing.hpp>

#include <doctest/doctest.h>

namespace kvx::test {

template <class Cache, class Store>
void save_well(const Cache& c, const host& exec, sequence s, Store& to, const save_options& options) {
  const status saved = c.save(exec, s, to, digest{}, options);
  REQUIRE_MESSAGE(saved.ok(), message(saved));
}

template <class Cache, class Store>
sequence restored_well(Cache& c, const host& exec, const Store& from, const restore_options& options = {}) {
  const restored r = c.restore(exec, from, digest{}, options);
  REQUIRE_MESSAGE(r.ok(), message(r.state));
  return r.of;
}

}  // namespace kvx::test
