#!/usr/bin/env python3
"""Draws the pictures of docs/ from lines "name value"; of a name that occurs twice the last one counts.

usage: draw.py <folder of results> <folder of pictures> [<filter>]
"""
import pathlib
import re
import sys

from chart import Chart

WINDOWS = [128, 256, 512, 1024, 2048, 4096]
CONTEXTS = [1024, 2048, 4096, 8192, 16384, 32768]
SHARES = [2, 5, 10, 20]
QUERY_TIMES = [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600]


def read(path):
    values = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split()
        if len(words) == 2:
            try:
                values[words[0]] = float(words[1])
            except ValueError:
                pass
    return values


def quality_window(results):
    """KL against the rows attended to, for windows of many sizes."""
    values = read(results / "quality.txt")
    chart = Chart("What a window forgets", "KL to the full cache in fp32, mean and standard error of 512 tokens after a prompt of 6,144; SmolLM2-135M",
                  "rows attended to in a decode step (layers 0 and 1: all)", "KL, nats", WINDOWS)
    for text, label in (("", "prose"), (".text2", "Python source")):
        points = []
        for rows in WINDOWS:
            name = f"kl_sweep_window_{rows}{text}"
            if name in values:
                points.append((rows, values[name], values.get(name + ".se", 0)))
        chart.add(f"window\n{label}", points)
    floor = [values[f"kl_full_bf16{t}"] for t in ("", ".text2") if f"kl_full_bf16{t}" in values]
    if floor and chart.series:
        chart.add("all rows, in bf16\nboth texts, mean", [(w, sum(floor) / len(floor)) for w in (WINDOWS[0], WINDOWS[-1])], dashed=True)
    return chart


def attention_time(results):
    """Attention time of a decode step against the context."""
    values = read(results / "attention_time.txt")
    chart = Chart("What attention costs", "one decode step, 30 layers of 3 KV and 9 query heads, D 64, bf16; one core, each layer's fastest of 15 steps",
                  "context, tokens", "attention, ms per token", CONTEXTS)
    for name, label in (("full", "full"), ("window", "window of 516\nlayers 0 and 1 full")):
        chart.add(label, [(c, values[f"attend_ms_{name}_{c}"]) for c in CONTEXTS if f"attend_ms_{name}_{c}" in values])
    return chart


def peers(results):
    """Recall against the time of a query, for kvx and for indexes of vectors."""
    values = read(results / "peers.txt")
    chart = Chart("What a search costs", "131,072 keys of one head, D 128, the best 100 by inner product; one query at a time, one thread",
                  "time of a query, µs", "recall of the exact best 100", QUERY_TIMES, [.5, .6, .7, .8, .9, 1])
    for name, label, hollow, colour in (("kvx", "kvx", False, 0), ("kvx_exact", "kvx + exact", True, 0),
                                        ("faiss_flat", "faiss flat", False, 2), ("faiss_flat_bf16", "faiss flat, bf16", True, 2),
                                        ("faiss_ivfpq", "faiss IVF-PQ", False, 1), ("faiss_ivfpq_exact", "faiss IVF-PQ + exact", True, 1),
                                        ("faiss_hnsw", "faiss HNSW", False, 3), ("hnswlib", "hnswlib", False, 4)):
        start = f"peers_recall_{name}_"
        settings = [n.removeprefix(start) for n in values if n.startswith(start) and n.removeprefix(start).isalnum()]
        points = [(values[f"peers_us_{name}_{s}"], values[start + s]) for s in settings if values[start + s] >= .5]
        insert = values.get(f"peers_insert_us_{name}", values.get(f"peers_insert_us_{name.removesuffix('_exact')}"))
        chart.add(label if insert is None else f"{label}\ninsert {insert:.{1 if insert < 10 else 0}f} µs a key", points, hollow=hollow, colour=colour)
    return chart


def tiers_speed(results):
    """KL against the speed of a step, for shares of candidates; the two share the percentage, not the length."""
    kl, speed = read(results / "quality.txt"), read(results / "speed.txt")
    chart = Chart("What a faster step costs", "2, 5, 10, 20 % candidates: KL to the full cache after 6,144 tokens of prose, speed at 131,072 tokens of D 128",
                  "dense decode / step (131,072 tokens, 8 KV heads, groups of 4)", "KL, nats", [2, 3, 4, 6, 8, 12, 16])
    for kind, by, label, hollow, colour in (("hard", "mean", "256 rows\nmean query", True, 1), ("hard", "headaware", "256 rows\neach head's query", False, 1),
                                            ("tiered", "mean", "tiers, 32 rows\nmean query", True, 0),
                                            ("tiered", "headaware", "tiers, 32 rows\neach head's query", False, 0)):
        points = []
        for percent in SHARES:
            quality = f"kl_sweep_{kind}_{by}_{percent}"
            time = f"{kind}_speedup_{'mean_' if by == 'mean' else ''}{percent}"
            if quality in kl and time in speed:
                points.append((speed[time], kl[quality], kl.get(quality + ".se", 0)))
        chart.add(label, points, hollow=hollow, colour=colour)
    return chart


def kvtc_ratio(results):
    """KL against how much smaller stored rows are, for the codec with and without what it knows of the model, and for whole numbers of few bits."""
    values = read(results / "kvtc.txt")
    chart = Chart("What a smaller file costs", "KL of 128 tokens behind nine contexts of 1,024 to 2,048, of whose rows all but 132 are coded; SmolLM2-135M",
                  "rows in bf16 over all bytes written for them", "KL, nats", [3, 6, 12, 24, 48])
    for names, label, hollow, colour in ((r"(sweep_)?predicted_\d+x", "weights, predictor", False, 0), (r"(sweep_)?weighted_\d+x", "weights", True, 0),
                                         (r"sweep_unweighted_\d+x", "one step,\nwhole model", True, 1), (r"(sweep_)?faithful\d+", "as published", False, 1),
                                         (r"int\d_g\d+", "int4, int2", False, 2)):
        found = [n for n in values if re.fullmatch("kl_" + names, n)]
        chart.add(label, [(values["ratio" + n[2:]], values[n], values.get(n + ".se", 0)) for n in found if "ratio" + n[2:] in values],
                  hollow=hollow, colour=colour)
    return chart


def main(results, pictures, wanted=""):
    for name, make in (("kvtc_ratio", kvtc_ratio), ("quality_window", quality_window), ("attention_time", attention_time), ("tiers_speed", tiers_speed), ("peers", peers)):
        if wanted not in name:
            continue
        chart = make(pathlib.Path(results))
        if not chart.series:
            print(f"kvx: {name}.svg is left out: nothing measured for it in {results}", file=sys.stderr)
            continue
        pathlib.Path(pictures, name + ".svg").write_text(chart.svg(), encoding="utf-8")
        print(pathlib.Path(pictures, name + ".svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
