#pragma once
// The codec of a cache that stores its rows as they are.

namespace kvx {

/// Rows without coding: what is restored is what was saved, to the bit.
struct raw {
  friend constexpr bool operator==(const raw&, const raw&) = default;
};

}  // namespace kvx
