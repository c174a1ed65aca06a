"""What an optimizer keeps for a weight: the plain word, a pair (or three words), or a float32 master.

Each kind answers the four questions that the statistics ask of it. All tensors are flat, of one length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from roundoff.numerics import FORMATS, LOWER_WORDS, Format, add_to_expansion, format_of, join_master, narrow

_F32_BIAS = 127
_F32_MANTISSA = 23


class Stored(Protocol):
    """Everything stored for a chunk of a weight, before and after one step."""

    def applied(self, seen: Tensor) -> Tensor:
        """a, float32: the change of everything stored, given s = hi' − hi."""

    def value(self, hi: Tensor) -> Tensor:
        """w, float64: everything stored, before the step."""

    def resolution(self, hi32: Tensor, u: Tensor) -> Tensor:
        """log2(r), int32: the resolution of what is stored at w in the direction of u."""

    def keeps(self, hi: Tensor, x: Tensor) -> Tensor:
        """Where adding x (float32) alone would leave everything stored unchanged."""


class Plain:
    """The visible word is all there is."""

    def __init__(self, form: Format) -> None:
        self._form = form

    def applied(self, seen: Tensor) -> Tensor:
        return seen

    def value(self, hi: Tensor) -> Tensor:
        return hi.to(torch.float64)

    def resolution(self, hi32: Tensor, u: Tensor) -> Tensor:
        return gap_exponent(hi32, u, self._form)

    def keeps(self, hi: Tensor, x: Tensor) -> Tensor:
        return narrow(hi.to(torch.float32) + x, hi.dtype) == hi


@dataclass(frozen=True, slots=True)
class Expansion:
    """hi + lo, or hi + lo + lo2, all in the storage format; without the visible word, largest first."""

    lower: tuple[Tensor, ...]
    lower_after: tuple[Tensor, ...]

    def applied(self, seen: Tensor) -> Tensor:
        # In this order: hi + lo itself is not exact in float32.
        change: Tensor | None = None
        for old, new in zip(reversed(self.lower), reversed(self.lower_after), strict=True):
            moved = new.to(torch.float32) - old.to(torch.float32)
            change = moved if change is None else moved + change
        return seen if change is None else seen + change

    def value(self, hi: Tensor) -> Tensor:
        total = hi.to(torch.float64)
        for word in self.lower:
            total = total + word.to(torch.float64)
        return total

    def resolution(self, hi32: Tensor, u: Tensor) -> Tensor:
        form = format_of(self.lower[0].dtype)
        resolution = gap_exponent(hi32, u, form) - form.precision * len(self.lower)
        # A narrow format runs out of range before lo runs out of digits; bfloat16 shares float32's range.
        smallest = form.emin - form.precision + 1
        return resolution if form.dtype == torch.bfloat16 else resolution.clamp_min_(smallest)

    def keeps(self, hi: Tensor, x: Tensor) -> Tensor:
        words = (hi, *self.lower)
        same = [new == old for new, old in zip(add_to_expansion(words, x), words, strict=True)]
        return torch.stack(same).all(dim=0)


@dataclass(frozen=True, slots=True)
class Master:
    """A float32 copy that the step works on; the visible word is rounded from it."""

    master: Tensor
    master_after: Tensor

    def applied(self, seen: Tensor) -> Tensor:  # noqa: ARG002
        return self.master_after - self.master

    def value(self, hi: Tensor) -> Tensor:  # noqa: ARG002
        return self.master.to(torch.float64)

    def resolution(self, hi32: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return gap_exponent(self.master, u, FORMATS[torch.float32])

    def keeps(self, hi: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002
        return self.master + x == self.master


def stored_between(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Stored:
    """What is kept, from words named `param`, and `lo` (and `lo2`), `remainder` (or an int16 `lo`) or `master` if any.

    Raises TypeError where lo's dtype fits neither kind.
    """
    if "master" in before:
        return Master(before["master"], after["master"])
    second = "remainder" if "remainder" in before else "lo"
    hi, lo = before["param"], before.get(second)
    if lo is None:
        return Plain(format_of(hi.dtype))
    if lo.dtype == torch.int16:
        return Master(join_master(hi, lo), join_master(after["param"], after[second]))
    if lo.dtype != hi.dtype:
        raise TypeError(f"lo must be {hi.dtype} like the parameter, or int16 for a remainder; got {lo.dtype}")
    lower = [name for name in LOWER_WORDS if name in before]
    return Expansion(tuple(before[name] for name in lower), tuple(after[name] for name in lower))


def gap_exponent(w32: Tensor, u: Tensor, form: Format) -> Tensor:
    """log2 of gap(w, u) as int32, for values of `form` held in float32 (numerics §1); of no use where u = 0.

    Toward zero the gap at w is the spacing just below w: one less on the bit pattern leaves a power of two's
    binade and nothing else's.
    """
    bits = w32.view(torch.int32)
    toward_zero = (bits ^ u.to(torch.float32).view(torch.int32)) >> 31
    exponent = ((bits & 0x7FFFFFFF) + toward_zero) >> _F32_MANTISSA
    return exponent.clamp_min_(form.emin + _F32_BIAS).sub_(_F32_BIAS + form.precision - 1)
