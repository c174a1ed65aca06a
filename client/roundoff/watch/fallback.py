"""What can still be measured where a step cannot be replayed faithfully: words are kept and compared after the step.

Two cases. Where the class rounds at random, u from the wider replay is as good as ever and only the outcome has to be
waited for: then everything of numerics §4 is measured. Where u cannot be had, because tensors are stepped together or
gradients are made inside the step, only what is visible is measured, and nothing is said of what was attempted, lost or
arrived. Both keep copies, so both have to do with a budget of bytes and take turns.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from roundoff.metrics import HEADROOM_BINS, HEADROOM_LOW, ROW
from roundoff.numerics import format_of

from .statistics import CHUNK, Meter
from .stored import gap_exponent

KEEP = 1 << 28
"""Bytes of words kept from before a sampled step to after it, at most; what does not fit has its turn later."""

_NUMEL = ROW.index("numel")


@dataclass(slots=True)
class Turns:
    """Who may keep words at this step: as many as the budget allows, and next time those that had to wait."""

    budget: int = KEEP
    _left: int = 0
    _waiting: set[Hashable] | None = None
    _served: set[Hashable] | None = None

    def begin(self) -> None:
        """A sampled step begins."""
        if not self._waiting:
            self._served = set()
        self._left, self._waiting = self.budget, set()

    def takes(self, who: Hashable, size: int) -> bool:
        """Whether there is room for so many bytes and it is their turn. One alone is always let in."""
        served = self._served if self._served is not None else set()
        first = self._left == self.budget
        if who not in served and (size <= self._left or first):
            self._left -= min(size, self._left)
            served.add(who)
            return True
        if who not in served and self._waiting is not None:
            self._waiting.add(who)
        return False


def measure_visible(meter: Meter, before: Tensor, after: Tensor) -> None:
    """Add what two states of the words show: `numel`, `nonfinite`, `unchanged`, Σs² and Σw²; attempted stays 0.

    The histogram says where steps of the root mean square of this one would fall, element by element; it carries no
    energies and counts for no evidence. Words of any shape and float dtype, before and after; does not wait for a
    device.
    """
    flat, flat_after = before.reshape(-1), after.detach().reshape(-1)
    for start in range(0, flat.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        w, new = flat[part].to(torch.float64), flat_after[part].to(torch.float64)
        finite = w.isfinite() & new.isfinite()
        w, s = torch.where(finite, w, 0.0), torch.where(finite, new - w, 0.0)
        good = torch.count_nonzero(finite)
        meter.add(
            numel=w.numel(),
            nonfinite=w.numel() - good,
            unchanged=good - torch.count_nonzero(s),
            sum_ss=s.dot(s),
            sum_ww=w.dot(w),
        )
    if before.dtype.itemsize <= 4:
        row = meter.row()
        finite_numel = row[_NUMEL] - row[ROW.index("nonfinite")]
        size = (row[ROW.index("sum_ss")] / finite_numel.clamp_min(1.0)).sqrt()
        meter.take(torch.zeros_like(row), _supposed(flat, size))


def _supposed(flat: Tensor, size: Tensor) -> Tensor:
    """(2, HEADROOM_BINS): where steps of one size would fall beside these words; without energies."""
    form = format_of(flat.dtype)
    exponent = torch.floor(torch.log2(size.clamp_min(math.ldexp(1.0, -1000))))
    bins = torch.zeros(2, HEADROOM_BINS, dtype=torch.float64, device=flat.device)
    for start in range(0, flat.numel(), CHUNK):
        words = flat[start : start + CHUNK].to(torch.float32)
        finite = words.isfinite()
        r = gap_exponent(torch.where(finite, words, 0.0), torch.ones_like(words), form)
        index = (exponent - r).sub_(HEADROOM_LOW).clamp_(0, HEADROOM_BINS - 1).to(torch.int64)
        bins[0].scatter_add_(0, index, finite.to(torch.float64))
    return torch.where(size > 0, bins, 0.0)
