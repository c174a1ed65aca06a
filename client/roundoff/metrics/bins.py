"""What rounding does to the updates of one headroom bin (numerics §6): the one place of these formulas.

A bin holds updates from 2^low to 2^(low+1) resolutions, taken to be even in the logarithm. `low` need not be whole: a
learning rate or another storage shifts the bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable

NO_ROUNDING = 8.0
"""From this `low` on rounding takes nothing that a figure would show."""


def word_loses(low: float) -> float:
    """Share of the updates below half a resolution of one word, which leave it as it is."""
    return min(1.0, max(0.0, -1.0 - low))


def word_loses_energy(low: float) -> float:
    """Their share of Σu²: what of the descent was meant by updates that change nothing."""
    if low >= -1:
        return 0.0
    below = min(0.5, math.exp2(low + 1))
    return (below**2 - math.exp2(2 * low)) / (3 * math.exp2(2 * low))


def word_stores(low: float) -> float:
    """Σu·a / Σu² of one word: of x resolutions a whole number is stored. Above 1 where it is rounded up."""
    if low >= NO_ROUNDING:
        return 1.0
    x, y = math.exp2(low), math.exp2(low + 1)
    return (_rounded_area(y) - _rounded_area(x)) / ((y * y - x * x) / 2)


def pair_loses(low: float) -> float:
    """Share of the updates that change neither word of a pair: its second word is spread evenly over its spacings."""
    return 0.0 if low >= -2 else 1.0 - math.exp2(low + 2)


def over_spacings(of_word: Callable[[float], float], low: float, finest: float = math.inf) -> float:
    """The mean of a figure over the spacings of an evenly spread second word: 2^-j resolutions for a share of 2^-j.

    The second word has no spacing below 2^-finest resolutions.
    """
    total, left, j = 0.0, 1.0, 1
    while low + j < NO_ROUNDING and j < finest:
        total, left, j = total + left / 2 * of_word(low + j), left / 2, j + 1
    return total + left * of_word(low + j)


def chance_moves(low: float) -> float:
    """Share of the updates that stochastic rounding turns into a change: |u| / r, at most 1, in the bin's middle."""
    return min(1.0, math.exp2(low + 0.5))


def chance_noise(low: float) -> float:
    """Σ(a − u)² / Σu² of stochastic rounding, whose applied update is right on average only."""
    x, y = math.exp2(low), math.exp2(low + 1)
    one = min(max(x, 1.0), y)  # below it x·(1 − x) of r², above it a sixth on average
    noise = (one - x) - (one * one - x * x) / 2 + math.log(y / one) / 6
    return noise / ((y * y - x * x) / 2)


def _rounded_area(x: float) -> float:
    """∫₀ˣ round(t) dt."""
    whole = math.floor(x + 0.5)
    return whole * (whole - 1) / 2 + whole * (x - whole + 0.5)
