"""What waits to be sent: layers, logged values, sampled steps turned into plain numbers, counts, the end."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import Literal, Protocol

from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW, Totals, may_alert
from roundoff.wire import Finding, Layer

from .sample import GroupSetting, Sample

OVERHEAD = 400
"""Bytes that a record is taken to occupy beside its numbers."""

HISTOGRAM = 2 * HEADROOM_BINS

MOST_CALLS, MOST_VALUES = 256, 4096
"""So many log calls or values are one record at most: what a damaged spool loses with it."""

End = Literal["finished", "crashed", "preempted"]


class Scalar(Protocol):
    """A number that may still be on a device."""

    def item(self) -> float: ...


@dataclass(slots=True, kw_only=True)
class _NoData:
    """What travels with the data and is none: no points, and always taken."""

    taken_at: float = 0.0
    points: int = 0
    cost: int = OVERHEAD
    number: int = -1


@dataclass(slots=True)
class Declared(_NoData):
    """Layers declared by a watch."""

    layers: Sequence[Layer]


@dataclass(slots=True)
class Found(_NoData):
    """What the preflight of a watch has found."""

    findings: Sequence[Finding]


@dataclass(slots=True)
class Dropped(_NoData):
    """How much was dropped so far, by reason."""

    counts: dict[str, int]


@dataclass(slots=True)
class Ended(_NoData):
    """How the attempt ends; None leaves it open."""

    how: End | None


@dataclass(slots=True)
class Logged:
    """Values of one log call, or of several in a row that had the same names.

    `steps` (calls), `values` (calls × names): value of name j at `steps[i]` is `values[i · len(names) + j]`.
    """

    steps: array[int]
    names: tuple[str, ...]
    values: array[float]
    taken_at: float
    number: int = -1

    @property
    def cost(self) -> int:
        return OVERHEAD + 8 * (len(self.steps) + len(self.values))

    @property
    def points(self) -> int:
        return len(self.values)

    def extend(self, step: int, values: Iterable[float | Scalar]) -> bool:
        """Add a call with the same names; False, and nothing is added, if it is too much or not all are floats."""
        before = len(self.values)
        if len(self.steps) >= MOST_CALLS or before >= MOST_VALUES:
            return False
        try:
            self.values.extend(values)  # type: ignore[arg-type] # what is no float raises
        except Exception:  # noqa: BLE001 - whatever reading a caller's object raises
            del self.values[before:]
            return False
        self.steps.append(step)
        return True

    def halves(self) -> tuple[Logged, Logged]:
        """The earlier and the later half of several calls."""
        calls = len(self.steps) // 2
        values = calls * len(self.names)
        return (
            replace(self, steps=self.steps[:calls], values=self.values[:values]),
            replace(self, steps=self.steps[calls:], values=self.values[values:]),
        )


@dataclass(slots=True)
class Rows:
    """One sampled step. Histograms can be shed, then rows of layers that are well; the model row always stays.

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
    number: int = -1

    @property
    def cost(self) -> int:
        return OVERHEAD + 8 * (len(self.model) + len(self.sums or ()) + len(self.headroom or ()))

    def shed_histograms(self) -> int:
        """Let go of the histograms; returns how many."""
        shed = 0 if self.headroom is None else len(self.layers)
        self.headroom = None
        return shed

    def shed_healthy(self) -> int:
        """Let go of the histograms and of the rows that no alert could come from; returns how many rows."""
        self.headroom = None
        if self.sums is None:
            return 0
        width, before = len(ROW), len(self.layers)
        kept = [i for i in range(before) if may_alert(_totals(self.sums[i * width : (i + 1) * width]))]
        self.sums = (
            array("d", chain.from_iterable(self.sums[i * width : (i + 1) * width] for i in kept)) or None
        )
        self.layers = array("q", [self.layers[i] for i in kept])
        return before - len(kept)


Record = Declared | Found | Logged | Rows | Dropped | Ended


def points_of(records: Iterable[Record]) -> int:
    """Logged values and sampled steps among records."""
    return sum(record.points for record in records)


def _totals(row: array[float]) -> Totals:
    return Totals.of(SimpleNamespace(**dict(zip(ROW, row, strict=True))))


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
