"""Which rows of large tensors are measured, where a sampled step may look at no more than so many bytes."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

BUDGET = 1 << 30
"""Bytes of words that a sampled step looks at, unless told otherwise."""

OF_ONE = 16
"""One tensor takes at most this part of a budget: stepping it on copies needs some thirty times its words in memory."""


class Rows:
    """Every how many rows of a tensor one is measured, so that all tensors together stay within `budget` bytes.

    Small tensors are measured whole; what they leave of the budget the large ones share evenly. The rows are the same
    at every sample. An interval is odd, so that it meets every place in heads and blocks, whose sizes are powers of 2.
    """

    def __init__(self, sizes: Iterable[int], budget: int | None) -> None:
        self._most = None if budget is None else min(_level(sorted(sizes), budget), budget // OF_ONE)
        self._whole: set[Tensor] = set()

    def every(self, param: Tensor, held: Tensor) -> int:
        """1 where all rows of what is held of a parameter are measured. One row at least is."""
        size = held.numel() * held.element_size()
        if self._most is None or size <= self._most or param in self._whole or not held.dim():
            return 1
        fewer = -(-size // max(1, self._most))
        return max(1, min(fewer | 1, held.shape[0]))

    def keep(self, param: Tensor) -> None:
        """Measure all rows of this one from now on: what its class does with a row depends on the others."""
        self._whole.add(param)


def _level(sizes: list[int], budget: int) -> int:
    """The most bytes of one tensor such that all of them, cut to it, take `budget`."""
    left = budget
    for number, size in enumerate(sizes):
        most = left // (len(sizes) - number)
        if size > most:
            return most
        left -= size
    return budget
