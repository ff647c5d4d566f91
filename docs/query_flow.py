"""Draws docs/query_flow.svg, one query's path through paris_kv, with what each stage reads.     python3 docs/query_flow.py"""

import pathlib

from drawing import FILL, ZONES, Drawing

picture = Drawing(960, 470, "One query of paris_kv: scan of the signs, candidates, reranking by codes, attention over the best rows")
box, arrow = picture.box, picture.arrow

# What there is: tokens, and the columns beside the rows of the retrieval zone.
picture.strip(20, 30, 920, 36, ((0.07, 0, "sink", ZONES["kept"]), (0.75, 0.07, "retrieval zone: tokens that are searched, in pages of 64", ZONES["searched"]), (0.18, 0.82, "recent", ZONES["kept"])))
picture.strip(84, 84, 690, 36, (
    (0.16, 0, "signs · D/8 B", FILL["rows"]),
    (0.14, 0.16, "norms · 1 B", FILL["rows"]),
    (0.22, 0.30, "page means · D/32 B", FILL["rows"]),
    (0.24, 0.52, "magnitudes · 3D/8 B", FILL["rows"]),
    (0.24, 0.76, "weights · D/4 B", FILL["rows"])))
picture.note(846, 98, "columns, always")
picture.note(846, 114, "near; bytes a key")

# What happens to one token's queries in one KV head.
top, height, width = 190, 112, 130
box(20, top, width, height, "query", "G heads of one\ngroup: balance,\nrotation")
box(178, top, width, height, "scan", "a byte a key: the\nmost that any head\nexpects of it\n131,072 keys", "policy")
box(336, top, width, height, "cut", "histogram; the\nbest 10 % (5 % of\nlong zones)\n6,554 candidates", "policy")
box(494, top, width, height, "rerank", "logits of all G\nheads from 4-bit\ncodes: the sign\nand 3 bits", "policy")
box(652, top, width, height, "choose", "sum over heads of\ntheir softmax;\nthe best keep\n256 rows", "policy")
box(810, top, width, height, "attend", "chosen rows into\nthe same softmax\n→ out, lse", "out")
middle = top + height / 2
for x in (150, 308, 466, 624, 782):
    arrow([(x, middle), (x + 26, middle)])
arrow([(139, 120), (139, 154), (228, 154), (228, top - 2)])
arrow([(243, 120), (243, top - 2)], "scanned", (285, 173))
arrow([(366, 120), (366, 154), (258, 154), (258, top - 2)])
arrow([(525, 120), (525, top - 2)])
arrow([(690, 120), (690, 154), (559, 154), (559, top - 2)], "of candidates", (632, 146))
arrow([(925, 66), (925, top - 2)], "K, V rows", (893, 173))

# The rows that always take part come first, since their sum ranks the others.
box(20, 360, 288, 84, "sinks and recent rows", "exact attention, first: every head's\nlog-sum-exp so far", "out")
arrow([(85, top + height), (85, 358)], "q", (97, 334))
arrow([(243, 358), (243, top + height + 2)], "lse", (257, 334))
arrow([(308, 385), (717, 385), (717, top + height + 2)], "lse: what a row must add to matter to a head", (520, 377))
arrow([(308, 420), (875, 420), (875, top + height + 2)], "state of the softmax", (800, 412))

picture.save(pathlib.Path(__file__).with_name("query_flow.svg"))
