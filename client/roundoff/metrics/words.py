"""Numbers and names as sentences write them."""

from __future__ import annotations

from collections.abc import Sequence

NAMED_LAYERS = 3
"""Layers that a sentence names before it counts the rest."""


def percent(share: float | None) -> str:
    """A share as per cent for reading: `71 %`, `0.3 %`, `n/a`."""
    if share is None:
        return "n/a"
    value = 100 * share
    return f"{value:.0f} %" if value == 0 or 10 <= value <= 99 or value >= 99.95 else f"{value:.1f} %"


def name_some(layers: Sequence[str]) -> str:
    """`a, b, c and 8 more`."""
    named, rest = layers[:NAMED_LAYERS], len(layers) - NAMED_LAYERS
    if rest > 0:
        return f"{', '.join(named)} and {rest} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
