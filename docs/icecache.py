"""Draws docs/icecache.svg, how a block of tokens becomes semantic pages.     python3 docs/icecache.py"""

import pathlib

from drawing import FILL, ZONES, Drawing

picture = Drawing(960, 400, "Rows in the order of time, semantic pages as lists of a block's tokens, and what one query attends to")
box, arrow = picture.box, picture.arrow

picture.strip(20, 30, 920, 36, (
    (0.06, 0, "sink", ZONES["kept"]),
    (0.24, 0.06, "block", ZONES["searched"]),
    (0.24, 0.30, "block of 256 tokens", ZONES["searched"]),
    (0.24, 0.54, "block", ZONES["searched"]),
    (0.22, 0.78, "recent: 32 to 287 tokens", ZONES["kept"])))

colours = ("#f7c59f", "#bfd7ea", "#cfe8cf", "#e3cdea")
order = (0, 1, 0, 2, 3, 1, 1, 0, 2, 2, 3, 0, 3, 1, 2, 3)
for i, page in enumerate(order):
    picture.rectangle(296 + 14 * i, 104, 14, 24, colours[page], round_corners=False)
picture.note(408, 148, "rows of one head, in the order of time")
for page, colour in enumerate(colours):
    for slot in range(4):
        picture.rectangle(270 + 74 * page + 14 * slot, 190, 14, 24, colour, round_corners=False)
picture.note(408, 236, "lists of similar tokens: semantic pages")

box(20, 180, 180, 70, "queries seen", "every eighth position:\nthe metric", "call")
box(640, 170, 300, 80, "search", "means and spreads of all pages,\nthen members of the most promising", "policy")
box(20, 300, 740, 80, "one softmax", "the rows of 12 pages, wherever they lie in their blocks, beside sinks and recent rows", "policy")
box(800, 300, 140, 80, "out, lse", "", "out")

arrow([(408, 66), (408, 102)])
arrow([(408, 154), (408, 188)], "bisection", (440, 174))
arrow([(200, 212), (264, 212)])
arrow([(568, 204), (638, 204)])
arrow([(780, 250), (780, 275), (600, 275), (600, 298)], "12 pages", (690, 270))
arrow([(42, 66), (42, 140), (8, 140), (8, 330), (18, 330)])
arrow([(860, 66), (950, 66), (950, 280), (740, 280), (740, 298)])
arrow([(760, 340), (798, 340)])

picture.save(pathlib.Path(__file__).with_name("icecache.svg"))
