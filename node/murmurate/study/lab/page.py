"""Pages that can be mailed: one HTML file, with nothing to fetch and nothing that runs."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2",
    "#7f7f7f", "#bcbd22",
)  # fmt: skip
WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 26, 40
LEGEND_LEFT, LEGEND_ROW, LETTER = 10, 16, 7
"""LETTER: as wide as one is, about."""
TICKS = 5
ROOM, APART = 0.03, 1.5
"""ROOM: beyond the highest value, so that no line runs along the edge."""
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c1917; background: #fff;
  max-width: 1180px; margin: 24px auto; padding: 0 16px; }
h1 { font-size: 22px; } h2 { font-size: 18px; margin-top: 28px; }
div.wide { overflow-x: auto; } div.wide table { font-size: 13px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 8px 0; }
th, td { padding: 4px 10px; border-bottom: 1px solid #e7e5e4; text-align: left;
  vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
th { color: #57534e; font-weight: 600; }
.agree { color: #15803d; } .differ { color: #b91c1c; } .open { color: #a16207; }
.soft { color: #78716c; }
figure { display: inline-block; margin: 6px 8px 6px 0; vertical-align: top; }
code { background: #f5f5f4; padding: 1px 4px; border-radius: 3px; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Of a chart: points in order, and where it is known the least and most at each."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    dashed: bool = False


def text(value: object) -> str:
    return html.escape(str(value))


def page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f"<h1>{text(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """Cells are HTML already; with `numbers`, all but the first column stand on the right."""

    def cell(kind: str, place: int, what: str) -> str:
        how = ' class="number"' if numbers and place else ""
        return f"<{kind}{how}>{what}</{kind}>"

    made = [
        '<div class="wide"><table><tr>',
        *(cell("th", place, text(each)) for place, each in enumerate(head)),
    ]
    made.append("</tr>")
    for row in rows:
        made += ["<tr>", *(cell("td", place, each) for place, each in enumerate(row)), "</tr>\n"]
    return "".join([*made, "</table></div>"])


def chart(
    title: str, lines: Sequence[Line], *, x: str, y: str, log_x: bool = False, log_y: bool = False
) -> str:
    """Lines as SVG, with a legend; nothing where there are no points."""
    known = [_finite(line, log_x=log_x, log_y=log_y) for line in lines]
    points = [point for line in known for point in line.points]
    if not points:
        return ""
    heights = [*(p[1] for p in points), *(edge for line in known for b in line.band for edge in b)]
    across = _Scale([p[0] for p in points], LEFT, WIDTH - RIGHT, log=log_x)
    up = _Scale(heights, HEIGHT - BOTTOM, TOP, log=log_y)
    made = [f'<text x="{LEFT}" y="15" font-weight="600">{text(title)}</text>']
    for value, told in told_ticks(across.ticks()):
        at = across(value)
        made.append(
            f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"'
            f' stroke="#e7e5e4"/><text x="{at:.1f}" y="{HEIGHT - BOTTOM + 15}"'
            f' text-anchor="middle">{told}</text>'
        )
    for value, told in told_ticks(up.ticks()):
        at = up(value)
        made.append(
            f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"'
            f' stroke="#e7e5e4"/><text x="{LEFT - 5}" y="{at + 4:.1f}"'
            f' text-anchor="end">{told}</text>'
        )
    made.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{text(x)}</text>"
        f'<text transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"'
        f' text-anchor="middle">{text(y)}</text>'
    )
    for number, line in enumerate(known):
        colour = COLOURS[number % len(COLOURS)]
        places = [(across(p[0]), up(p[1])) for p in line.points]
        if line.band:
            low = [(across(p[0]), up(b[0])) for p, b in zip(line.points, line.band, strict=True)]
            high = [(across(p[0]), up(b[1])) for p, b in zip(line.points, line.band, strict=True)]
            made.append(
                f'<polygon points="{_places([*high, *reversed(low)])}" fill="{colour}"'
                ' opacity="0.15"/>'
            )
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        made.append(
            f'<polyline points="{_places(places)}" fill="none" stroke="{colour}"'
            f' stroke-width="1.8"{dash}/>'
        )
        made += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}"/>' for a, b in places]
    return figure(made, HEIGHT, [line.name for line in known])


def figure(drawn: Iterable[str], height: int, names: Sequence[str], more: str = "") -> str:
    """What was drawn so high, and below it what each colour is, in one SVG that needs nothing of
    the page: it can be a file of its own. `more`: a last line of text."""
    legend = []
    x, y = LEGEND_LEFT, height + 12
    for number, name in enumerate(names):
        wide = 24 + LETTER * len(name)
        if x > LEGEND_LEFT and x + wide > WIDTH:
            x, y = LEGEND_LEFT, y + LEGEND_ROW
        colour = COLOURS[number % len(COLOURS)]
        legend.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{x + 14}" y="{y}">{text(name)}</text>'
        )
        x += wide
    if more:
        y += LEGEND_ROW
        legend.append(f'<text x="{LEGEND_LEFT}" y="{y}">{text(more)}</text>')
    whole = y + 8
    return (
        f'<figure><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}"'
        f' width="{WIDTH}" height="{whole}" role="img" font-family="system-ui, sans-serif"'
        f' font-size="11" fill="#44403c"><rect width="{WIDTH}" height="{whole}" fill="#fff"/>'
        + "".join([*drawn, *legend])
        + "</svg></figure>"
    )


def _finite(line: Line, *, log_x: bool, log_y: bool) -> Line:
    """Without points that cannot be drawn."""
    keep = [
        number
        for number, (a, b) in enumerate(line.points)
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not log_x) and (b > 0 or not log_y)
    ]
    return Line(
        name=line.name,
        points=[line.points[number] for number in keep],
        band=[line.band[number] for number in keep] if line.band else (),
        dashed=line.dashed,
    )


class _Scale:
    """From values to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool) -> None:
        self.log = log
        low, high = min(values), max(values)
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        if not log:
            high += ROOM * (high - low)
        self.values = sorted(set(values))
        self.low, self.high = low, high
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            return self._round_numbers()
        rough = (self.high - self.low) / TICKS
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(each * size for each in (1, 2, 5, 10) if each * size >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _round_numbers(self) -> list[float]:
        """On a logarithmic scale: the values, if they are few and far apart, as numbers of workers
        are. Else powers of ten, where they are few 1, 2 and 5 of each, where they are many every
        second, third … of them; both ends, where not even two are between them."""
        own = self.values
        far = all(b >= APART * a for a, b in itertools.pairwise(own))
        if 1 < len(own) <= TICKS + 1 and far:
            return own
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for leads in ((1, 2, 5), (1, 3), (1,)):
            made = [lead * 10.0**power for power in powers for lead in leads]
            inside = [each for each in made if self.low * 0.999 <= each <= self.high * 1.001]
            if len(inside) <= TICKS + 1:
                break
        inside = inside[:: -(-len(inside) // (TICKS + 1))]
        return inside if len(inside) > 1 else [self.low, self.high]


def told_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Each with as many digits as it takes to tell it from its neighbours."""
    made: list[str] = []
    for digits in range(3, 10):
        made = [_tick(value, digits) for value in values]
        if len(set(made)) == len(made):
            break
    return list(zip(values, made, strict=True))


def _tick(value: float, digits: int) -> str:
    exact = value == round(value, digits) and abs(value) < 1e7
    return f"{value:,.10g}" if exact else f"{value:.{digits}g}"


def _places(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
