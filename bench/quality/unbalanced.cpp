// Prints what the search finds of keys whose variance lies where the queries have no energy, with balance and without.
//
// usage: bench_unbalanced     prints "name value"; no model is needed
//
// Setting: tests/support/unbalanced_world.hpp, 16,384 keys, 64 queries, recall of the exact top 128 among the tenth of the keys with the
// highest scores. The balance is learned as a cache does: from the first 1,024 keys, and from as many queries as it would keep of them.

#include "coded_keys.hpp"
#include "scores.hpp"

#include "../../tests/support/unbalanced_world.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int tokens = 16384;
constexpr std::int64_t best = 128;
constexpr std::size_t measured = 64, learned = 1024 / 8;

/// The world as a head of one query a group: the last `measured` queries stand behind all keys.
quality::head_rows head_of(int dim) {
  const auto d = static_cast<std::ptrdiff_t>(dim);
  const kvx::test::unbalanced_world world(dim, tokens, static_cast<int>(learned + measured), 1);
  quality::head_rows head;
  head.dim = dim;
  head.group = 1;
  head.keys = world.keys;
  const auto border = world.queries.begin() + static_cast<std::ptrdiff_t>(learned) * d;
  head.early_queries.assign(world.queries.begin(), border);
  head.queries.assign(border, world.queries.end());
  head.positions.assign(measured, tokens - 1);
  return head;
}

quality::summary share_found(const quality::head_rows& head, bool balanced) {
  std::vector<float> balance;                                           // (D) or none
  if (balanced) balance = quality::balance_of(head, {});
  const quality::coded_keys coded(head.keys, head.dim, {}, balance);
  const quality::searched zone{0, tokens};
  std::vector<double> found;
  for (std::size_t i = 0; i < measured; ++i) {
    const auto wanted = quality::exact_best(quality::exact_logits(head, i), 1, zone, best);
    const auto got = coded.candidates({head.query(i, 0), static_cast<std::size_t>(head.dim)}, zone, {}, .10);
    found.push_back(quality::recall(wanted, got));
  }
  return quality::summarise(found);
}

void print(const std::string& name, const quality::summary& value) {
  std::printf("%s %.4f\n%s.se %.4f\n", name.c_str(), value.mean, name.c_str(), value.error);
}

}  // namespace

int main() {
  quality::summary worst{2, 0, 0};
  for (const int dim : {128, 256}) {
    const quality::head_rows head = head_of(dim);
    const std::string name = "recall_unbalanced_world_" + std::to_string(dim);
    const quality::summary balanced = share_found(head, true);
    print(name, balanced);
    print(name + "_without_balance", share_found(head, false));
    if (balanced.mean < worst.mean) worst = balanced;
  }
  print("recall_unbalanced_world", worst);                              // the smaller of both
}
