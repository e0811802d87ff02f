"""A map of heights as SVG, with ways over it: for pages that need no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from murmurate.study.lab.page import COLOURS, WIDTH, figure, text

HEIGHT, TOP = 380, 26
DARK, LIGHT = (30, 41, 90), (250, 240, 180)


def relief(
    title: str,
    across: Sequence[float],
    up: Sequence[float],
    heights: Sequence[Sequence[float]],
    ways: Mapping[str, Sequence[Sequence[float]]],
) -> str:
    """`heights` by `up`, then `across`; on a logarithmic scale, dark is low. A circle where a way
    begins, a square where it ends."""
    known = [each for row in heights for each in row if math.isfinite(each) and each > 0]
    if not known or len(across) < 2 or len(up) < 2:
        return ""
    low, high = math.log(min(known)), math.log(max(known))
    wide, tall = WIDTH / len(across), (HEIGHT - TOP) / len(up)
    made = [f'<text x="4" y="15" font-weight="600">{text(title)}</text>']
    for row, line in enumerate(heights):
        for column, each in enumerate(line):
            good = math.isfinite(each) and each > 0
            part = (math.log(each) - low) / ((high - low) or 1.0) if good else 1.0
            red, green, blue = (round(a + part * (b - a)) for a, b in zip(DARK, LIGHT, strict=True))
            colour = f"#{red:02x}{green:02x}{blue:02x}"
            y = HEIGHT - (row + 1) * tall
            made.append(
                f'<rect x="{column * wide:.1f}" y="{y:.1f}" width="{wide + 0.5:.1f}"'
                f' height="{tall + 0.5:.1f}" fill="{colour}"/>'
            )

    def place(point: Sequence[float]) -> tuple[float, float]:
        step_x, step_y = across[1] - across[0], up[1] - up[0]
        x = ((point[0] - across[0]) / step_x + 0.5) * wide
        return x, HEIGHT - ((point[1] - up[0]) / step_y + 0.5) * tall

    for number, way in enumerate(ways.values()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(point) for point in way]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        (a, b), (c, d) = places[0], places[-1]
        made.append(
            f'<polyline points="{joined}" fill="none" stroke="white" stroke-width="3.4"/>'
            f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="white" stroke="{colour}"/>'
            f'<rect x="{c - 4:.1f}" y="{d - 4:.1f}" width="8" height="8" fill="{colour}"'
            ' stroke="white"/>'
        )
    levels = f"loss {math.exp(low):.3g} (dark) to {math.exp(high):.3g}"
    return figure(made, HEIGHT, list(ways), more=levels)
