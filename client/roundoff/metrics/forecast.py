"""What the headroom says of another learning rate: how much would be lost, how much would arrive (numerics §6).

An update is proportional to the learning rate, so a factor on it shifts both histograms by its log2. Everything here
takes a `Sums` or whatever has its `headroom` and `headroom_energy`, summed over layers, samples or ranks as one likes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .bins import pair_loses, word_loses, word_stores
from .cures import FLOAT8, FLOAT32, PAIRS, unmarked
from .sums import HEADROOM_LOW

LOST_LEVELS = (0.1, 0.5, 0.9)
"""Shares of lost updates whose crossing is named."""

HALF_EFFICIENCY = 0.5

LOOKS = 256
"""Steps of a schedule that are looked at before halving between two of them."""

Figured = Literal["lost_fraction", "descent_efficiency"]

Storage = Literal["word", "pair"]
"""One word, whose rounding is known; or two, of which only the lost fraction can be told."""


def storage_of(strategy: str) -> Storage | None:
    """How what a layer of this strategy stores rounds; None where nothing is lost that a learning rate would change."""
    stored = unmarked(strategy)
    if stored.startswith(
        FLOAT8
    ):  # several words of 8 bit end at the range of the format, at no learning rate
        return "word" if stored == f"{FLOAT8}none" else None
    if stored in FLOAT32 or stored == "stochastic":
        return None
    return "pair" if stored in PAIRS else "word"


@dataclass(frozen=True, slots=True)
class Crossing:
    """The first step of a schedule at which a figure is past `level`. `lr` is the learning rate there."""

    figure: Figured
    level: float
    step: int
    lr: float


def lost_fraction_at(sums: Any, factor: float, storage: Storage = "word") -> float | None:
    """Share of the updates that would be lost with `factor` times the learning rate; None where nothing was tried.

    A word loses what is below half its resolution r. Of a pair's second word, which is spread evenly over its
    spacings, bin k loses 1 − 2^(k+2) for k ≤ −3.
    """
    total: float = sum(sums.headroom)
    if not total:
        return None
    shift = _shift(factor)
    share = word_loses if storage == "word" else pair_loses
    return math.fsum(n * share(k + shift) for k, n in _bins(sums.headroom)) / total


def efficiency_at(sums: Any, factor: float) -> float | None:
    """Σu·a / Σu² of one word with `factor` times the learning rate; None where nothing was tried.

    What is stored of an update of x resolutions is x rounded to a whole number of them.
    """
    total = math.fsum(sums.headroom_energy)
    if not total:
        return None
    shift = _shift(factor)
    return math.fsum(energy * word_stores(k + shift) for k, energy in _bins(sums.headroom_energy)) / total


@dataclass(frozen=True, slots=True)
class Part:
    """Layers that share a learning rate: sums measured at `lr`, and the learning rates to come by step."""

    sums: Any
    lr: float
    schedule: Mapping[int, float]
    storage: Storage = "word"


def crossings(parts: Sequence[Part], levels: Sequence[float] = LOST_LEVELS) -> list[Crossing]:
    """Where on the schedules each level is first crossed by the parts together, in the order of steps.

    `levels` are of the lost fraction; for words the efficiency of one half comes with them.
    A level that is past at the first step is named with that step; one that is never crossed is left out. Looks at
    some steps of a long schedule and halves between them, so a crossing that is taken back within a few per cent of
    the schedule may be missed. Raises ValueError for a part that was measured at a learning rate of 0, or schedules of
    different steps.
    """
    for part in parts:
        if not part.lr > 0:
            raise ValueError(f"a forecast needs a sample at a learning rate above 0, got {part.lr}")
    parts = [part for part in parts if sum(part.sums.headroom)]
    if not parts:
        return []
    steps = sorted(parts[0].schedule)
    if any(sorted(part.schedule) != steps for part in parts):
        raise ValueError("all schedules must have the same steps")
    found = [_first(parts, steps, "lost_fraction", level) for level in levels]
    if all(part.storage == "word" for part in parts):
        found.append(_first(parts, steps, "descent_efficiency", HALF_EFFICIENCY))
    return sorted((one for one in found if one is not None), key=lambda crossing: crossing.step)


def _first(parts: Sequence[Part], steps: Sequence[int], figure: Figured, level: float) -> Crossing | None:
    """The first of `steps` that is past a level."""

    def past(index: int) -> bool:
        value = _together(parts, steps[index], figure)
        if value is None:  # nothing is tried, so nothing is lost
            return False
        return value >= level if figure == "lost_fraction" else value < level

    if not steps:
        return None
    looked = sorted({round(n * (len(steps) - 1) / LOOKS) for n in range(LOOKS + 1)})
    reached = next((number for number, index in enumerate(looked) if past(index)), None)
    if reached is None:
        return None
    before, at = (-1 if reached == 0 else looked[reached - 1]), looked[reached]
    while at - before > 1 and before >= 0:
        middle = (before + at) // 2
        before, at = (before, middle) if past(middle) else (middle, at)
    return Crossing(figure, level, steps[at], parts[0].schedule[steps[at]])


def _together(parts: Sequence[Part], step: int, figure: Figured) -> float | None:
    """A figure of all parts at one step; None where no learning rate is above 0."""
    value = weight = 0.0
    for part in parts:
        factor = part.schedule[step] / part.lr
        if not factor > 0:
            continue
        if figure == "lost_fraction":
            share, much = lost_fraction_at(part.sums, factor, part.storage), float(sum(part.sums.headroom))
        else:
            share = efficiency_at(part.sums, factor)
            much = factor**2 * math.fsum(part.sums.headroom_energy)
        if share is not None:
            value, weight = value + share * much, weight + much
    return value / weight if weight else None


def _shift(factor: float) -> float:
    if not factor > 0:
        raise ValueError(f"a learning rate of 0 tries nothing; the factor must be above 0, got {factor}")
    return math.log2(factor)


def _bins(numbers: Sequence[float]) -> Iterator[tuple[int, float]]:
    return ((index + HEADROOM_LOW, value) for index, value in enumerate(numbers) if value)
