"""What the watch hands over: one sampled optimizer step, still on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from roundoff.wire import Layer


class Numbers(Protocol):
    """A tensor, an array or a copy that is still on its way from a device; `tolist` waits for it."""

    def tolist(self) -> list[list[float]]: ...


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """Settings of one parameter group at a sampled step; `beta2` is NaN for an optimizer without one."""

    group: int
    lr: float
    weight_decay: float
    beta2: float = math.nan


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled step. Row i of `sums` and of `headroom` belongs to the layer with index `layers[i]`.

    `sums` is (rows, len(metrics.ROW)) float64 in the order of `metrics.ROW`; counts are whole numbers.
    `headroom` is (rows, 2 · metrics.HEADROOM_BINS) float64, counts then energies, or None if not measured.
    `step` counts optimizer steps from 0.
    """

    step: int
    layers: Sequence[int]
    sums: Numbers
    headroom: Numbers | None
    groups: Sequence[GroupSetting]


class Sink(Protocol):
    """Takes what a watch measures. Neither call blocks or raises."""

    def declare(self, layers: Sequence[Layer]) -> None:
        """New layers, before the first sample that holds them."""

    def sample(self, sample: Sample) -> None:
        """One sampled step, steps ascending."""
