"""Boxes, arrows and text that become an SVG: what the pictures of these pages are made of."""

import pathlib

INK, SOFT, LINE = "#1f2933", "#52606d", "#7b8794"
FILL = {"call": "#e8f1fb", "rows": "#fff4e0", "policy": "#eaf6ec", "out": "#f3ecfa"}
ZONES = {"kept": "#ffd9a0", "searched": "#ffeac8"}


class Drawing:
    """A picture of a size and a name for readers who cannot see it; later parts lie over earlier ones."""

    def __init__(self, width, height, name):
        self.width, self.height, self.name = width, height, name
        self.parts = []

    def rectangle(self, x, y, w, h, fill, round_corners=True, dashed=False):
        corners = ' rx="8"' if round_corners else ""
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}"{corners} fill="{fill}" stroke="{LINE}"{dashes}/>')

    def title(self, x, y, text):
        self.parts.append(f'<text x="{x}" y="{y}" class="t">{text}</text>')

    def note(self, x, y, text):
        self.parts.append(f'<text x="{x}" y="{y}" class="n">{text}</text>')

    def box(self, x, y, w, h, title, note="", kind="call"):
        """A box with a title and, below it, a note of any number of lines."""
        self.rectangle(x, y, w, h, FILL[kind])
        self.title(x + w / 2, y + (h / 2 if not note else 24) + (5 if not note else 0), title)
        for i, line in enumerate(note.split("\n") if note else []):
            self.note(x + w / 2, y + 44 + 17 * i, line)

    def arrow(self, points, label="", at=None):
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.6" marker-end="url(#a)"/>')
        if label:
            self.note(*at, label)

    def dashes(self, x, y, width):
        self.parts.append(f'<line x1="{x}" y1="{y}" x2="{x + width}" y2="{y}" stroke="{LINE}" stroke-dasharray="4 3"/>')

    def strip(self, x, y, w, h, pieces):
        """Neighbouring stretches: (share of the width, where it starts, text, fill)."""
        for share, start, text, fill in pieces:
            self.rectangle(x + start * w, y, share * w, h, fill, round_corners=False)
            self.note(x + (start + share / 2) * w, y + h / 2 + 5, text)

    def save(self, path):
        width, height = self.width, self.height
        pathlib.Path(path).write_text(f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img" aria-label="{self.name}">
<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker></defs>
<style>.t{{font-size:16px;font-weight:600;fill:{INK};text-anchor:middle}}.n{{font-size:12.5px;fill:{SOFT};text-anchor:middle}}</style>
<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>
{chr(10).join(self.parts)}
</svg>
""")
