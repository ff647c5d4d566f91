"""Draws docs/flow.svg, the path of a token's row and of a query through a cache.     python3 docs/flow.py"""

import pathlib

from drawing import FILL, ZONES, Drawing

picture = Drawing(960, 360, "Flow of rows and queries")
box, arrow = picture.box, picture.arrow

box(20, 40, 150, 70, "append", "k, v of new tokens")
picture.rectangle(230, 20, 440, 150, FILL["rows"])
picture.title(450, 44, "pages of rows, by sequence and layer")
picture.strip(250, 58, 400, 34, ((0.1, 0, "sink", ZONES["kept"]), (0.6, 0.1, "retrieval zone", ZONES["searched"]), (0.3, 0.7, "recent", ZONES["kept"])))
picture.note(450, 116, "shared by forks, copied on write, cut by truncate")
picture.note(450, 152, "columns of a page: what an index or reranker keeps beside the rows")
picture.dashes(250, 130, 400)
arrow([(170, 75), (228, 75)])

box(20, 230, 150, 70, "attend", "q of new tokens")
box(230, 230, 170, 70, "index", "proposes candidates\nfrom columns", "policy")
box(490, 230, 170, 70, "reranker", "keeps the best of them", "policy")
box(740, 120, 200, 180, "attention", "sink and recent rows, and\nthe selected ones,\none softmax\n \n → out, lse", "out")
arrow([(170, 265), (228, 265)])
arrow([(400, 265), (488, 265)], "candidates", (443, 256))
arrow([(660, 265), (738, 265)], "selection", (698, 256))
arrow([(670, 140), (738, 140)], "rows", (702, 131))
arrow([(325, 170), (325, 228)], "columns", (355, 203))
arrow([(575, 170), (575, 228)])
arrow([(95, 300), (95, 340), (835, 340), (835, 302)], "without a policy, and for prompts: dense, causal attention over all rows", (465, 332))

picture.save(pathlib.Path(__file__).with_name("flow.svg"))
