// DEFLATE as the codec of a cache: what is saved comes back, within its plan, and the device has no part in it.

#include "../storing/coded_caches.hpp"
#include "../storing/stored.hpp"

#include <support/feed.hpp>

#include <kvx/codec/deflate.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/kvtc.hpp>
#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::coded_caches;

using published = cache<host, stored_by<spec<paper::layout>, calibrated<kvtc_faithful<deflate>>>>;

}  // namespace

TEST_CASE("a cache whose chunks are under DEFLATE") {
  const host exec = one_thread();
  published a(exec, spec_of<published>(model()), coded_shape), b(exec, spec_of<published>(model()), coded_shape);
  const sequence s = a.open(exec);
  feed(a, exec, s, std::vector<token>(300, 7));  // values that repeat
  memory_store store;
  save_well(a, exec, s, store, {.chunk = 200});
  std::vector<std::byte> bytes;
  REQUIRE(read_all(store, digest{}, 1 << 24, bytes).ok());
  frame_view view;
  REQUIRE(check_frame(bytes, view).ok());
  int chunks = 0;
  for (const frame_section& of : view.sections) {
    if (of.kind != section_kind::chunk) continue;
    chunks += static_cast<chunk_kind>(bytes[static_cast<std::size_t>(of.offset)]) == chunk_kind::groups_deflate ? 1 : 0;
  }
  CHECK(chunks > 0);
  const double error = error_of(a, s, b, restored_well(b, exec, store), 4, 300 - 32);
  CHECK(error < .4);
  // What rANS has coded is another codec's.
  paper c(exec, spec_of<paper>(model()), coded_shape);
  CHECK(c.restore(exec, store, digest{}).state == status::code::mismatch);
}
