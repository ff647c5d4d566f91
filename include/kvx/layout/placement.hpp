#pragma once
// In which memory the rows of a layout lie.

namespace kvx {

/// Where pages of rows lie. Columns, sinks and recent rows are near whatever is chosen.
///
/// resident      all in the memory of the backend
/// offload_uva   on a device: those of layers that retrieve lie near while there is room (geometry.near_tokens); beyond it the oldest pages
///               move to page-locked host memory, which kernels read in place, and rows that were selected lately are kept in slots near.
///               On the host everything is near
enum class placement { resident, offload_uva };

/// Whether a layout asks for rows elsewhere.
template <class Layout>
constexpr bool offloads() {
  if constexpr (requires { Layout::place; }) {
    return Layout::place == placement::offload_uva;
  } else {
    return false;
  }
}

}  // namespace kvx
