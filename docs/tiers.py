"""Draws docs/tiers.svg, how each token takes part in paris_kv_tiered.     python3 docs/tiers.py"""

import pathlib

from drawing import FILL, ZONES, Drawing

picture = Drawing(960, 430, "Tiers of paris_kv_tiered: exact rows, coded rows, one mean for the rest of each page, in one softmax")
box, arrow = picture.box, picture.arrow

picture.strip(20, 30, 920, 36, (
    (0.07, 0, "sink", ZONES["kept"]),
    (0.75, 0.07, "retrieval zone, in pages of 64", ZONES["searched"]),
    (0.18, 0.82, "recent", ZONES["kept"])))

box(84, 120, 300, 118, "the best 32", "by the estimates of all heads", "rows")
picture.note(234, 184, "K and V rows, from wherever they lie")
picture.note(234, 201, "512 bytes each at D 128, bf16")
box(404, 120, 170, 118, "other candidates", "10 % of the zone", "rows")
picture.note(489, 184, "logit: 4-bit K code")
picture.note(489, 201, "V: 4- or 2-bit code")
box(594, 120, 180, 118, "the other 90 %", "page by page", "rows")
picture.note(684, 184, "mean logit, mean V,")
picture.note(684, 201, "as often as they are")
box(20, 300, 754, 100, "one softmax", "exp(logit) of every row, code and page in one sum; weighted sums of codes\nin rotated space, rotated back once a head", "policy")
box(810, 300, 130, 100, "out, lse", "nothing is\ndropped", "out")

arrow([(234, 66), (234, 118)], "exact", (258, 96))
arrow([(489, 66), (489, 118)], "coded", (513, 96))
arrow([(684, 66), (684, 118)], "tail", (703, 96))
for x in (234, 489, 684):
    arrow([(x, 238), (x, 298)])
arrow([(45, 66), (45, 298)], "exact", (66, 270))
arrow([(865, 66), (865, 268), (760, 268), (760, 298)], "exact", (840, 260))
arrow([(774, 350), (808, 350)])

picture.save(pathlib.Path(__file__).with_name("tiers.svg"))
