"""Text in figures. Layer names and run names are hostile: Plotly reads a subset of HTML, and TeX, in any text."""

from __future__ import annotations

import math

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
    """`text` cut in the middle to at most `length` characters: the ends of a layer's name tell most."""
    if len(text) <= length:
        return text
    tail = (length - 1) * 2 // 3
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def non_finite(value: float) -> str:
    """How a value that is not a finite number is written."""
    if math.isnan(value):
        return "NaN"
    return "+∞" if value > 0 else "−∞"
