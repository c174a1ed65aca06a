"""The headroom histograms of all layers over the windows of their verdicts, in constant memory on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roundoff.delivery.sample import Numbers
from roundoff.metrics import HEADROOM_BINS


class Histograms:
    """Two halves per layer, which turn when the halves of its `Track` do."""

    def __init__(self) -> None:
        self._previous = torch.zeros(0, 2 * HEADROOM_BINS, dtype=torch.float64)
        self._current = torch.zeros_like(self._previous)

    def extend(self, layers: int) -> None:
        """So many layers more."""
        more = torch.zeros(layers, 2 * HEADROOM_BINS, dtype=torch.float64)
        self._previous, self._current = (torch.cat((half, more)) for half in (self._previous, self._current))

    def add(self, layers: Sequence[int], headroom: Numbers) -> None:
        """Take a sample's histograms, (len(layers), 2 · HEADROOM_BINS); waits for the device."""
        rows = headroom.detach().cpu() if isinstance(headroom, Tensor) else torch.tensor(headroom.tolist())
        self._current.index_add_(0, torch.tensor(layers), rows.to(torch.float64))

    def turn(self, layers: Sequence[int]) -> None:
        """The window of these layers moves on by one half."""
        chosen = torch.tensor(layers, dtype=torch.int64)
        self._previous[chosen] = self._current[chosen]
        self._current[chosen] = 0.0

    def of(self, layer: int) -> tuple[list[float], list[float]]:
        """Element counts and Σu² by headroom, over the window of one layer."""
        both: list[float] = (self._previous[layer] + self._current[layer]).tolist()
        return both[:HEADROOM_BINS], both[HEADROOM_BINS:]
