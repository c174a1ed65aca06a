"""What waits to be sent: declared layers, logged values, and sampled steps turned into plain numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW
from roundoff.wire import Layer

from .sample import GroupSetting, Sample

OVERHEAD = 400
"""Bytes that a record is taken to occupy beside its numbers."""

HISTOGRAM = 2 * HEADROOM_BINS


class Scalar(Protocol):
    """A number that may still be on a device."""

    def item(self) -> float: ...


@dataclass(slots=True)
class Declared:
    """Layers declared by a watch. `points` is 0: they are no data."""

    layers: Sequence[Layer]
    taken_at: float = 0.0
    points: int = 0
    cost: int = OVERHEAD


@dataclass(slots=True)
class Logged:
    """Values that the user logged at one step."""

    step: int
    names: tuple[str, ...]
    values: array[float]
    taken_at: float
    cost: int = field(init=False)

    def __post_init__(self) -> None:
        self.cost = OVERHEAD + 8 * len(self.values)

    @property
    def points(self) -> int:
        return len(self.values)


@dataclass(slots=True)
class Rows:
    """One sampled step. Shedding sets `headroom`, then `sums`, to None; the model row always stays.

    `model` holds len(ROW) numbers, `sums` rows × len(ROW), `headroom` rows × 2·HEADROOM_BINS (counts,
    energies of each row), row i of the layer `layers[i]`.
    """

    step: int
    model: array[float]
    layers: array[int]
    sums: array[float] | None
    headroom: array[float] | None
    groups: Sequence[GroupSetting]
    taken_at: float
    points: int = 1

    @property
    def cost(self) -> int:
        return OVERHEAD + 8 * (len(self.model) + len(self.sums or ()) + len(self.headroom or ()))


Record = Declared | Logged | Rows


def rows_of(sample: Sample, taken_at: float) -> Rows:
    """Read a sample's numbers and add up its model row; waits for a copy that is still under way."""
    sums = sample.sums.tolist()
    headroom = None if sample.headroom is None else sample.headroom.tolist()
    layers = array("q", sample.layers)
    if len(sums) != len(layers) or (headroom is not None and len(headroom) != len(layers)):
        raise ValueError(f"a sample of {len(layers)} layers has {len(sums)} rows")
    return Rows(
        step=sample.step,
        model=model_row(sums),
        layers=layers,
        sums=array("d", chain.from_iterable(sums)),
        headroom=None if headroom is None else array("d", chain.from_iterable(headroom)),
        groups=tuple(sample.groups),
        taken_at=taken_at,
    )


def model_row(sums: Sequence[Sequence[float]]) -> array[float]:
    """The sums over all layers, in the order of ROW: exact for counts, correctly rounded for the rest."""
    if not sums:
        return array("d", bytes(8 * len(ROW)))
    columns = zip(ROW, zip(*sums, strict=True), strict=True)
    return array(
        "d", [float(sum(map(int, column))) if name in COUNTS else _total(column) for name, column in columns]
    )


def _total(column: Sequence[float]) -> float:
    try:
        return math.fsum(column)
    except (OverflowError, ValueError):  # fsum refuses sums that pass through infinity
        return sum(column)


def expected_cost(sample: Sample) -> tuple[int, int]:
    """Bytes that the sums and the histograms of a sample will occupy, without reading it."""
    rows = len(sample.layers)
    return OVERHEAD + 8 * rows * len(ROW), 0 if sample.headroom is None else 8 * rows * HISTOGRAM
