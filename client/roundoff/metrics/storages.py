"""What the same updates would lose stored otherwise: headroom histograms carried from one storage to another (§6).

The bins of a sample count |u| / r, r the resolution of what was stored when it was taken (numerics §4). Another storage
has another r: a pair's is the word's times 2^-p, a float32 number's the word's times 2^-(24−p). So a sample taken under
one tells of all others, but for what its open end bins and the range of float16 hide: then the answer is a span.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any, Literal, NamedTuple

from .bins import (
    chance_moves,
    chance_noise,
    over_spacings,
    pair_loses,
    word_loses,
    word_loses_energy,
    word_stores,
)
from .cures import FLOAT32, PAIRS
from .sums import HEADROOM_HIGH, HEADROOM_LOW

Kept = Literal["word", "pair", "float32", "chance"]
"""What rounds: one word, the second of two, a float32 number; or one word, stochastically."""

PRECISION = {"bfloat16": 8, "float16": 11}
"""Binary digits of a word (numerics §1)."""

FLOAT32_PRECISION = 24

SMALLEST = {"bfloat16": -133, "float16": -24}
"""log2 of the smallest number of the format."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a storage loses of some updates: sums, so that layers add up.

    Element counts and Σu² like the histograms they were made from. `lost` and `arrives`, which is Σu·a, are expected
    where a second word is spread evenly over its spacings and open bins lie at their edge of no loss. `lost_at_most`,
    and `energy_at_most`, the Σu² of updates that change nothing with no other rounded up to make up for them, hold
    where the second word is as coarse as it can get and open bins reach as far as they may. `noise` is Σ(a−u)² of
    stochastic rounding.
    """

    count: float = 0.0
    energy: float = 0.0
    lost: float = 0.0
    lost_at_most: float = 0.0
    energy_at_most: float = 0.0
    arrives: float = 0.0
    noise: float = 0.0

    def __add__(self, other: Loss) -> Loss:
        return Loss(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, factor: float) -> Loss:
        return Loss(*(value * factor for value in astuple(self)))


def kept_by(strategy: str) -> Kept:
    """What of a 16-bit weight rounds under a strategy; a name not in §3 is an optimizer with plain words."""
    if strategy in FLOAT32:
        return "float32"
    if strategy in PAIRS:
        return "pair"
    return "chance" if strategy == "stochastic" else "word"


def losses(sums: Any, dtype: str, measured: Kept, stored: Kept) -> Loss:
    """What updates measured under one storage would lose under another.

    `sums` has a `headroom` and a `headroom_energy`, each of 33 numbers; `dtype` is that of the word. Raises ValueError
    for a dtype without a precision here.
    """
    if dtype not in PRECISION:
        raise ValueError(f"nothing is known of rounding to {dtype}; one of {', '.join(PRECISION)}")
    total = Loss()
    for index, (count, energy) in enumerate(zip(sums.headroom, sums.headroom_energy, strict=True)):
        if count:
            total += _of_bin(index + HEADROOM_LOW, count, energy, _Shift(dtype, measured, stored))
    return total


@dataclass(frozen=True, slots=True)
class _Shift:
    """From one storage to another, of words of one dtype."""

    dtype: str
    measured: Kept
    stored: Kept

    def digits(self, kept: Kept) -> int:
        """Binary digits by which what is stored is finer than the word."""
        p = PRECISION[self.dtype]
        return {"word": 0, "chance": 0, "pair": p, "float32": FLOAT32_PRECISION - p}[kept]

    def of_word(self, k: float, size: float | None) -> tuple[float, float]:
        """Over the word's own gap, the least and the most that bin k may mean. `size` is log2 of the updates' size."""
        low = k - self.digits(self.measured)
        if self.dtype == "bfloat16" or size is None or self.measured in ("word", "chance"):
            return low, low
        smallest = SMALLEST[self.dtype]
        resolution = size - k
        if self.measured == "pair" and resolution < smallest + 0.75:
            return low, k  # r stands at the smallest number, the word's gap anywhere above it
        return (min(low, size - smallest),) * 2

    def spacing(self, low: float, size: float | None) -> tuple[float, float]:
        """Of what is then stored: headroom at its resolution, and by how many digits its spacing can get finer."""
        if self.stored != "pair" or self.dtype == "bfloat16" or size is None:
            return low + self.digits(self.stored), math.inf
        smallest = SMALLEST[self.dtype]
        resolution = max(smallest, size - low - self.digits("pair"))
        return size - resolution, round(resolution - smallest)


def _of_bin(k: int, count: float, energy: float, shift: _Shift) -> Loss:
    # Half a binade down, from the size in the bin's middle to that at its lower end.
    size = math.log2(energy / count) / 2 - 0.5 if energy > 0 else None
    worst, best = shift.of_word(k, size)
    if k == HEADROOM_HIGH:
        best = math.inf
    even, coarse = _figures(best, size, shift), _figures(worst, size, shift, coarse=True)
    return Loss(
        count, energy, count * even.lost, count * coarse.lost, energy * coarse.energy, energy * even.arrives,
        energy * even.noise,
    )  # fmt: skip


class _Figures(NamedTuple):
    """Of one bin: shares of the elements and of Σu² that are lost, Σu·a / Σu², and the noise in units of Σu²."""

    lost: float
    energy: float
    arrives: float
    noise: float = 0.0


def _figures(low: float, size: float | None, shift: _Shift, *, coarse: bool = False) -> _Figures:
    """`coarse`: a second word has its widest spacing, instead of being spread evenly over all."""
    if low == math.inf:
        return _Figures(0.0, 0.0, 1.0)
    if shift.stored == "chance":
        return _Figures(1.0 - chance_moves(low), 0.0, 1.0, chance_noise(low))
    low, finest = shift.spacing(low, size)
    if shift.stored != "pair" or finest <= 0:
        return _Figures(word_loses(low), word_loses_energy(low), word_stores(low))
    if coarse:
        return _Figures(word_loses(low + 1), word_loses_energy(low + 1), word_stores(low + 1))
    lost = pair_loses(low) if finest == math.inf else over_spacings(word_loses, low, finest)
    return _Figures(
        lost, over_spacings(word_loses_energy, low, finest), over_spacings(word_stores, low, finest)
    )
