"""A small line without axes, as the path of an inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, PAD = 96, 22, 2
MARK_SPACING = 8.0


@dataclass(frozen=True, slots=True)
class Spark:
    """SVG path data in a box of `WIDTH` × `HEIGHT`; `end` is where the line ends, `marks` where NaN or ∞ is."""

    path: str
    end: tuple[float, float] | None
    marks: tuple[float, ...]


def spark(values: Sequence[float | None]) -> Spark:
    """`values` evenly spaced from left to right. None breaks the line; what is not finite becomes a mark."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    spread, last = high - low, max(len(values) - 1, 1)
    path: list[str] = []
    marks: list[float] = []
    end: tuple[float, float] | None = None
    pen = "M"
    for index, value in enumerate(values):
        x = round(PAD + index / last * (WIDTH - 2 * PAD), 1)
        if value is None or not math.isfinite(value):
            pen = "M"
            if value is not None and (not marks or x - marks[-1] >= MARK_SPACING):
                marks.append(x)
            continue
        level = (value - low) / spread if spread else 0.5
        y = round(PAD + (1 - level) * (HEIGHT - 2 * PAD), 1)
        path.append(f"{pen}{x:g} {y:g}")
        pen, end = "L", (x, y)
    return Spark("".join(path), end, tuple(marks))
