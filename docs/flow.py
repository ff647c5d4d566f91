"""Draws docs/flow.svg, the path of a token's row and of a query through a cache.     python3 docs/flow.py"""

import pathlib

INK, SOFT, LINE = "#1f2933", "#52606d", "#7b8794"
FILL = {"call": "#e8f1fb", "rows": "#fff4e0", "policy": "#eaf6ec", "out": "#f3ecfa"}
parts = []


def box(x, y, w, h, title, note="", kind="call"):
    parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{FILL[kind]}" stroke="{LINE}"/>')
    parts.append(f'<text x="{x + w / 2}" y="{y + (h / 2 if not note else 24) + (5 if not note else 0)}" class="t">{title}</text>')
    for i, line in enumerate(note.split("\n") if note else []):
        parts.append(f'<text x="{x + w / 2}" y="{y + 44 + 17 * i}" class="n">{line}</text>')


def arrow(points, label="", at=None):
    path = "M" + " L".join(f"{x} {y}" for x, y in points)
    parts.append(f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.6" marker-end="url(#a)"/>')
    if label:
        x, y = at
        parts.append(f'<text x="{x}" y="{y}" class="n">{label}</text>')


def zones(x, y, w, h):
    for share, start, name, fill in ((0.1, 0, "sink", "#ffd9a0"), (0.6, 0.1, "retrieval zone", "#ffeac8"), (0.3, 0.7, "recent", "#ffd9a0")):
        parts.append(f'<rect x="{x + start * w}" y="{y}" width="{share * w}" height="{h}" fill="{fill}" stroke="{LINE}"/>')
        parts.append(f'<text x="{x + (start + share / 2) * w}" y="{y + h / 2 + 5}" class="n">{name}</text>')


box(20, 40, 150, 70, "append", "k, v of new tokens")
parts.append(f'<rect x="230" y="20" width="440" height="150" rx="8" fill="{FILL["rows"]}" stroke="{LINE}"/>')
parts.append('<text x="450" y="44" class="t">pages of rows, by sequence and layer</text>')
zones(250, 58, 400, 34)
parts.append('<text x="450" y="116" class="n">shared by forks, copied on write, cut by truncate</text>')
parts.append('<text x="450" y="152" class="n">columns of a page: what an index or reranker keeps beside the rows</text>')
parts.append(f'<line x1="250" y1="130" x2="650" y2="130" stroke="{LINE}" stroke-dasharray="4 3"/>')
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

svg = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 360" font-family="sans-serif" role="img" aria-label="Flow of rows and queries">
<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker></defs>
<style>.t{{font-size:16px;font-weight:600;fill:{INK};text-anchor:middle}}.n{{font-size:12.5px;fill:{SOFT};text-anchor:middle}}</style>
<rect width="960" height="360" rx="10" fill="#ffffff"/>
{chr(10).join(parts)}
</svg>
"""
pathlib.Path(__file__).with_name("flow.svg").write_text(svg)
