// Frames that were damaged, or made by somebody with other ideas: a status, or the same sequence; never a crash, and never a trace.

#include "stored.hpp"

#include <support/feed.hpp>
#include <support/small_calibration.hpp>

#include <kvx/core/checksum.hpp>
#include <kvx/kvtc.hpp>
#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;

constexpr page_shape page{.tokens = 8, .key_dim = 4, .value_dim = 2};
template <class Index, class Reranker, class Codec>
using small_spec = spec<paged<bf16, page, zones{.sink = 2, .local = 8}>, Index, Reranker, Codec>;
template <class Codec>
using small_cache =
    cache<host, std::conditional_t<std::is_same_v<Codec, raw>, small_spec<sign_buckets<key_sketch{.balance = 16}>, rsq_ip<4>, raw>,
                                   small_spec<full_scan, pass_through, Codec>>>;
using as_they_are = small_cache<raw>;
using entropy = small_cache<calibrated<kvtc_entropy>>;
using faithful = small_cache<calibrated<kvtc_faithful<rans>>>;
using modes = std::tuple<as_they_are, entropy, faithful>;

const geometry two_layers{.layers = 2,
                          .kv_heads = 1,
                          .query_heads = 1,
                          .max_tokens = 80,
                          .max_sequences = 2,
                          .kinds = {layer_kind::retrieve(), layer_kind::window(10, 2)},
                          .rollback = 4};
const host exec = one_thread();

template <class C>
struct made;
template <class Spec>
struct made<cache<host, Spec>> {
  cache<host, Spec> c{exec, make(), two_layers};
  memory_store store;
  std::vector<std::byte> frame, snapped;
  std::vector<std::int64_t> counted;

  static constexpr bool retrieves = !std::is_same_v<typename Spec::index_type, full_scan>;

  static Spec make() {
    Spec s;
    if constexpr (!std::is_same_v<typename Spec::codec_type, raw>) {
      static const auto model = std::make_shared<const calibrated_model>(small_calibration({2, 1, 4, 2}, {{{0}, 0, 1}, {{1}, 0, 1}}));
      s.codec.model = model;
      s.codec.log2_step = -300;
    }
    return s;
  }

  explicit made(std::int64_t n) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n), 7);
    const sequence s = c.open(exec);
    feed(c, exec, s, tokens(1, n));
    save_well(c, exec, s, store, {.token_ids = ids, .sinks = 1, .newest = 3, .chunk = 16, .own_mean_from = 30, .columns = retrieves});
    c.close(exec, s);
    REQUIRE(read_all(store, digest{}, 1 << 20, frame).ok());
    counted = counts(c.stats());
    const sequence t = restored_well(c, exec, store);
    snapped = snapshot(c, t);
    c.close(exec, t);
  }

  /// Restores other bytes; true where they gave a sequence, which is closed again. Nothing may be left.
  bool restores(std::span<const std::byte> bytes, bool same) {
    REQUIRE(store.put(digest{}, bytes).ok());
    bool well = false;
    try {
      const restored r = c.restore(exec, store, digest{});
      well = r.ok();
      if (well && same && snapshot(c, r.of) != snapped) FAIL_CHECK("other data");
      if (well) c.close(exec, r.of);
    } catch (const capacity_error&) {
    }
    if (counts(c.stats()) != counted) FAIL_CHECK("a trace");
    return well;
  }
};

/// Checksums as a writer would have made them, wherever the numbers lead.
void sign(std::vector<std::byte>& frame) {
  frame_header h;
  if (frame.size() < sizeof h) return;
  std::memcpy(&h, frame.data(), sizeof h);
  const std::uint64_t front = frame_front_bytes(h.sections);
  if (h.sections < 1000 && front <= frame.size()) {
    for (std::uint32_t i = 0; i < h.sections; ++i) {
      frame_section s;
      std::byte* const at = frame.data() + sizeof h + i * sizeof s;
      std::memcpy(&s, at, sizeof s);
      if (s.offset > frame.size() || s.bytes > frame.size() - s.offset) continue;
      s.checksum = checksum(std::span(frame).subspan(static_cast<std::size_t>(s.offset), static_cast<std::size_t>(s.bytes)));
      std::memcpy(at, &s, sizeof s);
    }
    h.table_checksum = checksum(std::span(frame).subspan(sizeof h, static_cast<std::size_t>(front - sizeof h)));
  }
  h.header_checksum = checksum(std::as_bytes(std::span(&h, 1)).first(offsetof(frame_header, header_checksum)));
  std::memcpy(frame.data(), &h, sizeof h);
}

}  // namespace

