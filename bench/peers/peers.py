#!/usr/bin/env python3
"""Searches the bench's keys for the best inner products, by kvx, by faiss and by hnswlib, one query at a time on one thread.

usage: peers.py <library> [<filter> [<tokens> [<best>]]]     prints "name value"; lines that begin with # say under which conditions

  peers_recall_<peer>_<setting>   share of the exact best (100) that a search returns, mean of 100 queries
  peers_us_<peer>_<setting>       microseconds of processor time of a query, its Python call included: the median over rounds in which all
                                  settings take turns
  peers_insert_us_<peer>          microseconds a key: encoding, adding; without training (peers_train_s_<peer>, seconds)
  peers_time_over_kvx_<peer>      its time over kvx's, each at its fastest setting that has a recall of .9 or more
  peers_insert_over_kvx_<peer>    its insertion over kvx's

The world is bench/support/world.hpp's: D 128, one KV head, 131,072 keys in bf16, queries near random keys. A peer that is not installed is
left out.
"""
import ctypes
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads OpenMP

import numpy as np

from contestants import contestants

DIM, QUERIES, ROUNDS = 128, 100, 5
GOOD = .9  # recall from which on times are compared


def seconds(run):
    """Processor time: all run on one thread, and what else the machine does hardly counts."""
    start = time.process_time()
    run()
    return time.process_time() - start


def exact_best(keys, queries, best):
    """The ids of the `best` largest products of each query, as sets."""
    return [set(np.argpartition(keys @ q, -best)[-best:].tolist()) for q in queries]


def measure(settings, queries, exact):
    """[(setting, recall, seconds a query)]: recall from a round of its own, times as medians over rounds in turns."""
    recalls = [np.mean([len(exact[i] & set(s.find(q).tolist())) / len(exact[i]) for i, q in enumerate(queries)]) for s in settings]
    times = [[] for _ in settings]
    for _ in range(ROUNDS):
        for s, taken in zip(settings, times):
            taken.append(seconds(lambda: [s.find(q) for q in queries]) / len(queries))
    return [(s, r, float(np.median(t))) for s, r, t in zip(settings, recalls, times)]


def compare(measured, inserted, show):
    fastest = {}
    for s, recall, taken in measured:
        if recall >= GOOD:
            fastest[s.peer] = min(taken, fastest.get(s.peer, taken))
    for peer, taken in fastest.items():
        if not peer.startswith("kvx") and "kvx" in fastest:
            show(f"peers_time_over_kvx_{peer}", taken / fastest["kvx"])
    for peer, taken in inserted.items():
        if peer != "kvx":
            show(f"peers_insert_over_kvx_{peer}", taken / inserted["kvx"])


def main(library, wanted="", tokens="131072", wanted_best="100"):
    count, best = int(tokens), int(wanted_best)

    def show(name, value):
        if wanted in name:
            print(f"{name} {value:.4g}", flush=True)

    shared = ctypes.CDLL(os.path.abspath(library))
    peers = contestants(shared, count, DIM, best)
    keys, queries = peers[0].rows(QUERIES)
    exact = exact_best(keys, queries, best)
    print(f"# the best {best} of {count} keys", flush=True)
    settings, inserted = [], {}
    for peer in peers:
        print(f"# {peer.name}: {peer.what}", flush=True)
        show(f"peers_train_s_{peer.name}", seconds(lambda: peer.train(keys)))
        inserted[peer.name] = seconds(lambda: peer.insert(keys)) / count
        show(f"peers_insert_us_{peer.name}", inserted[peer.name] * 1e6)
        settings += peer.settings()
    measured = measure(settings, queries, exact)
    for s, recall, taken in measured:
        show(f"peers_recall_{s.peer}_{s.label}", recall)
        show(f"peers_us_{s.peer}_{s.label}", taken * 1e6)
    compare(measured, inserted, show)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
