// hnswlib behind C functions: a graph of small worlds over inner products, built and searched on one thread.

#include <hnswlib/hnswlib.h>

#include <cstddef>
#include <cstdint>

namespace {

struct hnswlib_search {
  hnswlib_search(std::int64_t dim, std::int64_t most, std::int64_t links, std::int64_t breadth)
      : space(static_cast<std::size_t>(dim)),
        graph(&space, static_cast<std::size_t>(most), static_cast<std::size_t>(links), static_cast<std::size_t>(breadth)) {}
  hnswlib::InnerProductSpace space;
  hnswlib::HierarchicalNSW<float> graph;
};

}  // namespace

extern "C" {

void* hnswlib_open(std::int64_t dim, std::int64_t most, std::int64_t links, std::int64_t breadth) {
  return new hnswlib_search(dim, most, links, breadth);
}
void hnswlib_close(void* search) { delete static_cast<hnswlib_search*>(search); }
void hnswlib_insert(void* search, const float* keys, std::int64_t dim, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i)
    static_cast<hnswlib_search*>(search)->graph.addPoint(keys + i * dim, static_cast<std::size_t>(i));
}
std::int64_t hnswlib_find(void* search, const float* query, std::int64_t k, std::int64_t breadth, std::int32_t* best) {
  auto& graph = static_cast<hnswlib_search*>(search)->graph;
  graph.setEf(static_cast<std::size_t>(breadth));
  auto found = graph.searchKnn(query, static_cast<std::size_t>(k));
  const auto count = static_cast<std::int64_t>(found.size());
  for (; !found.empty(); found.pop()) *best++ = static_cast<std::int32_t>(found.top().second);
  return count;
}
}
