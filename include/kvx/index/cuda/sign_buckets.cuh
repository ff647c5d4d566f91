#pragma once
// Search of an index of sign buckets on a device, from queries to candidates.

#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/scan_buckets.cuh>
#include <kvx/index/cuda/select_candidates.cuh>
#include <kvx/index/cuda/sign_sums.cuh>
#include <kvx/index/cuda/votes.cuh>
#include <kvx/layout/device_batch.hpp>

namespace kvx {

/// Scans by prepared queries: one launch.
inline void scan_buckets(const device& exec, const bucket_search& s, const scanned_columns& columns, const device_batch& batch,
                         call_site where = call_site::here()) {
  if (s.by.score == bucket_scoring::rule::votes) {
    scan_votes(exec, s, columns, batch, where);
  } else {
    scan_sign_sums(exec, s, columns, batch, where);
  }
}

/// Scans by prepared queries and selects: two launches.
inline void find_candidates(const device& exec, const bucket_search& s, const scanned_columns& columns, const device_batch& batch,
                            call_site where = call_site::here()) {
  scan_buckets(exec, s, columns, batch, where);
  select_candidates(exec, s, batch, where);
}

/// The candidates of all units of a batch: prepare, count (votes), scan and select.
///
/// shapes      s.ids, s.counts: the answer; s.page_dots where leaves_page_dots(). batch: under the page ids of the columns
/// exactness   the ids of the host's search_buckets
/// cost        three launches; votes: four, and the clearing of their counts. No allocation, no synchronisation: may be captured
inline void search_buckets(const device& exec, const bucket_search& s, const scanned_columns& columns, const device_batch& batch,
                           const device_queries& in, call_site where = call_site::here()) {
  if (s.by.score == bucket_scoring::rule::votes) {
    count_buckets(exec, s, columns, batch, where);
    prepare_votes(exec, s, batch, in, where);
  } else {
    prepare_sign_sums(exec, s, columns, batch, in, where);
  }
  find_candidates(exec, s, columns, batch, where);
}

}  // namespace kvx
