"""Text in figures. Names are hostile: Plotly reads a subset of HTML, and TeX, in any text."""

from __future__ import annotations

import math

TIGHT = 30
"""Below this length a shortened name keeps nothing of its start and begins at a dot."""

_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "%": "&#37;", "\n": " ", "\r": " ", "\t": " "}
)


def escape(text: str) -> str:
    """`text` so that Plotly shows it as it stands.

    Beside the markup, `$` is escaped because a notebook may have loaded MathJax, and `%` because a hover
    template reads `%{…}`.
    """
    return text.translate(_ESCAPES)


def shorten(text: str, length: int) -> str:
    """`text` cut to at most `length` characters. A layer's name tells most at its end; the start goes first."""
    if len(text) <= length:
        return text
    if length < TIGHT:
        end = text[len(text) - length + 1 :]
        _, dot, whole_parts = end.partition(".")
        return f"…{whole_parts if dot and whole_parts else end}"
    tail = (length - 1) * 3 // 4
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def non_finite(value: float) -> str:
    """How a value that is not a finite number is written."""
    if math.isnan(value):
        return "NaN"
    return "+∞" if value > 0 else "−∞"
