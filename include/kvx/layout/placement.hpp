#pragma once
// In which memory the rows of a layout lie.

namespace kvx {

/// Where pages of rows lie. Columns, sinks and recent rows are near whatever is chosen.
///
/// resident      all in the memory of the backend
/// offload_uva   on a device: those of layers that retrieve lie near while there is room (geometry.near_tokens); beyond it the oldest pages
///               move to page-locked host memory, which kernels read in place, and rows that were selected lately are kept in slots near.
///               On the host everything is near
/// offload_bulk  on the host: those of layers that retrieve lie in memory for geometry.near_tokens tokens; beyond it the oldest pages go to
///               a file (geometry.far), so that contexts may be larger than memory. Semantic pages that a step selects are read as a whole
///               into slots, other rows one by one; choices that were made lately stay there. On a device the same, from the page-locked
///               memory of offload_uva
enum class placement { resident, offload_uva, offload_bulk };

/// Whether a layout asks for rows elsewhere.
template <class Layout>
constexpr bool offloads() {
  if constexpr (requires { Layout::place; }) {
    return Layout::place != placement::resident;
  } else {
    return false;
  }
}

/// Whether a host keeps them in a file.
template <class Layout>
constexpr bool offloads_to_file() {
  if constexpr (requires { Layout::place; }) {
    return Layout::place == placement::offload_bulk;
  } else {
    return false;
  }
}

}  // namespace kvx