TEST_CASE_TEMPLATE_DEFINE("every truncation and every flipped byte is an error, or padding", C, flipped) {
  made<C> m(50);
  REQUIRE(m.restores(m.frame, true));
  int whole = 0, padding = 0;
  for (std::size_t n = 0; n < m.frame.size(); ++n) whole += m.restores(std::span(m.frame).first(n), true) ? 1 : 0;
  CHECK(whole == 0);
  std::vector<std::byte> longer = m.frame;
  longer.push_back(std::byte{0});
  CHECK_FALSE(m.restores(longer, true));
  frame_view view;
  REQUIRE(check_frame(m.frame, view).ok());
  std::vector<bool> covered(m.frame.size());
  std::fill_n(covered.begin(), frame_front_bytes(view.header.sections), true);
  for (const frame_section& s : view.sections) std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(s.offset), s.bytes, true);
  for (std::size_t at = 0; at < m.frame.size(); ++at) {
    std::vector<std::byte> bytes = m.frame;
    bytes[at] ^= std::byte{static_cast<unsigned char>(1 + at * 37 % 255)};
    if (!m.restores(bytes, true)) continue;
    ++padding;
    if (covered[at]) FAIL_CHECK("a flipped byte was not seen: " << at);
  }
  CHECK(padding == std::count(covered.begin(), covered.end(), false));
}
TEST_CASE_TEMPLATE_APPLY(flipped, modes);

TEST_CASE_TEMPLATE_DEFINE("numbers that no writer makes, with checksums that fit: a status or a sequence, and no trace", C, forged) {
  made<C> m(50);
  std::mt19937 random(3);
  const char* given = std::getenv("KVX_TEST_OPERATIONS");
  const int rounds = given == nullptr ? 4000 : std::max(200, std::atoi(given) / 2);
  static constexpr std::uint64_t values[] = {0,    1,      2,      7,        8,   16,         31,         255,  1024,
                                             1025, 0x7fff, 0xffff, 1u << 31, ~0u, 1ull << 32, 1ull << 63, ~0ull};
  int well = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::byte> bytes = m.frame;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      // Half of all changes go to what frame, sections and chunks say of themselves.
      const std::size_t front = random() % 2 == 0 ? sizeof(frame_header) + random() % 400 : bytes.size();
      const std::size_t width = std::size_t{1} << random() % 4, at = 8 + random() % (std::min(front, bytes.size()) - 16) / width * width;
      const std::uint64_t value = random() % 3 == 0 ? random() : values[random() % std::size(values)];
      std::memcpy(bytes.data() + at, &value, width);
    }
    sign(bytes);
    well += m.restores(bytes, false) ? 1 : 0;
  }
  CHECK(well > 0);
  CHECK(well < rounds);
}
TEST_CASE_TEMPLATE_APPLY(forged, modes);

namespace {

/// A store whose reads fail after so many.
struct failing_store {
  struct reader {
    memory_store::reader of;
    std::shared_ptr<int> left;
    std::uint64_t size() const { return of.size(); }
    status read(std::uint64_t offset, std::span<std::byte> out) const {
      if ((*left)-- <= 0) return {status::code::io, "store: read"};
      return of.read(offset, out);
    }
  };
  memory_store of;
  std::shared_ptr<int> left = std::make_shared<int>(0);

  status put(const digest&, std::span<const std::byte>) { return {status::code::io, "store: no space on the device"}; }
  status open(const digest& key, reader& r) const {
    r.left = left;
    return of.open(key, r.of);
  }
  status erase(const digest& key) { return of.erase(key); }
  status list(std::vector<digest>& keys) const { return of.list(keys); }
};
static_assert(store<failing_store>);

}  // namespace

TEST_CASE("a store that fails at any read leaves no trace, and one that fails to write says so") {
  made<entropy> m(50);
  failing_store failing;
  REQUIRE(failing.of.put(digest{}, m.frame).ok());
  int reads = 0;
  for (;; ++reads) {
    *failing.left = reads;
    const restored r = m.c.restore(exec, failing, digest{});
    if (r.ok()) {
      m.c.close(exec, r.of);
      break;
    }
    CHECK(r.state == status::code::io);
    CHECK(counts(m.c.stats()) == m.counted);
  }
  CHECK(reads > 20);
  *failing.left = reads - 1;  // layer by layer: the error comes with the layer, and the sequence can be closed
  auto layers = m.c.restore_layers(exec, failing, digest{}, {.check_first = false});
  REQUIRE(layers.ok());
  status last;
  while (last.ok() && !layers.done()) last = m.c.decode_layer(exec, layers);
  CHECK(last == status::code::io);
  CHECK(layers.state() == status::code::io);
  CHECK_THROWS_AS((void)m.c.decode_layer(exec, layers), usage_error);
  m.c.close(exec, layers.of());
  CHECK(counts(m.c.stats()) == m.counted);
  const sequence s = m.c.open(exec);
  CHECK(m.c.save(exec, s, failing, digest{}) == status::code::io);
}
