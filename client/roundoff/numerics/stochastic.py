"""Stochastic rounding with random bits that depend on counters alone ([Zamirai] §3).

The bits of one element follow from a key and the element's index, so replicas of a tensor agree, shards of it
agree with the whole, and a resumed run continues bit for bit. No generator has a state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .formats import format_of, round_to, spacing

_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF
_INDEX_WEYL = 0x9E3779B9
_HIGH_WEYL = 0x85EBCA6B
_MIX1, _MIX2 = 0x7FEB352D, 0x846CA68B
_STEPS = 1 << 16
"""Random words are integers below this: a value between two neighbours is placed to 2⁻¹⁶ of their distance."""


def mix_key(*counters: int) -> int:
    """A 64-bit key from counters such as (seed, step, parameter), by the finaliser of splitmix64."""
    key = 0
    for counter in counters:
        key = (key + counter + 0x9E3779B97F4A7C15) & _M64
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _M64
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _M64
        key ^= key >> 31
    return key


def random_words(key: int, index: Tensor) -> Tensor:
    """16 random bits per element as int32 in [0, 65535], from a 64-bit key and int64 element indices.

    A keyed 32-bit integer hash (two multiplications with shifts between, constants of Wellons' lowbias32).
    """
    low, high = key & _M32, key >> 32
    x = (index & _M32) * _INDEX_WEYL + (index >> 32) * _HIGH_WEYL + low
    x = x & _M32
    x = ((x ^ (x >> 16)) * _MIX1) & _M32
    x = (x ^ (x >> 15)) ^ high
    x = (x * _MIX2) & _M32
    return (x >> 16).to(torch.int32)


def round_stochastic(x: Tensor, dtype: torch.dtype, words: Tensor) -> Tensor:
    """Round float32 to one of the two neighbours in `dtype`, up in magnitude with the odds of its distance.

    `words`: int32 of x's shape, uniform in [0, 65535]. With f the distance from the neighbour nearer to zero
    in 65536ths of the spacing, rounded down, the result is the outer neighbour where f + word ≥ 65536; values
    of the format stay as they are. NaN and infinities take no part, and beyond the largest finite value float16
    and float8 round to nearest. Raises TypeError unless x is float32 and `dtype` a storage format.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"round_stochastic takes float32, got {x.dtype}")
    if dtype == torch.bfloat16:
        bits = x.view(torch.int32)
        rounded = ((bits + words) & ~0xFFFF).view(torch.float32)
        return torch.where(x.isfinite(), rounded, x).to(dtype)
    form = format_of(dtype)
    wide = x.to(torch.float64)
    step = spacing(wide, form)
    scaled = wide.abs() / step
    below = scaled.floor()
    outer = ((scaled - below) * _STEPS).floor() + words >= _STEPS
    rounded = torch.copysign((below + outer) * step, wide)
    inside = x.isfinite() & (wide.abs() <= form.largest)
    return round_to(torch.where(inside, rounded, wide), dtype)
