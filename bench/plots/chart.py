"""Line charts as plain SVG, x logarithmic, readable on light and dark pages: a card of its own, labels at the lines, no legend."""
import html
import math

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 78, 170, 62, 58
# By the kind of page: ink, soft ink, grid, card, and the colours of the lines.
LIGHT = {"ink": "#1f2933", "soft": "#52606d", "grid": "#e4e7eb", "card": "#ffffff",
         "lines": ["#1b6ac9", "#c2540a", "#5b7083", "#0f7b4f", "#7c3fb0"]}
DARK = {"ink": "#f0f3f6", "soft": "#a9b4c0", "grid": "#2f3a45", "card": "#161b22",
        "lines": ["#6cb0ff", "#ff9f57", "#a9b4c0", "#5fd3a0", "#c49bf0"]}


def rules(theme):
    lines = "".join(f".s{i}{{stroke:{c}}}.d{i}{{fill:{c}}}.o{i}{{fill:{theme['card']};stroke:{c}}}" for i, c in enumerate(theme["lines"]))
    return (f".card{{fill:{theme['card']}}}.ink{{fill:{theme['ink']}}}.soft{{fill:{theme['soft']}}}"
            f".grid{{stroke:{theme['grid']}}}.axis{{stroke:{theme['soft']}}}{lines}")


class Axis:
    """Positions of values between two pixels, on a logarithmic scale or, with scale=float, a linear one."""

    def __init__(self, low, high, first, last, scale=math.log):
        self.low, self.high, self.first, self.last, self.scale = scale(low), scale(high), first, last, scale

    def __call__(self, value):
        value = min(max(self.scale(value), self.low), self.high)
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)


def decades(low, high):
    """Powers of ten inside, and the ends rounded outwards to 1, 2 or 5 of a decade."""
    steps = [m * 10.0**e for e in range(-9, 10) for m in (1, 2, 5)]
    bottom = max(s for s in steps if s <= low)
    top = min(s for s in steps if s >= high)
    inside = [s for s in steps if bottom <= s <= top]
    if top / bottom > 500:
        inside = [s for s in inside if math.isclose(math.log10(s), round(math.log10(s)), abs_tol=1e-9)]
    return bottom, top, inside


def tidy(value):
    return f"{value:,.0f}" if value >= 1 else f"{value:.6f}".rstrip("0")


class Chart:
    """A chart of y against x; x has ticks at the values given, each twice the one before, y at decades or their parts, or, linear, at the
    values given."""

    def __init__(self, title, subtitle, x_label, y_label, x_ticks, y_ticks=None):
        self.title, self.subtitle, self.x_label, self.y_label = title, subtitle, x_label, y_label
        self.x_ticks, self.y_ticks = x_ticks, y_ticks
        self.series = []

    def add(self, label, points, dashed=False, hollow=False, colour=None):
        """points: (x, y) or (x, y, standard error of y). Labels stand at the right end and may hold line breaks."""
        if points:
            self.series.append((label, sorted(points), dashed, hollow, len(self.series) if colour is None else colour))

    def svg(self):
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        values = [p[1] for s in self.series for p in s[1]]
        y_low, y_high, y_ticks = (self.y_ticks[0], self.y_ticks[-1], self.y_ticks) if self.y_ticks else decades(min(values), max(values))
        x = Axis(self.x_ticks[0], self.x_ticks[-1], LEFT, right)
        y = Axis(y_low, y_high, bottom, TOP, float if self.y_ticks else math.log)
        out = []

        for tick in self.x_ticks:
            out.append(f'<line class="grid" x1="{x(tick):.1f}" y1="{TOP}" x2="{x(tick):.1f}" y2="{bottom}"/>')
            out.append(f'<text class="soft n" x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tidy(tick)}</text>')
        for tick in y_ticks:
            out.append(f'<line class="grid" x1="{LEFT}" y1="{y(tick):.1f}" x2="{right}" y2="{y(tick):.1f}"/>')
            out.append(f'<text class="soft n" x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tidy(tick)}</text>')
        out.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')

        for label, points, dashed, hollow, colour in self.series:
            style = ' stroke-dasharray="5 4"' if dashed else ""
            path = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points)
            out.append(f'<polyline class="s{colour}" points="{path}" fill="none" stroke-width="2"{style}/>')
            for p in points:
                if len(p) > 2 and 0 < p[2] < p[1]:
                    out.append(f'<line class="s{colour}" x1="{x(p[0]):.1f}" y1="{y(p[1] - p[2]):.1f}" x2="{x(p[0]):.1f}" '
                               f'y2="{y(p[1] + p[2]):.1f}" stroke-width="1.5"/>')
                if not dashed:
                    shape = f'class="o{colour}" stroke-width="1.5"' if hollow else f'class="d{colour}"'
                    out.append(f'<circle {shape} cx="{x(p[0]):.1f}" cy="{y(p[1]):.1f}" r="3.5"/>')
        for (label, *_, colour), at in zip(self.series, self.label_heights(y)):
            for i, line in enumerate(label.split("\n")):
                weight = "t" if i == 0 else "n"
                out.append(f'<text class="d{colour} {weight}" x="{right + 12}" y="{at + 15 * i:.1f}">{html.escape(line)}</text>')

        middle = (TOP + bottom) / 2
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" role="img" '
            f'aria-label="{html.escape(self.title)}">',
            f"<style>.h{{font-size:17px;font-weight:600}}.t{{font-size:13px;font-weight:600}}.n{{font-size:12px}}{rules(LIGHT)}"
            f"@media (prefers-color-scheme: dark){{{rules(DARK)}}}</style>",
            f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
            f'<text class="ink h" x="24" y="28">{html.escape(self.title)}</text>',
            f'<text class="soft n" x="24" y="47">{html.escape(self.subtitle)}</text>',
            *out,
            f'<text class="soft n" x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{html.escape(self.x_label)}</text>',
            f'<text class="soft n" transform="translate(22 {middle:.1f}) rotate(-90)" text-anchor="middle">{html.escape(self.y_label)}</text>',
            "</svg>", ""])

    def label_heights(self, y):
        """Heights of the first lines of the labels: at the last points, moved apart where they would meet."""
        wanted = sorted((y(s[1][-1][1]) + 4, i, 15 * len(s[0].split("\n")) + 4) for i, s in enumerate(self.series))
        result, free = {}, -math.inf
        for at, i, height in wanted:
            result[i] = max(at, free)
            free = result[i] + height
        return [result[i] for i in range(len(self.series))]
